"""Typical acceptance does what Medusa describes, says that it is inexact, and is measurably off."""

from __future__ import annotations

import numpy as np
import pytest

from spec_planner.certify.enumeration import TableDrafter, speculative_law, target_law, total_variation
from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.metrics import summarize
from spec_planner.decoding.random_stream import RandomStream
from spec_planner.decoding.relaxed import RELAXED_RULES, typical_acceptance
from spec_planner.decoding.sampling import Law, SamplingParams
from spec_planner.decoding.stopping import Stopping

from .toys import SHAPES, logits_of, table_target


def test_it_is_off_by_more_than_any_test_of_ours_overlooks():
    of, draft_of = logits_of(3, 0.5), logits_of(4, 0.5)
    law = speculative_law(of, draft_of, 3, SamplingParams(1.0), typical_acceptance(), SHAPES["binary"], 3)
    assert total_variation(law, target_law(of, SamplingParams(1.0), 3)) > 0.05


def test_inexact_is_said_in_every_step_and_in_the_run():
    steps = list(
        decode(
            table_target(logits_of(3, 0.5)),
            TableDrafter(logits_of(4, 0.5), SHAPES["chain"]),
            PromptInput((0,)),
            SamplingParams(1.0),
            Stopping(8),
            RELAXED_RULES["relaxed-typical"](),
            FixedBudget(2),
        )
    )
    assert not any(step.metrics.exact for step in steps)
    assert not summarize([step.metrics for step in steps], 1, 8).exact
    assert not typical_acceptance().exact and all(rule.exact for rule in RULES.values())


def test_the_longest_then_likeliest_branch_wins():
    # 0 → {1, 2}, 2 → 3, 1 → {4, 5}: two branches of depth 2 below node 1, one below node 2
    tree = DraftTree(np.array([0, 1, 2, 3, 4, 5]), np.array([-1, 0, 0, 2, 1, 1]))
    laws = {
        0: Law.of([0, 0.45, 0.55, 0, 0, 0]),
        1: Law.of([0, 0, 0, 0, 0.3, 0.7]),
        2: Law.of([0, 0, 0, 0.001, 0.5, 0.499]),
    }
    point = Law.point(0)
    acceptance = typical_acceptance()(tree, lambda node: laws.get(node, point), RandomStream(0), 0)
    assert acceptance.path == (0, 1, 5) and acceptance.kind == "bonus"


def test_the_threshold_is_min_of_epsilon_and_scaled_entropy():
    tree = DraftTree.chain((0, 1))
    flat = Law.of(np.ones(16))  # exp(−H) = 1/16: threshold 0.3 / 16, below 1/16
    assert typical_acceptance(0.09, 0.3)(tree, lambda node: flat, RandomStream(0), 0).num_accepted == 1
    assert typical_acceptance(0.09, 1.0)(tree, lambda node: flat, RandomStream(0), 0).num_accepted == 0
    sharp = Law.of([0.92, 0.08])
    assert typical_acceptance(0.09, 1.0)(tree, lambda node: sharp, RandomStream(0), 0).num_accepted == 0


@pytest.mark.parametrize("wrong", [{"epsilon": 0}, {"alpha": 1.5}])
def test_parameters_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match="0 < epsilon, alpha ≤ 1"):
        typical_acceptance(**wrong)
