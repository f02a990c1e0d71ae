"""Trees that a drafter grows level by level, for drafters that run a network on every node that gets children.

``grow_likeliest`` is EAGLE-2 (2406.16858): on each level the ``top_k`` likeliest nodes get ``top_k`` children each, and
of all nodes the ``budget`` likeliest are kept. A node's value is the product of draft probabilities along its path, the
chance that all of it is right. *Which* nodes are kept depends on the tokens drawn, so such a tree must never be judged
by a rule that reads the draft laws: fine for matching and for point masses, biased for rejection.

``grow_shape`` fills a shape that was decided before any token was drawn, and records the law of each node: fine for
every rule. A chain is the shape of one branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spec_planner.decoding.contracts import DraftSampler
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.sampling import Law

from .best_first import Path, grow_from_marginals
from .static import layout

# (tokens, parents) of the next level → logits [V] after each; a parent is the number of an earlier row, −1 the stem.
Expand = Callable[[Sequence[int], Sequence[int]], Sequence[NDArray[np.float32]]]

# How often a draft's best, second, … guess is right, roughly: decides only the shape of trees that are sampled.
_RANK_VALUES = (0.6, 0.18, 0.08, 0.05, 0.03, 0.02, 0.01, 0.01, 0.01, 0.01)


@dataclass(frozen=True)
class Start:
    """Where a draft begins: ``stem`` is given, its anchor stands at ``position``, and ``logits`` [V] follow its end."""

    stem: Sequence[int]
    position: int
    logits: NDArray[np.float32]


@dataclass
class _Node:
    token: int
    parent: int  # index among the candidates; −1: the stem's last token
    depth: int  # 1: follows the stem
    score: float  # log-probability of the path
    row: int = -1  # its row in ``expand``, where it was run


def grow_likeliest(
    start: Start, budget: int, top_k: int, depth: int, expand: Expand, sampler: DraftSampler
) -> DraftTree:
    """The ``budget`` likeliest nodes of a tree of at most ``depth`` levels behind the stem; ties go to the elder node.

    Nodes that can no longer be among them are not run: a child is never worth more than its parent.
    """
    nodes: list[_Node] = []
    base = start.position + len(start.stem) - 1

    def branch(index: int) -> list[int]:
        tokens: list[int] = []
        while index >= 0:
            tokens.append(nodes[index].token)
            index = nodes[index].parent
        return [*start.stem, *reversed(tokens)]

    def add_children(parent: int, logits: NDArray[np.float32]) -> None:
        level, score = (nodes[parent].depth + 1, nodes[parent].score) if parent >= 0 else (1, 0.0)
        law = sampler.law(logits, branch(parent))
        for token in sampler.pick_siblings(law, min(top_k, budget), base + level, len(start.stem) + len(nodes)):
            nodes.append(_Node(token, parent, level, score + math.log(law.probability(token))))

    def likeliest() -> list[int]:
        return sorted(range(len(nodes)), key=lambda i: (-nodes[i].score, i))[:budget]

    add_children(-1, start.logits)
    rows = 0
    for level in range(1, depth):
        frontier = [i for i in likeliest() if nodes[i].depth == level][:top_k]
        if not frontier:
            break
        parents = [nodes[nodes[i].parent].row if nodes[i].parent >= 0 else -1 for i in frontier]
        logits = expand([nodes[i].token for i in frontier], parents)
        for i, row in zip(frontier, logits, strict=True):
            nodes[i].row, rows = rows, rows + 1
            add_children(i, row)
    kept = sorted(likeliest())
    place = {-1: len(start.stem) - 1} | {i: len(start.stem) + n for n, i in enumerate(kept)}
    tokens = [*start.stem, *(nodes[i].token for i in kept)]
    parents = [*range(-1, len(start.stem) - 1), *(place[nodes[i].parent] for i in kept)]
    return sampler.tree(tokens, parents, [None] * len(tokens))


def grow_shape(start: Start, shape: Sequence[Path], expand: Expand, sampler: DraftSampler) -> DraftTree:
    """Fill ``shape`` (rank paths below the stem, see ``static.layout``) with tokens drawn from recorded laws.

    Where a law has fewer tokens than the shape has children, these children and what is below them are left out.
    """
    plan = layout(shape)
    tokens, parents = list(start.stem), list(range(-1, len(start.stem) - 1))
    laws: list[Law | None] = [*map(Law.point, start.stem[1:]), None]
    base = start.position + len(start.stem) - 1
    branches = {0: list(start.stem)}  # node of the plan → ids from the anchor to it
    places, rows = {0: len(start.stem) - 1}, {0: -1}  # node of the plan → node of the tree; → row in ``expand``
    level, logits = [0], [start.logits]
    while level:
        for node, row in zip(level, logits, strict=True):
            law = sampler.law(row, branches[node])
            laws[places[node]] = law
            position = base + len(plan.paths[node]) + 1
            picked = sampler.pick_siblings(law, plan.num_children[node], position, len(tokens))
            for child, token in enumerate(picked, start=plan.first_child[node]):
                branches[child], places[child] = [*branches[node], token], len(tokens)
                tokens.append(token)
                parents.append(places[node])
                laws.append(None)
        depth = len(plan.paths[level[0]]) + 1
        level = [node for node in places if len(plan.paths[node]) == depth and plan.num_children[node]]
        if level:
            run = len(rows) - 1
            logits = list(expand([branches[n][-1] for n in level], [rows[plan.parents[n]] for n in level]))
            rows |= {node: run + i for i, node in enumerate(level)}
    return sampler.tree(tokens, parents, laws)


def chain_shape(length: int) -> tuple[Path, ...]:
    """One branch of ``length`` tokens."""
    return tuple((0,) * depth for depth in range(1, length + 1))


def sampled_shape(budget: int, top_k: int, depth: int) -> tuple[Path, ...]:
    """A shape of ``budget`` nodes, at most ``top_k`` children each and ``depth`` levels, for trees that are sampled."""
    return tuple(grow_from_marginals([_RANK_VALUES[:top_k]] * min(depth, budget), budget))
