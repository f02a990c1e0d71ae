"""The drafters that need no training: what they guess, and that the target's tokens never change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.draft_model import ModelDrafter
from drafters.lookup import LookupDrafter
from drafters.registry import DRAFTERS, drafter_class
from spec_planner.decoding.contracts import Drafter, PromptInput
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.draft_sampler import RunDraftSampler
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.random_stream import RandomStream
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.decoding.stopping import Stopping
from spec_planner.engines.table_target import TableTarget
from tests.decoding.toys import logits_of

VOCABULARY = 41
GREEDY = RunDraftSampler(RULES["drafter-invariant"], SamplingParams(), RandomStream(0))


def lookup(ids, anchor, budget, **sizes):
    drafter = LookupDrafter(**sizes)
    drafter.observe(ids, None)
    return drafter.draft((anchor,), budget, GREEDY).tokens.tolist()


def test_registry_names_classes_that_draft():
    assert all(isinstance(drafter_class(name), type) and drafter_class(name).name == name for name in DRAFTERS)
    assert isinstance(LookupDrafter(), Drafter)


def test_lookup_copies_what_followed_the_longest_latest_match():
    assert lookup([1, 2, 3, 4, 5, 1, 2, 3], 4, 2) == [4, 5, 1]
    assert lookup([9, 2, 3, 7, 8, 2, 3, 6, 5], 9, 4, min_ngram=1) == [9, 2, 3, 7, 8]
    assert lookup([1, 2, 9, 1, 2, 8, 1], 2, 1) == [2, 8]  # the latest of two
    assert lookup([5, 1, 2, 9, 1, 2, 8, 5, 1], 2, 1) == [2, 9]  # a longer match beats a later one
    assert lookup([1, 2, 3], 7, 5) == [7]
    assert lookup([], 7, 5) == [7]


def test_lookup_continues_a_loop_past_its_own_end():
    assert lookup([1, 2, 1, 2, 1], 2, 5) == [2, 1, 2, 1, 2, 1]
    assert lookup([7, 7], 7, 4) == [7] * 5


@given(
    ids=st.lists(st.integers(0, 3), max_size=30),
    anchor=st.integers(0, 3),
    budget=st.integers(1, 9),
    cut=st.integers(0, 30),
)
def test_lookup_depends_on_the_context_alone(ids, anchor, budget, cut):
    drafter = LookupDrafter()
    drafter.observe([3, 2, 1, 0, *ids], None)
    drafter.truncate(0)
    drafter.observe([*ids, 1, 1, 2], None)
    drafter.truncate(min(cut, len(ids)))
    expected = lookup(ids[:cut], anchor, budget)
    assert drafter.draft((anchor,), budget, GREEDY).tokens.tolist() == expected
    assert len(expected) in (1, budget + 1)


def run(target, drafter, prompt, sampling, rule, budget, length=25):
    steps = list(
        decode(target, drafter, PromptInput(prompt), sampling, Stopping(length), RULES[rule], FixedBudget(budget))
    )
    return [token for step in steps for token in step.tokens], steps


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999),
    temperature=st.sampled_from([0.0, 0.3, 1.0]),
    other=st.sampled_from([0, 7]),
    budget=st.integers(1, 6),
    siblings=st.integers(1, 3),
    net_context=st.sampled_from([20, 4096]),
    prompt_length=st.sampled_from([1, 5, 60]),
)
def test_model_drafter_never_changes_a_token(seed, temperature, other, budget, siblings, net_context, prompt_length):
    prompt = tuple(int(token) for token in (logits_of(seed, 9.0, prompt_length)((1,)) % VOCABULARY).astype(int))
    target = TableTarget(logits_of(seed, 2.0, VOCABULARY), VOCABULARY)
    drafter = ModelDrafter(
        TableTarget(logits_of(seed + other, 2.0, VOCABULARY), VOCABULARY, context_length=net_context)
    )
    sampling = SamplingParams(temperature, seed=seed)
    plain, _ = run(target, None, prompt, sampling, "drafter-invariant", budget)
    for _ in range(2):  # a second run starts from the state of the first
        drafted, steps = run(target, drafter, prompt, sampling, "drafter-invariant", budget)
        assert drafted == plain
        if not other and net_context == 4096 and budget >= siblings:  # a perfect, coupled drafter is always believed
            assert all(step.acceptance.kind == "bonus" for step in steps if step.acceptance)


@pytest.mark.parametrize("rule", ["rejection", "block", "traversal", "recursive-rejection"])
def test_a_perfect_draft_model_is_always_believed(rule):
    of = logits_of(4, 2.0, VOCABULARY)
    drafter = ModelDrafter(TableTarget(of, VOCABULARY))
    _, steps = run(TableTarget(of, VOCABULARY), drafter, (1, 2), SamplingParams(1.0, seed=3), rule, 4)
    assert all(step.acceptance.num_accepted == step.metrics.num_drafted for step in steps if step.acceptance)


def test_model_drafter_feeds_each_token_once():
    fed = []

    class Counting(TableTarget):
        def extend(self, prompt):
            fed.extend(prompt.ids)
            return super().extend(prompt)

    of = logits_of(4, 2.0, VOCABULARY)
    drafter = ModelDrafter(Counting(of, VOCABULARY))
    prompt = tuple(range(40))
    tokens, _ = run(TableTarget(of, VOCABULARY), drafter, prompt, SamplingParams(), "drafter-invariant", 4, length=26)
    assert tuple(fed[:40]) == prompt
    # Drafts of 4 always accepted, so per cycle: 4 draft passes and the last draft fed with the next anchor.
    assert len(fed) <= 40 + 26


def test_lookup_branches_share_beginnings_and_budget():
    drafter = LookupDrafter(min_ngram=1, branches=2)
    drafter.observe([1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 1, 2, 3], None)
    # "…3 6 7 1" and "…3 4 5 1" both followed 1 2 before
    drafter.truncate(12)
    tree = drafter.draft((3,), 6, GREEDY)
    assert tree.tokens.tolist() == [3, 6, 7, 1, 4, 5, 1]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 0, 4, 5]


@given(ids=st.lists(st.integers(0, 3), max_size=40), budget=st.integers(1, 9), branches=st.integers(1, 4))
def test_lookup_trees_keep_to_the_budget_and_contain_the_best_guess(ids, budget, branches):
    drafter = LookupDrafter(branches=branches)
    drafter.observe(ids, None)
    tree = drafter.draft((1,), budget, GREEDY)
    assert tree.num_draft_tokens <= budget
    siblings = [[int(tree.tokens[child]) for child in children] for children in tree.children]
    assert all(len(set(tokens)) == len(tokens) <= branches for tokens in siblings)
    chain = lookup(ids, 1, budget)
    assert len(chain) == 1 or tree.tokens[1] == chain[1]


def test_a_comb_holds_the_runners_up_beside_the_chain():
    of = logits_of(4, 2.0, VOCABULARY)
    drafter = ModelDrafter(TableTarget(of, VOCABULARY), siblings=3)
    drafter.observe((1, 2, 3), None)
    tree = drafter.draft((4,), 9, GREEDY)
    assert tree.parents.tolist() == [-1, 0, 0, 0, 1, 1, 1, 4, 4, 4]
    assert tree.tokens[1:4].tolist() == (-of((1, 2, 3, 4))).argsort()[:3].tolist()
