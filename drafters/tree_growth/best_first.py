"""Which nodes a draft tree gets, likeliest first: the best tree of its size under a product of probabilities.

A node is named by its *path*, the ranks from the root down: (0,) is the likeliest first token, (0, 1) the second
likeliest after it. Its value is the product of the probabilities along the path, the chance that all of it is right.
A child is worth no more than its parent, nor a rank more than the one before, so taking the most valuable node whose
parent and elder sibling are there already, again and again, yields the tree with the largest sum of values, which is
the expected number of accepted tokens (DDTree, 2604.12989; the search for Medusa's sparse tree, 2401.10774, is the
same with measured accuracies for probabilities). Every prefix of the answer is itself the best tree of its size.

Pure functions of numbers; no tokens, no networks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Path = tuple[int, ...]


def grow(probabilities: Callable[[Path], Sequence[float] | NDArray[np.floating]], budget: int) -> list[Path]:
    """The ``budget`` most valuable paths, most valuable first; fewer where nothing else has a chance.

    Args:
        probabilities: of the children of a node, by rank, descending; empty where the tree must end. Called once for
            each node that is taken, parents first, the root (the empty path) included. Ties go to the shorter path,
            then to the lower ranks, so the answer is a function of the probabilities alone.
        budget: nodes besides the root.
    """
    if budget < 1:
        return []
    taken: list[Path] = []
    waiting: list[tuple[float, int, Path, float, Sequence[float] | NDArray[np.floating]]] = []

    def offer(parent: Path, rank: int, value: float, row: Sequence[float] | NDArray[np.floating]) -> None:
        """Put the child of ``parent``, itself worth ``value``, with ``rank`` in its ``row`` on the heap."""
        if rank < len(row) and value * row[rank] > 0:
            path = (*parent, rank)
            heapq.heappush(waiting, (-value * float(row[rank]), len(path), path, value, row))

    offer((), 0, 1.0, probabilities(()))
    while waiting:
        worth, _, path, parent_value, row = heapq.heappop(waiting)
        taken.append(path)
        if len(taken) == budget:
            break
        offer(path[:-1], path[-1] + 1, parent_value, row)
        offer(path, 0, -worth, probabilities(path))
    return taken


def grow_from_marginals(marginals: Sequence[Sequence[float]] | NDArray[np.floating], budget: int) -> list[Path]:
    """``grow`` where a depth has one row for all its nodes: marginals[i] are the probabilities at depth i + 1.

    Each row is sorted here; rank 0 is its largest entry.
    """
    rows = [np.sort(np.asarray(row, dtype=np.float64))[::-1] for row in marginals]
    return grow(lambda path: rows[len(path)] if len(path) < len(rows) else (), budget)


def value_of(path: Path, rows: Sequence[Sequence[float]] | NDArray[np.floating]) -> float:
    """The product of rows[i][path[i]]: the chance that every token of ``path`` is right."""
    value = 1.0
    for depth, rank in enumerate(path):
        value *= float(rows[depth][rank])
    return value
