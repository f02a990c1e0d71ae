"""Many training sequences in one pass over the weights, each token they share computed once.

Tasks for one robot share the system message, and tasks in one scene share the scene as well. A *pack* is therefore a
forest: every node is a run of tokens, a path from a root to a leaf is one training sequence, and a token sees its
ancestors and its own node only. Loss and gradients are those of the sequences computed one by one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SHORTEST_SHARED = 12  # tokens; a shorter shared run costs more in extra attention calls than it saves
FAMILY = 4  # at most so many sequences of one scene stand in one pack: more save little and make a step one-sided


@dataclass(frozen=True, eq=False)
class Example:
    """One training sequence: ``ids`` int32 [length], of which those from ``answer`` on are to be learned."""

    ids: np.ndarray
    answer: int

    @property
    def order(self) -> bytes:
        """Sorts like the ids: big-endian numbers, none of them negative."""
        return self.ids.astype(">i4").tobytes()

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Node:
    """Rows ``start`` to ``end`` of a pack, and the spans of rows before them on their path, root first."""

    start: int
    end: int
    ancestors: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, eq=False)
class PackRows:
    """A forest of sequences, flattened.

    Attributes:
        ids, positions: int64 [rows]; positions count along a path.
        nodes: in row order, without gaps.
        ends: per sequence, in the pack's own order, the node it ends with and the position its answer begins at.
    """

    ids: np.ndarray
    positions: np.ndarray
    nodes: tuple[Node, ...]
    ends: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class Pack(PackRows):
    """And what is to be learned from it.

    Attributes:
        rows, targets: int64 [answer tokens]: row ``rows[i]`` has to predict token ``targets[i]``, …
        weights: float32 [answer tokens]: … which so many sequences ask for, …
        askers: … namely these (numbered in the pack's own order).
        distil: the targets are not what is learned, but the base model's law at these rows.
    """

    rows: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    askers: tuple[tuple[int, ...], ...]
    distil: bool = False

    @property
    def num_answer_tokens(self) -> float:
        return float(self.weights.sum())


def make_pack(examples: Sequence[Example], distil: bool = False) -> Pack:
    """Pack ``examples`` (at least one)."""
    builder = _Builder()
    builder.add(list(enumerate(sorted(examples, key=lambda example: example.order))), 0, ())
    return builder.finish(distil)


def shared_length(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading ids two sequences have in common."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def fill(examples: Sequence[Example], chunks: Sequence[Sequence[int]], capacity: int) -> Iterator[list[int]]:
    """Cut a sequence of ``chunks`` (of indices into ``examples``) into packs of about ``capacity`` rows, in order.

    A single chunk larger than ``capacity`` makes a pack of its own.
    """
    pack: list[int] = []
    rows = 0
    for chunk in chunks:
        cost = _extra_rows(examples, pack, chunk)
        if pack and rows + cost > capacity:
            yield pack
            pack, rows = [], 0
            cost = _extra_rows(examples, pack, chunk)
        pack, rows = [*pack, *chunk], rows + cost
    if pack:
        yield pack


def families(examples: Sequence[Example], domains: Sequence[str]) -> dict[str, list[list[int]]]:
    """Per domain, sequences whose prompts agree beyond what all of the domain share: those of one scene."""
    found: dict[str, list[list[int]]] = {}
    for domain in sorted(set(domains)):
        order = [i for i, name in enumerate(domains) if name == domain]
        order.sort(key=lambda i: examples[i].order)
        common = shared_length(examples[order[0]].ids, examples[order[-1]].ids)
        found[domain] = [[order[0]]]
        for before, i in zip(order, order[1:], strict=False):
            if shared_length(examples[before].ids, examples[i].ids) >= common + 2 * SHORTEST_SHARED:
                found[domain][-1].append(i)
            else:
                found[domain].append([i])
    return found


def draw_packs(
    examples: Sequence[Example], grouped: Mapping[str, list[list[int]]], capacity: int, rng: random.Random
) -> list[list[int]]:
    """Packs of about ``capacity`` rows, each of one domain of ``families`` and several of its scenes, all shuffled."""
    packs: list[list[int]] = []
    for scenes in grouped.values():
        chunks = []
        for family in scenes:
            members = rng.sample(family, len(family))
            chunks += [members[i : i + FAMILY] for i in range(0, len(members), FAMILY)]
        rng.shuffle(chunks)
        packs += fill(examples, chunks, capacity)
    rng.shuffle(packs)
    return packs


def _extra_rows(examples: Sequence[Example], pack: Sequence[int], chunk: Sequence[int]) -> int:
    seen, extra = list(pack), 0
    for index in chunk:
        ids = examples[index].ids
        shared = max((shared_length(ids, examples[other].ids) for other in seen), default=0)
        extra += len(ids) - (shared if shared >= SHORTEST_SHARED else 0)
        seen.append(index)
    return extra


class _Builder:
    def __init__(self) -> None:
        self._ids: list[np.ndarray] = []
        self._positions: list[np.ndarray] = []
        self._nodes: list[Node] = []
        self._labels: dict[tuple[int, int], list[int]] = {}  # (row, target) → sequences that ask for it
        self._ends: dict[int, tuple[int, int]] = {}
        self._length = 0

    def add(self, group: Sequence[tuple[int, Example]], depth: int, path: tuple[tuple[int, int], ...]) -> None:
        """Nodes for ``group`` (sorted), whose first ``depth`` tokens lie in ``path``."""
        common = shared_length(group[0][1].ids, group[-1][1].ids)  # sorted: the ends differ most
        if len(group) == 1 or common - depth >= SHORTEST_SHARED:
            path = self._append(group, depth, common, path)
            depth = common
        for number, example in group:
            if len(example) == depth:
                self._ends[number] = self._node_at(path[-1]), example.answer
        children: dict[int, list[tuple[int, Example]]] = {}
        for member in group:
            ids = member[1].ids
            if len(ids) > common:
                children.setdefault(int(ids[common]), []).append(member)
            elif common > depth:  # the beginning of the others, and too short to be shared
                self.add([member], depth, path)
        for child in children.values():
            self.add(child, depth, path)

    def finish(self, distil: bool) -> Pack:
        labels = sorted(self._labels.items())
        return Pack(
            np.concatenate(self._ids).astype(np.int64),
            np.concatenate(self._positions).astype(np.int64),
            tuple(self._nodes),
            tuple(self._ends[number] for number in range(len(self._ends))),
            np.array([row for (row, _), _ in labels], np.int64),
            np.array([target for (_, target), _ in labels], np.int64),
            np.array([len(askers) for _, askers in labels], np.float32),
            tuple(tuple(askers) for _, askers in labels),
            distil,
        )

    def _node_at(self, span: tuple[int, int]) -> int:
        return next(index for index in range(len(self._nodes) - 1, -1, -1) if self._nodes[index].start == span[0])

    def _append(
        self, group: Sequence[tuple[int, Example]], start: int, end: int, path: tuple[tuple[int, int], ...]
    ) -> tuple[tuple[int, int], ...]:
        if start == end:
            return path
        first = self._length
        self._ids.append(group[0][1].ids[start:end])
        self._positions.append(np.arange(start, end))
        self._nodes.append(Node(first, first + end - start, path))
        self._length += end - start
        for number, example in group:
            for position in range(max(start, example.answer, 1), end):
                row = first + position - 1 - start if position > start else path[-1][1] - 1
                label = (row, int(example.ids[position]))
                self._labels.setdefault(label, []).append(number)
        return (*path, (first, self._length))
