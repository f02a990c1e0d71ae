"""Small targets and drafters whose laws are known in full."""

from __future__ import annotations

import functools
import zlib

import numpy as np

from spec_planner.decoding.contracts import DrafterRequirements
from spec_planner.engines.table_target import TableTarget

VOCABULARY = 3
SHAPES = {  # parents of every node
    "chain": (-1, 0, 1),
    "binary": (-1, 0, 0, 1, 1, 2, 2),
    "uneven": (-1, 0, 0, 1, 2, 2, 3),
}


def logits_of(seed: int, sharpness: float, vocabulary_size: int = VOCABULARY):
    """A random but fixed row of logits per context."""

    @functools.cache
    def of(context: tuple[int, ...]):
        generator = np.random.default_rng([seed, zlib.crc32(np.asarray(context, dtype=np.int64).tobytes())])
        return (sharpness * generator.standard_normal(vocabulary_size)).astype(np.float32)

    return of


def disjoint(of, allowed: tuple[int, ...]):
    """The same rows with every token but ``allowed`` impossible."""

    def masked(context: tuple[int, ...]):
        row = np.full_like(of(context), -np.inf)
        row[list(allowed)] = of(context)[list(allowed)]
        return row

    return masked


def table_target(of, vocabulary_size: int = VOCABULARY) -> TableTarget:
    return TableTarget(of, vocabulary_size)


class TableDrafter:
    """Drafts a tree of a fixed shape with laws of its own."""

    name = "table"
    requirements = DrafterRequirements()

    def __init__(self, of, shape: tuple[int, ...]) -> None:
        self._of, self._shape = of, shape
        self._ids: list[int] = []

    def truncate(self, length: int) -> None:
        del self._ids[length:]

    def observe(self, committed_ids, features) -> None:
        self._ids.extend(committed_ids)

    def draft(self, anchor, budget, sampler):
        tokens, parents, laws = [anchor], [-1], [None]
        place = {0: 0}  # node of the shape → node of the tree; a law with few tokens may yield fewer siblings
        contexts = [(*self._ids, anchor)]
        for node in range(len(self._shape)):
            wanted = [child for child, parent in enumerate(self._shape) if parent == node]
            if node not in place or not wanted:
                continue
            here = place[node]
            laws[here] = sampler.law(self._of(contexts[here]))
            picked = sampler.pick_siblings(laws[here], len(wanted), len(contexts[here]), len(tokens))
            for child, token in zip(wanted, picked, strict=False):
                place[child] = len(tokens)
                contexts.append((*contexts[here], token))
                tokens.append(token)
                parents.append(here)
                laws.append(None)
        return sampler.tree(tokens, parents, laws)

    def close(self) -> None:
        pass
