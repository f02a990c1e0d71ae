"""Draft trees of a fixed shape: which ranks of which head are tried, decided once, from measured accuracies.

A shape is a list of rank paths (see ``best_first.py``), most valuable first, in which a node's parent and its elder
siblings always come before it, so the first n paths are a tree too: a smaller budget takes a prefix. ``layout`` lays
them out as ``DraftTree`` wants its nodes: parents first, siblings side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .best_first import Path, grow

# Medusa's published sparse tree for Vicuna-7B ("mc_sim_7b_63", 2401.10774): a digit is a rank, depth by depth.
_MEDUSA_63 = """
    0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003 40 21 004 005 0000
    011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021 90 060 0001 16 070
"""
MEDUSA_63: tuple[Path, ...] = tuple(tuple(int(rank) for rank in path) for path in _MEDUSA_63.split())


@dataclass(frozen=True)
class Layout:
    """A shape in the order of a draft tree's nodes, level by level.

    Attributes:
        paths: rank path of each node; paths[0] = () is the root.
        parents: of each node; −1 for the root.
        first_child, num_children: of each node; its children are adjacent, in the order of their ranks.
    """

    paths: tuple[Path, ...]
    parents: tuple[int, ...]
    first_child: tuple[int, ...]
    num_children: tuple[int, ...]


def layout(paths: Iterable[Path]) -> Layout:
    """Order ``paths`` by depth and rank, and count children.

    Raises:
        ValueError: a path lacks its parent or an elder sibling, is empty, or stands twice.
    """
    given = list(paths)
    ordered = [(), *sorted(given, key=lambda path: (len(path), path))]
    index = {path: node for node, path in enumerate(ordered)}
    if len(index) != len(ordered):
        raise ValueError("a tree shape names a path twice, or the root: give each node below the root once")
    parents, counts, first = [-1], [0] * len(ordered), [0] * len(ordered)
    for node, path in enumerate(ordered[1:], start=1):
        parent = index.get(path[:-1])
        if parent is None or (path[-1] > 0 and (*path[:-1], path[-1] - 1) not in index) or path[-1] < 0:
            raise ValueError(f"path {list(path)} of a tree shape needs its parent and its elder sibling in the shape")
        parents.append(parent)
        first[parent] = first[parent] or node
        counts[parent] += 1
    return Layout(tuple(ordered), tuple(parents), tuple(first), tuple(counts))


def tree_from_accuracy(accuracy: Sequence[Sequence[float]] | NDArray[np.floating], num_nodes: int) -> tuple[Path, ...]:
    """The shape of ``num_nodes`` draft tokens that accepts most under measured accuracies.

    The most there is where every row falls; accuracies of rare ranks may rise by chance, which costs next to nothing.

    Args:
        accuracy: accuracy[i][r] is how often the true token i + 1 places after the anchor had rank r in head i
            ([K, R], as ``rank_accuracy`` counts it). Not sorted here: a rank that does better than a likelier one
            is offered after it, because ``DraftSampler.pick_siblings`` hands out tokens in rank order.
    """
    rows = [np.asarray(row, dtype=np.float64) for row in accuracy]
    return tuple(grow(lambda path: rows[len(path)] if len(path) < len(rows) else (), num_nodes))


def rank_accuracy(ranks: NDArray[np.integer], num_ranks: int) -> NDArray[np.float64]:
    """How often the true token had each rank, float64 [K, ``num_ranks``].

    Args:
        ranks: int [n, K]; the rank of the true token among head k's logits at n calibration positions, 0 the
            likeliest; −1 where there is no true token (past the end), which is not counted.
    """
    counted = np.maximum((ranks >= 0).sum(axis=0), 1)
    hits = [(ranks == rank).sum(axis=0) for rank in range(num_ranks)]
    accuracy: NDArray[np.float64] = np.stack(hits, axis=1) / counted[:, None]
    return accuracy
