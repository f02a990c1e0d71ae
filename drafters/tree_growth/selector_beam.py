"""Which nodes a draft tree gets where the law of a token depends on the tokens before it: a beam.

Level by level the ``width`` likeliest branches are asked what may follow; of all the tokens seen on the way the
``budget`` likeliest, by the product of probabilities along the branch, make the tree. A branch outside the beam can
still end in the tree as a leaf. With a beam as wide as the budget this is ``best_first.grow``, the best tree there is;
a narrow one asks for far fewer laws: at most 1 + width · (depth − 1), instead of budget + 1.

The answer is a shape (see ``static.py``): how many children each place has. It is settled before a token is drawn, and
tokens are then drawn place by place from the recorded law of the branch that really stands there. So the tree is lawful
however the sampler draws: nothing that was drawn is ever left out because of what it is, which is what would bias it.

Pure functions of numbers; no tokens' meaning, no networks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from spec_planner.decoding.sampling import Law

from .best_first import Path

Branch = tuple[int, ...]  # tokens after the stem
_Node = tuple[float, Path, Branch]  # −value, …


def grow_beam(law_after: Callable[[Branch], Law], depth: int, width: int, budget: int) -> list[Path]:
    """At most ``budget`` rank paths, most valuable first; ties go to the shorter path, then to the lower ranks.

    Args:
        law_after: the law of the token that follows a branch; asked once for each branch in the beam, () first.
        depth: the longest branch that has a law is one token shorter than this.
        width: branches that are followed per level.
    """
    if budget < 1 or depth < 1:
        return []
    beam: list[_Node] = [(-1.0, (), ())]
    best: list[tuple[float, int, Path]] = []  # the budget's worth of nodes so far, most valuable first
    for level in range(1, depth + 1):
        seen = [child for node in beam for child in _children(node, law_after, budget)]
        best = heapq.nsmallest(budget, [*best, *((value, level, path) for value, path, _ in seen)])
        # A branch that is no better than the worst node of a full tree has no child that would enter it.
        worst = best[-1][0] if len(best) == budget else 0.0
        beam = [node for node in heapq.nsmallest(width, seen) if node[0] < worst]
        if not beam:
            break
    return [path for _, _, path in best]


def _children(node: _Node, law_after: Callable[[Branch], Law], most: int) -> list[_Node]:
    """The likeliest tokens after a node; of equal ones the lower id comes first."""
    value, path, branch = node
    law = law_after(branch)
    count = min(most, len(law.ids))
    top = np.arange(len(law.ids))
    if count < len(top):  # sort few
        least = np.partition(law.probabilities, -count)[-count]
        top = top[law.probabilities >= least]
    top = top[np.argsort(-law.probabilities[top], kind="stable")][:count]
    return [
        (value * float(law.probabilities[index]), (*path, rank), (*branch, int(law.ids[index])))
        for rank, index in enumerate(top)
    ]
