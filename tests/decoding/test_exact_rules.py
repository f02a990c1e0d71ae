"""Every exact rule follows the target's law exactly: all outcomes of up to three tokens, enumerated."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from spec_planner.certify import enumeration
from spec_planner.certify.enumeration import TableDrafter, outcome_law, total_variation
from spec_planner.decoding.accept import Acceptance, Rule
from spec_planner.decoding.contracts import Incompatible, PromptInput
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.draft_tree import DraftTree, Proposal
from spec_planner.decoding.exact_rules import RULES, get_rule, reject_and_resample
from spec_planner.decoding.loop import decode
from spec_planner.decoding.random_stream import Purpose
from spec_planner.decoding.sampling import Law, SamplingParams
from spec_planner.decoding.stopping import Stopping

from .toys import SHAPES, VOCABULARY, disjoint, logits_of, table_target

LENGTH = 3
PAIRS = {  # target logits, draft logits
    "sharp": (logits_of(1, 3.0), logits_of(2, 3.0)),
    "flat": (logits_of(3, 0.3), logits_of(4, 0.3)),
    "alike": (logits_of(5, 1.0), logits_of(5, 1.0)),
    "draft misses support": (logits_of(6, 1.0), disjoint(logits_of(7, 1.0), (0, 1))),
    "target misses support": (disjoint(logits_of(8, 1.0), (1, 2)), logits_of(9, 1.0)),
    "disjoint": (disjoint(logits_of(10, 1.0), (2,)), disjoint(logits_of(11, 1.0), (0, 1))),
}
SAMPLINGS = {
    "temperature": SamplingParams(0.8),
    "top-k": SamplingParams(1.0, top_k=2),
    "top-p": SamplingParams(1.3, top_p=0.7),
}


def speculative_law(of, draft_of, sampling, rule, shape):
    return enumeration.speculative_law(of, draft_of, VOCABULARY, sampling, rule, shape, LENGTH)


def true_law(of, sampling):
    return enumeration.target_law(of, sampling, LENGTH)


def _cases():
    for rule in RULES.values():
        for shape in SHAPES:
            if shape == "chain" or not rule.chains_only:
                yield pytest.param(rule, SHAPES[shape], id=f"{rule.name}-{shape}")


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize(("rule", "shape"), list(_cases()))
def test_output_follows_the_targets_law(rule, shape, pair, sampling):
    of, draft_of = pair
    got = speculative_law(of, draft_of, sampling, rule, shape)
    assert sum(got.values()) == pytest.approx(1.0, abs=1e-12)
    assert total_variation(got, true_law(of, sampling)) <= 1e-12


@pytest.mark.parametrize("shape", ["binary", "uneven"])
def test_recursive_rejection_is_exact_for_independent_siblings(shape):
    of, draft_of = PAIRS["flat"]
    for name in ("recursive-rejection", "traversal"):
        rule = dataclasses.replace(RULES[name], drafting=Proposal.SAMPLED_IID)
        got = speculative_law(of, draft_of, SamplingParams(1.0), rule, SHAPES[shape])
        assert total_variation(got, true_law(of, SamplingParams(1.0))) <= 1e-12


def _keep_everything(tree, laws, random, position) -> Acceptance:
    path = [0]
    while tree.children[path[-1]]:
        path.append(tree.children[path[-1]][0])
    return Acceptance(tuple(path), random.draw(laws(path[-1]), Purpose.TARGET, position + len(path)), "bonus")


def _resample_from_p(tree, laws, random, position) -> Acceptance:
    """Rejection that forgets to subtract q from p."""
    if not tree.num_draft_tokens:
        return Acceptance((0,), random.draw(laws(0), Purpose.TARGET, position + 1), "bonus")
    child, p = 1, laws(0)
    token = int(tree.tokens[child])
    if random.accepts(p.probability(token) / tree.draft_laws[0].probability(token), Purpose.ACCEPT, position):
        return Acceptance((0, 1), random.draw(laws(1), Purpose.TARGET, position + 2), "bonus")
    return Acceptance((0,), random.draw(p, Purpose.RESIDUAL, position), "correction")


@pytest.mark.parametrize("judge", [_keep_everything, _resample_from_p])
def test_a_wrong_rule_is_caught(judge):
    rule = Rule("wrong", judge, frozenset(Proposal), Proposal.SAMPLED_CHAIN)
    of, draft_of = PAIRS["sharp"]
    assert (
        total_variation(
            speculative_law(of, draft_of, SamplingParams(1.0), rule, (-1, 0)), true_law(of, SamplingParams(1.0))
        )
        > 0.01
    )


def test_a_mislabelled_draft_is_caught():
    """Top-k children judged as if drawn without replacement: the bias that the proposal label exists to prevent."""

    def unchecked(tree, laws, random, position):
        of = PAIRS["flat"][1]
        draft_laws = tuple(
            Law.from_logits(of((0,)), SamplingParams(1.0)) if tree.children[node] else None
            for node in range(tree.num_nodes)
        )
        lying = dataclasses.replace(tree, proposal=Proposal.SAMPLED_WITHOUT_REPLACEMENT, draft_laws=draft_laws)
        return reject_and_resample(lying, laws, random, position)

    rule = Rule("unchecked", unchecked, frozenset(Proposal), Proposal.POINT_MASS)
    of, draft_of = PAIRS["flat"]
    got = speculative_law(of, draft_of, SamplingParams(1.0), rule, SHAPES["binary"])
    assert total_variation(got, true_law(of, SamplingParams(1.0))) > 0.01


def test_block_and_traversal_keep_at_least_as_much_as_rejection():
    of, draft_of = PAIRS["flat"]

    def mean_kept(rule):
        def run(source):
            steps = decode(
                table_target(of),
                TableDrafter(draft_of, SHAPES["chain"]),
                PromptInput((0,)),
                SamplingParams(1.0),
                Stopping(9),
                dataclasses.replace(rule, drafting=Proposal.SAMPLED_CHAIN),
                budget=FixedBudget(63),
                random=source,
            )
            next(steps)  # the prefill's token
            return (next(steps).acceptance.num_accepted,)

        return sum(kept * weight for (kept,), weight in outcome_law(run).items())

    rejection, block, traversal = (mean_kept(RULES[name]) for name in ("rejection", "block", "traversal"))
    assert block > rejection + 1e-6
    assert traversal == pytest.approx(block, abs=1e-12)


def test_rules_refuse_what_they_are_not_exact_for():
    tree = DraftTree(np.array([0, 1, 2]), np.array([-1, 0, 0]))

    def law(node):
        return Law.of([1, 1, 1])

    with pytest.raises(Incompatible, match="not exact for point_mass drafts"):
        RULES["recursive-rejection"](tree, law, None, 0)
    with pytest.raises(Incompatible, match="chains only"):
        RULES["rejection"](tree, law, None, 0)
    with pytest.raises(Incompatible, match="not exact for coupled"):
        RULES["point-mass"](DraftTree.chain((0, 1), Proposal.COUPLED), law, None, 0)
    with pytest.raises(Incompatible, match="choose one of drafter-invariant"):
        get_rule("typical")
