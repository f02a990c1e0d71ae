"""Prompt lookup beside a model: who drafts when, how two trees become one, and what rule may judge it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.draft_model import ModelDrafter
from drafters.graft import GraftedDrafter, grafted
from drafters.lookup import LookupDrafter
from spec_planner.decoding.contracts import Incompatible, PromptInput
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.draft_sampler import RunDraftSampler
from spec_planner.decoding.draft_tree import DraftTree, Proposal
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.random_stream import RandomStream
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.decoding.stopping import Stopping
from spec_planner.engines.table_target import TableTarget
from tests.decoding.toys import logits_of

VOCABULARY = 12
SEEN = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]  # followed by 4: "1 2 3 4" stood before
NEW = [1, 2, 3, 4, 5, 6, 7, 9, 8, 3]


def sampler(rule: str = "drafter-invariant", temperature: float = 0.0) -> RunDraftSampler:
    return RunDraftSampler(RULES[rule], SamplingParams(temperature), RandomStream(0))


def drafter(trees: bool, seed: int = 2) -> GraftedDrafter:
    model = ModelDrafter(TableTarget(logits_of(seed, 2.0, VOCABULARY), VOCABULARY), siblings=3 if trees else 1)
    return GraftedDrafter(LookupDrafter(), model, trees)


def branches(tree: DraftTree) -> set[tuple[int, ...]]:
    """The tokens on the way to every node."""
    return {tuple(tree.tokens[tree.ancestor_mask[node]].tolist()) for node in range(tree.num_nodes)}


def test_a_chain_is_copied_where_much_was_seen_before_and_guessed_elsewhere():
    both = drafter(trees=False)
    alone = ModelDrafter(TableTarget(logits_of(2, 2.0, VOCABULARY), VOCABULARY))
    for context, copies in ((SEEN, True), (NEW, False)):
        both.truncate(0)
        alone.truncate(0)
        both.observe(context, None)
        alone.observe(context, None)
        tokens = both.draft((4,), 3, sampler()).tokens.tolist()
        guess = alone.draft((4,), 3, sampler()).tokens.tolist()
        assert tokens == ([4, 5, 6, 7] if copies else guess) and guess != [4, 5, 6, 7]


def test_a_tree_holds_both_and_keeps_to_the_budget():
    both = drafter(trees=True)
    both.observe(SEEN, None)
    tree = both.draft((4,), 6, sampler())
    assert {(4, 5), (4, 5, 6), (4, 5, 6, 7)} <= branches(tree)
    model = ModelDrafter(TableTarget(logits_of(2, 2.0, VOCABULARY), VOCABULARY), siblings=3)
    model.observe(SEEN, None)
    assert branches(model.draft((4,), 3, sampler())) <= branches(tree)
    assert tree.num_draft_tokens == 5 and tree.proposal is Proposal.POINT_MASS  # 3 and 3, but 5 is a guess of both
    assert both.draft((4,), 1, sampler()).tokens.tolist() == [4, 5]  # no room for both: what was seen


def test_drafts_of_the_targets_own_noise_stay_labelled_so():
    both = drafter(trees=True)
    both.observe(SEEN, None)
    assert both.draft((4,), 6, sampler(temperature=1.0)).proposal is Proposal.COUPLED
    with pytest.raises(Incompatible, match="lookup.draft-model' has no law"):
        both.draft((4,), 6, sampler("recursive-rejection", 1.0))


@st.composite
def trees(draw) -> DraftTree:
    """Below the stem 0 1, siblings distinct."""
    tokens, parents = [0, 1], [-1, 0]
    for _ in range(draw(st.integers(0, 8))):
        parent, token = draw(st.integers(1, len(tokens) - 1)), draw(st.integers(0, 3))
        if (parent, token) not in set(zip(parents, tokens, strict=True)):
            parents.append(parent)
            tokens.append(token)
    return DraftTree(np.array(tokens), np.array(parents))


@given(trees(), trees())
def test_two_trees_become_their_union_with_nothing_twice(tree, scion):
    whole = grafted(tree, scion)
    assert branches(whole) == branches(tree) | branches(scion) and whole.num_nodes == len(branches(whole))
    assert whole.tokens[: tree.num_nodes].tolist() == tree.tokens.tolist()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 99), temperature=st.sampled_from([0.0, 1.0]), wide=st.booleans(), budget=st.integers(1, 7),
    rule=st.sampled_from(["drafter-invariant", "point-mass"]),
)  # fmt: skip
def test_no_token_changes(seed, temperature, wide, budget, rule):
    """Lookup finds much in an answer of few distinct tokens. point-mass keeps the tokens at temperature 0."""

    def run(drafting):
        target = TableTarget(logits_of(seed, 3.0, VOCABULARY), VOCABULARY)
        sampling = SamplingParams(temperature if rule == "drafter-invariant" else 0.0, seed=seed)
        steps = decode(
            target, drafting, PromptInput((*SEEN, 4, 5)), sampling, Stopping(40), RULES[rule], FixedBudget(budget)
        )
        return [token for step in steps for token in step.tokens]

    assert run(drafter(wide, seed)) == run(None)
