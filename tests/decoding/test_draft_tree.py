from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_planner.decoding.draft_tree import DraftTree, Proposal
from spec_planner.decoding.sampling import Law


@st.composite
def trees(draw, max_nodes: int = 12, vocabulary: int = 5) -> DraftTree:
    n = draw(st.integers(1, max_nodes))
    parents = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, n)]
    tokens = draw(st.lists(st.integers(0, vocabulary - 1), min_size=n, max_size=n))
    return DraftTree(np.array(tokens), np.array(parents))


@given(trees())
def test_mask_depths_and_children_say_the_same(tree):
    for node in range(tree.num_nodes):
        ancestors, walk = {node}, node
        while walk > 0:
            walk = int(tree.parents[walk])
            ancestors.add(walk)
        assert set(np.flatnonzero(tree.ancestor_mask[node])) == ancestors
        assert tree.depths[node] == len(ancestors) - 1
        assert all(tree.parents[child] == node for child in tree.children[node])
    assert sum(map(len, tree.children)) == tree.num_draft_tokens


@given(trees())
def test_only_root_paths_are_paths(tree):
    path = [0]
    while tree.children[path[-1]]:
        path.append(tree.children[path[-1]][-1])
        tree.check_path(path)
    with pytest.raises(ValueError, match="starts at the root"):
        tree.check_path(path[1:])
    if tree.num_nodes > 1:
        with pytest.raises(ValueError, match="does not follow the tree"):
            tree.check_path([*path, path[-1]])


@pytest.mark.parametrize("parents", [(), (0,), (-1, 1), (-1, -1), (-1, 2, 1), (-1, 0, 3)])
def test_arrays_that_are_no_tree_are_refused(parents):
    with pytest.raises(ValueError, match="parent"):
        DraftTree(np.zeros(len(parents), dtype=np.int64), np.array(parents, dtype=np.int64))
    with pytest.raises(ValueError, match="one parent per token"):
        DraftTree(np.zeros(len(parents) + 1, dtype=np.int64), np.array(parents, dtype=np.int64))


def test_a_sampled_tree_needs_the_laws_that_made_it():
    law = Law.of([0, 1, 1])
    DraftTree.chain((0, 1, 2), Proposal.SAMPLED_CHAIN, (law, law))
    with pytest.raises(ValueError, match="could not yield"):
        DraftTree.chain((0, 1, 0), Proposal.SAMPLED_CHAIN, (law, law))
    with pytest.raises(ValueError, match="one draft law"):
        DraftTree.chain((0, 1, 2), Proposal.SAMPLED_CHAIN, (law,))
    with pytest.raises(ValueError, match="carry no draft laws"):
        DraftTree(np.array([0, 1]), np.array([-1, 0]), Proposal.POINT_MASS, (law, None))
    with pytest.raises(ValueError, match="cannot branch"):
        DraftTree(np.array([0, 1, 2]), np.array([-1, 0, 0]), Proposal.SAMPLED_CHAIN, (law, None, None))
    with pytest.raises(ValueError, match="cannot hold the same token"):
        DraftTree(np.array([0, 1, 1]), np.array([-1, 0, 0]), Proposal.SAMPLED_WITHOUT_REPLACEMENT, (law, None, None))
