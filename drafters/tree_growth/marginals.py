"""A draft from laws that do not depend on each other: heads or slots that each predict one place ahead, all at once.

    stem      x(t) … x(t+m)         the anchor, and what a grammar forces
    row 0     predicts x(t+m+1)     whatever stands before it; row 1 predicts x(t+m+2); …

All nodes of one depth share a row, so a tree costs no more network passes than a chain. The shape is settled before
any token is drawn, from the rows and the context alone; so a tree drawn without replacement is as lawful as a chain,
and a likeliest-first tree is a fixed function of the context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Union

import numpy as np
from numpy.typing import NDArray

from spec_planner.decoding.contracts import DraftSampler
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.sampling import Law

from .best_first import Path, grow
from .static import layout

LawAfter = Callable[[tuple[int, ...]], Law]  # the tokens behind the stem → the law of the next
Shape = Union[Literal["chain", "best-first"], Sequence[Path]]  # noqa: UP007 (evaluated at run time, Python 3.10 style)


def stem_alone(stem: Sequence[int], sampler: DraftSampler) -> DraftTree:
    """The draft of a drafter that has no idea: the forced tokens, or plain decoding."""
    return sampler.tree(stem, range(-1, len(stem) - 1), [*map(Law.point, stem[1:]), None])


def draft_from_marginals(
    stem: Sequence[int],
    logits: Sequence[NDArray[np.float32]],
    budget: int,
    position: int,
    sampler: DraftSampler,
    shape: Shape = "chain",
) -> DraftTree:
    """A tree that begins with ``stem`` and goes on by at most ``budget`` tokens.

    Args:
        logits: logits[i], float32 [V], are for the token i + 1 places after the last of ``stem``.
        position: absolute position of the anchor.
        shape: a chain; rank paths, most valuable first (see ``static.py``), of which as many are used as the budget
            and the rows allow; or the paths that the rows themselves make likeliest (DDTree, 2604.12989).
    """
    laws: dict[tuple[int, ...], Law] = {}  # by the tokens that follow the stem

    def law_after(branch: tuple[int, ...]) -> Law:
        if branch not in laws:
            laws[branch] = sampler.law(logits[len(branch)], [*stem, *branch])
        return laws[branch]

    paths: Sequence[Path]
    if shape == "chain":
        paths = [(0,) * depth for depth in range(1, min(budget, len(logits)) + 1)]
    elif shape == "best-first":
        paths = _likeliest(law_after, len(logits), budget)
    else:
        paths = [path for path in shape if len(path) <= len(logits)][:budget]
    return _draw(stem, paths, law_after, position, sampler)


def _likeliest(law_after: LawAfter, num_rows: int, budget: int) -> list[Path]:
    """Best-first over the laws: rank r at a node means the r-th likeliest token there."""
    tokens: dict[Path, tuple[int, ...]] = {(): ()}  # path → the tokens along it
    ranked: dict[Path, NDArray[np.int64]] = {}

    def probabilities(path: Path) -> NDArray[np.float64] | tuple[()]:
        if path:
            tokens[path] = (*tokens[path[:-1]], int(ranked[path[:-1]][path[-1]]))
        if len(path) == num_rows:
            return ()
        law = law_after(tokens[path])
        order = np.argsort(-law.probabilities, kind="stable")[:budget]
        ranked[path] = law.ids[order]
        return law.probabilities[order]

    return grow(probabilities, budget)


def _draw(
    stem: Sequence[int], paths: Sequence[Path], law_after: LawAfter, position: int, sampler: DraftSampler
) -> DraftTree:
    """Fill the shape with tokens, level by level; where a law has too few tokens, what would hang there is left out."""
    tokens, parents = list(stem), list(range(-1, len(stem) - 1))
    recorded: dict[int, Law] = {node: Law.point(token) for node, token in enumerate(stem[1:])}
    shape = layout(paths)
    placed: dict[int, tuple[int, tuple[int, ...]]] = {0: (len(stem) - 1, ())}  # of the shape → (tree node, branch)
    for place, count in enumerate(shape.num_children):
        if count == 0 or place not in placed:
            continue
        node, branch = placed[place]
        law = recorded[node] = law_after(branch)
        depth, slot = len(stem) + len(branch), len(tokens)
        at = position + depth
        picked = [sampler.pick(law, at, slot)] if count == 1 else sampler.pick_siblings(law, count, at, slot)
        for rank, token in enumerate(picked):
            placed[shape.first_child[place] + rank] = (len(tokens), (*branch, token))
            tokens.append(token)
            parents.append(node)
    return sampler.tree(tokens, parents, [recorded.get(node) for node in range(len(tokens))])
