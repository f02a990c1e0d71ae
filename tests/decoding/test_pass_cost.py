"""Costs are learnt, guessed between, and never believed for ever."""

from __future__ import annotations

import numpy as np
import pytest

from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.pass_cost import CostCurve, PassCost
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.decoding.stopping import Stopping

from .toys import logits_of, table_target

VOCABULARY = 20


def test_costs_by_width():
    cost = PassCost()
    assert cost.of(8) == 0.0
    cost.observe(4, 0.2)
    cost.observe(16, 0.4)
    assert [cost.of(rows) for rows in (1, 4, 5, 16, 64)] == pytest.approx([0.2, 0.2, 0.4, 0.4, 1.6])
    cost.observe(4, 9.0)  # once slow is not always slow
    assert cost.of(4) == pytest.approx(0.2)
    for _ in range(5):  # always slow is
        cost.observe(4, 9.0)
    assert cost.of(4) == pytest.approx(9.0)


def test_a_curve_goes_through_medians_and_never_falls():
    curve = CostCurve()
    sizes = np.array([0.0, 1.0, 2.0, 4.0, 8.0, 100.0])
    assert not curve.at(sizes).any() and not curve.knows(4)
    for seconds in (0.4, 9.0, 0.4):  # one slow pass is no cost
        curve.observe(4, seconds)
    curve.observe(1, 0.1)
    assert curve.knows(4) and curve.at(sizes) == pytest.approx([0.1, 0.1, 0.2, 0.4, 0.4, 0.4])
    curve.observe(8, 0.3)  # a wider pass was faster, so the narrower ones were measured at a slow moment
    assert curve.at(sizes) == pytest.approx([0.1, 0.1, 0.1 + 0.2 / 3, 0.3, 0.3, 0.3])
    for _ in range(5):
        curve.observe(8, 0.9)
    assert curve.at(sizes) == pytest.approx([0.1, 0.1, 0.2, 0.4, 0.9, 0.9])


class Clock:
    """A target's passes take ``seconds`` on this clock."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds
        of = logits_of(1, 1.0, VOCABULARY)

        def counted(context):
            self.now += self.seconds
            return of(context)

        self.target = table_target(counted, VOCABULARY)

    def run(self, cost: PassCost, deadline: float):
        stopping = Stopping(50, deadline=self.now + deadline, clock=lambda: self.now)
        rule, sampling = RULES["drafter-invariant"], SamplingParams()
        started = self.now
        steps = list(
            decode(self.target, None, PromptInput((1, 2)), sampling, stopping, rule, clock=lambda: self.now, cost=cost)
        )
        return self.now - started, steps


def test_with_experience_a_run_ends_before_its_deadline():
    clock, cost = Clock(1.0), PassCost()
    took, steps = clock.run(cost, 5.5)
    assert steps[-1].finish == "deadline" and took <= 5.5  # the first pass taught it
    took, steps = clock.run(cost, 5.5)
    assert steps[-1].finish == "deadline" and 4.5 <= took <= 5.5


def test_a_slow_spell_does_not_end_every_goal_after_it():
    clock, cost = Clock(10.0), PassCost()
    clock.run(cost, 100.0)
    clock.seconds = 0.1
    emitted = [sum(len(step.tokens) for step in clock.run(cost, 2.0)[1]) for _ in range(8)]
    assert emitted[0] == 0 and emitted[-1] >= 15, "costs are measured anew once goals are let in again"
