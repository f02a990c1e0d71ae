"""Tree shapes: best-first is best, prefixes are trees, and tokens go where the shape says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.tree_growth.best_first import grow, grow_from_marginals, value_of
from drafters.tree_growth.marginals import draft_from_marginals, stem_alone
from drafters.tree_growth.static import MEDUSA_63, layout, rank_accuracy, tree_from_accuracy
from spec_planner.decoding.draft_sampler import RunDraftSampler
from spec_planner.decoding.draft_tree import Proposal
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.random_stream import Purpose, RandomStream
from spec_planner.decoding.sampling import Law, SamplingParams

rows = st.lists(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4), min_size=1, max_size=3)


def sampler_of(temperature=0.0, rule="drafter-invariant", constraint=None):
    return RunDraftSampler(RULES[rule], SamplingParams(temperature, seed=2), RandomStream(2), constraint)


def closed(paths) -> bool:
    """Each path's parent and elder sibling come before it."""
    return all(
        (not path[:-1] or path[:-1] in paths[:i]) and (path[-1] == 0 or (*path[:-1], path[-1] - 1) in paths[:i])
        for i, path in enumerate(paths)
    )


@settings(deadline=None)
@given(marginals=rows, budget=st.integers(1, 12))
def test_best_first_finds_the_most_valuable_tree(marginals, budget):
    paths = grow_from_marginals(marginals, budget)
    ordered = [sorted(row, reverse=True) for row in marginals]
    values = sorted(
        (
            value_of(path, ordered)
            for depth in range(1, len(ordered) + 1)
            for path in itertools.product(*(range(len(row)) for row in ordered[:depth]))
        ),
        reverse=True,
    )
    # The best nodes of all are a tree by themselves, so nothing beats their sum.
    assert sum(value_of(path, ordered) for path in paths) == pytest.approx(sum(values[:budget]))
    assert len(paths) == min(budget, len(values)) and closed(paths)
    assert paths == grow_from_marginals(marginals, budget + 3)[: len(paths)]


def test_growth_asks_each_node_once_and_ends_where_there_is_nothing():
    asked = []

    def probabilities(path):
        asked.append(path)
        return [0.5, 0.25, 0.0] if len(path) < 2 else ()

    paths = grow(probabilities, 99)
    assert paths == [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]  # ties: the shorter path, then the lower ranks
    assert len(asked) == len(set(asked)) == 7
    assert grow(probabilities, 0) == [] and grow(lambda path: (), 5) == []


def test_the_published_tree():
    assert len(MEDUSA_63) == len(set(MEDUSA_63)) == 63 and closed(MEDUSA_63)
    depths = np.array([len(path) for path in MEDUSA_63])
    first = np.array([path[0] for path in MEDUSA_63])
    assert [int((depths == depth).sum()) for depth in range(1, 5)] == [10, 28, 23, 2]
    assert [int((first == rank).sum()) for rank in range(10)] == [33, 10, 5, 3, 2, 2, 2, 2, 2, 2]
    assert max(path[3] for path in MEDUSA_63 if len(path) == 4) == 1


@given(budget=st.integers(1, 63))
def test_layout_puts_siblings_side_by_side_and_parents_first(budget):
    shape = layout(MEDUSA_63[:budget])
    assert shape.paths[0] == () and len(shape.paths) == budget + 1
    for node, path in enumerate(shape.paths):
        children = [i for i, parent in enumerate(shape.parents) if parent == node]
        assert children == list(range(shape.first_child[node], shape.first_child[node] + shape.num_children[node]))
        assert [shape.paths[child] for child in children] == [(*path, rank) for rank in range(len(children))]


@pytest.mark.parametrize("paths", [[(0, 0)], [(1,)], [(0,), (0,)], [()], [(0,), (-1,)]])
def test_layout_refuses_what_is_no_tree(paths):
    with pytest.raises(ValueError, match="shape"):
        layout(paths)


def test_a_tree_from_measured_accuracy():
    ranks = np.array([[0, 0], [0, 1], [1, 0], [5, -1]])
    accuracy = rank_accuracy(ranks, 3)
    np.testing.assert_allclose(accuracy, [[0.5, 0.25, 0.0], [2 / 3, 1 / 3, 0.0]])
    # 1/2, 1/3, 1/4, then two of 1/6; ranks never seen are never tried
    assert tree_from_accuracy(accuracy, 5) == ((0,), (0, 0), (1,), (0, 1), (1, 0))
    assert len(tree_from_accuracy(accuracy, 99)) == 6


falling = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(
    lambda row: sorted((n / 10 for n in row), reverse=True)
)


@settings(deadline=None)
@given(accuracy=st.lists(falling, min_size=1, max_size=2), budget=st.integers(1, 5))
def test_no_tree_accepts_more_under_the_measured_accuracies(accuracy, budget):
    """Against every tree there is; a tree's worth is the expected number of accepted tokens."""
    trees = {frozenset()}
    for _ in range(budget):
        trees |= {
            tree | {path}
            for tree in trees
            for node in ((), *tree)
            for path in [(*node, rank) for rank in range(len(accuracy[len(node)]) if len(node) < len(accuracy) else 0)]
            if path not in tree and (path[-1] == 0 or (*node, path[-1] - 1) in tree)
        }
    worth = [sum(value_of(path, accuracy) for path in tree) for tree in trees]
    found = tree_from_accuracy(accuracy, budget)
    assert closed(found) and frozenset(found) in trees
    assert sum(value_of(path, accuracy) for path in found) == pytest.approx(max(worth))


def test_medusas_own_accuracies_give_a_tree_like_the_published_one():
    """Top-1 accuracies of Vicuna-7B's heads as published, lower ranks falling off by powers: the best node and the
    share of the depths agree."""
    accuracy = [[top * (rank + 1) ** -1.6 for rank in range(10)] for top in (0.56, 0.316, 0.201, 0.147)]
    paths = tree_from_accuracy(accuracy, 63)
    assert paths[0] == (0,) and closed(paths)
    counts = [sum(len(path) == depth for path in paths) for depth in range(1, 5)]
    assert counts[0] == 10 and counts[1] > counts[2] > counts[3]


def logits_of(depth: int, vocabulary: int = 20):
    return list(np.random.RandomState(1).standard_normal((depth, vocabulary)).astype(np.float32) * 2)


def test_a_likeliest_tree_holds_the_likeliest_tokens():
    logits = logits_of(3)
    order = [np.argsort(-row, kind="stable") for row in logits]
    for shape in (MEDUSA_63, "best-first"):
        tree = draft_from_marginals((7, 8), logits, 12, 30, sampler_of(), shape)
        assert tree.tokens[:2].tolist() == [7, 8] and tree.num_nodes == 14
        for node in range(2, 14):
            siblings = [n for n in range(2, 14) if tree.parents[n] == tree.parents[node]]
            assert tree.tokens[node] == order[tree.depths[node] - 2][siblings.index(node)]
    probabilities = [np.exp(row) / np.exp(row).sum() for row in logits]
    grown = set(layout(grow_from_marginals(probabilities, 12)).paths)
    tree = draft_from_marginals((7,), logits, 12, 30, sampler_of(), "best-first")
    ranks = {0: ()}
    for node in range(1, 13):
        rank = int(np.flatnonzero(order[tree.depths[node] - 1] == tree.tokens[node])[0])
        ranks[node] = (*ranks[int(tree.parents[node])], rank)
    assert set(ranks.values()) == grown


@pytest.mark.parametrize("shape", ["chain", "best-first", MEDUSA_63], ids=["chain", "best-first", "63"])
@pytest.mark.parametrize("rule", ["rejection", "recursive-rejection", "drafter-invariant", "point-mass"])
def test_tokens_come_from_the_recorded_laws(shape, rule):
    if RULES[rule].chains_only and shape != "chain":
        return
    tree = draft_from_marginals((7, 8), logits_of(3), 9, 30, sampler_of(1.0, rule), shape)
    assert tree.proposal is RULES[rule].drafting and tree.num_nodes == (5 if shape == "chain" else 11)
    if tree.proposal.needs_laws:
        assert tree.draft_laws[0].probability(8) == 1.0  # forced
        for node in range(1, tree.num_nodes):
            assert (tree.draft_laws[node] is None) == (not tree.children[node])
    if rule == "recursive-rejection":
        assert tree.proposal is Proposal.SAMPLED_WITHOUT_REPLACEMENT


@pytest.mark.parametrize("shape", ["chain", "best-first", MEDUSA_63], ids=["chain", "best-first", "63"])
def test_coupled_drafts_use_the_noise_of_their_own_position(shape):
    """So a drafter whose laws are the target's guesses what the target will draw."""
    logits, sampling = logits_of(3), SamplingParams(1.0, seed=2)
    tree = draft_from_marginals((7, 8), logits, 9, 30, sampler_of(1.0), shape)
    node = 1
    for depth in range(3):
        said = RandomStream(2).draw(Law.from_logits(logits[depth], sampling), Purpose.TARGET, 32 + depth)
        children = tree.children[node]
        assert not children or tree.tokens[children[0]] == said
        node = children[0] if children else node
    assert node > 1


class Even:
    """Even tokens after even ones; two choices only after token 4."""

    def allowed(self, tokens):
        mask = np.arange(20) % 2 == tokens[-1] % 2
        return mask & (np.arange(20) < 3) if tokens[-1] == 4 else mask

    def forced(self, tokens):
        return ()


@pytest.mark.parametrize("shape", ["chain", "best-first", MEDUSA_63], ids=["chain", "best-first", "63"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_constraint_holds_on_every_branch(shape, temperature):
    for anchor in (4, 5, 6):
        tree = draft_from_marginals((anchor,), logits_of(3), 12, 30, sampler_of(temperature, constraint=Even()), shape)
        for node in range(1, tree.num_nodes):
            assert Even().allowed([int(tree.tokens[tree.parents[node]])])[tree.tokens[node]]
        assert len(tree.children[0]) <= (2 if anchor == 4 else 12)


def test_the_stem_alone():
    for rule in ("rejection", "drafter-invariant", "recursive-rejection"):
        tree = stem_alone((3, 4), sampler_of(1.0, rule))
        assert tree.tokens.tolist() == [3, 4] and tree.proposal is RULES[rule].drafting
        assert draft_from_marginals((3, 4), [], 5, 0, sampler_of(1.0, rule)).tokens.tolist() == [3, 4]
