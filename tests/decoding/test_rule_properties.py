"""Every rule on whatever tree and law comes: it ends, stays in the tree, and never says the impossible."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spec_planner.certify.enumeration import TableDrafter, speculative_law, total_variation
from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.draft_tree import DraftTree, Proposal
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.random_stream import RandomStream
from spec_planner.decoding.relaxed import RELAXED_RULES
from spec_planner.decoding.sampling import Law, SamplingParams
from spec_planner.decoding.stopping import Stopping

from .toys import SHAPES, logits_of, table_target

VOCABULARY = 6
ALL_RULES = {**RULES, **{name: make() for name, make in RELAXED_RULES.items()}}

weights = st.one_of(
    st.lists(st.sampled_from([0.0, 1e-300, 1e-12, 0.2, 1.0, 50.0]), min_size=VOCABULARY, max_size=VOCABULARY).filter(
        any
    ),
    st.integers(0, VOCABULARY - 1).map(lambda token: np.eye(VOCABULARY)[token].tolist()),  # one mass
)
laws = weights.map(Law.of)


@st.composite
def drafted_trees(draw, proposal: Proposal, chain: bool) -> DraftTree:
    """A tree that its label allows: sampled kinds hold tokens their laws can yield, siblings as the kind demands."""
    n = draw(st.integers(1, 7))
    tokens, parents, node_laws = [draw(st.integers(0, VOCABULARY - 1))], [-1], {}
    for node in range(1, n):
        parent = node - 1 if chain else draw(st.integers(0, node - 1))
        law = node_laws.setdefault(parent, draw(laws))
        possible = law.ids.tolist() if proposal.needs_laws else list(range(VOCABULARY))
        if proposal is Proposal.SAMPLED_WITHOUT_REPLACEMENT:
            taken = [token for token, other in zip(tokens, parents, strict=True) if other == parent]
            possible = [token for token in possible if token not in taken]
        assume(possible)
        tokens.append(draw(st.sampled_from(possible)))
        parents.append(parent)
    recorded = tuple(node_laws.get(node) for node in range(n)) if proposal.needs_laws else ()
    return DraftTree(np.array(tokens), np.array(parents), proposal, recorded)


@pytest.mark.parametrize("name", ALL_RULES)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**62), position=st.integers(0, 5000))
def test_a_rule_stays_in_the_tree_and_on_the_support(name, data, seed, position):
    rule = ALL_RULES[name]
    proposal = data.draw(st.sampled_from(sorted(rule.proposals, key=lambda kind: kind.value)))
    tree = data.draw(drafted_trees(proposal, rule.chains_only or proposal is Proposal.SAMPLED_CHAIN))
    target_laws = {}

    def law(node):
        return target_laws.setdefault(node, data.draw(laws))

    with np.errstate(all="raise", under="ignore"):
        acceptance = rule(tree, law, RandomStream(seed), position)
    tree.check_path(acceptance.path)
    for parent, node in zip(acceptance.path, acceptance.path[1:], strict=False):
        assert law(parent).probability(int(tree.tokens[node])) > 0
    assert law(acceptance.path[-1]).probability(acceptance.next_token) > 0
    assert acceptance.kind == ("correction" if tree.children[acceptance.path[-1]] else "bonus")


logits = st.lists(
    st.one_of(st.floats(-60, 60, width=32), st.just(-np.inf)), min_size=VOCABULARY, max_size=VOCABULARY
).filter(lambda row: any(np.isfinite(row)))


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(logits, min_size=3, max_size=3),
    temperature=st.sampled_from([0.0, 0.01, 1.0, 20.0]),
    top_k=st.integers(0, 4),
    top_p=st.sampled_from([0.2, 0.9, 1.0]),
    seed=st.integers(0, 99),
)
def test_a_run_never_says_what_the_target_cannot(name, rows, temperature, top_k, top_p, seed):
    rule = RULES[name]
    table = [np.array(row, dtype=np.float32) for row in rows]

    def of(context):
        return table[sum(context) % 3]

    sampling = SamplingParams(temperature, top_k, top_p, seed)
    drafter = TableDrafter(logits_of(seed, 2.0, VOCABULARY), SHAPES["chain" if rule.chains_only else "uneven"])
    context = [1]
    steps = decode(
        table_target(of, VOCABULARY), drafter, PromptInput((1,)), sampling, Stopping(12), rule, budget=FixedBudget(9)
    )
    for step in steps:
        for token in step.tokens:
            assert Law.from_logits(of(tuple(context)), sampling).probability(token) > 0
            context.append(token)
    assert len(context) == 13


class NoTwiceInARow:
    """A constraint that depends on what was said: the last token may not be repeated, and 0 never comes first.

    What it calls forced is only likely, and after 2 not even allowed: a stem is a guess, and rules must hold for it.
    """

    def allowed(self, tokens):
        mask = np.ones(3, dtype=bool)
        mask[tokens[-1] if tokens else 0] = False
        return mask

    def forced(self, tokens):
        return {1: (0, 2), 2: (2,)}.get(tokens[-1], ()) if tokens else (1,)


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for name, rule in RULES.items() for shape in SHAPES if shape == "chain" or not rule.chains_only],
)
def test_a_constrained_run_follows_the_constrained_law(name, shape):
    rule = RULES[name]
    of, draft_of, sampling = logits_of(3, 1.0), logits_of(4, 1.0), SamplingParams(1.0)
    got = speculative_law(of, draft_of, 3, sampling, rule, SHAPES[shape], 3, NoTwiceInARow())
    expected = {(): 1.0}
    for _ in range(3):
        expected = {
            (*tokens, token): weight * law.probability(token)
            for tokens, weight in expected.items()
            for law in [Law.from_logits(of((0, *tokens)), sampling, NoTwiceInARow().allowed(tokens))]
            for token in law.ids.tolist()
        }
    assert total_variation(got, expected) <= 1e-12


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_constrained_tokens_are_the_same_with_and_without_a_drafter(temperature):
    def run(drafter):
        steps = decode(
            table_target(logits_of(3, 2.0)),
            drafter,
            PromptInput((0,)),
            SamplingParams(temperature, seed=5),
            Stopping(40),
            RULES["drafter-invariant"],
            budget=FixedBudget(9),
            constraint=NoTwiceInARow(),
        )
        return [token for step in steps for token in step.tokens]

    plain = run(None)
    assert run(TableDrafter(logits_of(3, 2.0), SHAPES["binary"])) == plain
    assert all(a != b for a, b in zip(plain, plain[1:], strict=False)) and plain[0] != 0
