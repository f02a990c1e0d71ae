"""Deadlines over DDS: they cover waiting, prefill and decoding, and nothing comes later than one pass after them."""

from __future__ import annotations

import math
import time

from diagnostic_msgs.msg import DiagnosticArray

from tests.nodes.support import Goal, PlannerClient, tokens_in

TASK = "bring the red cup to the table"
PASS_S = 0.1
SLACK_S = 3.0  # for a machine that is busy with something else; a missed deadline would cost the plan's 60 passes


def test_the_steps_so_far_are_returned_and_no_pass_begins_after_the_deadline(scripted: PlannerClient) -> None:
    with scripted.process.holding(after=40):
        goal = scripted.send(TASK, deadline=2.0)
        scripted.spin(2.0)
        before = len(goal.feedback)
    status, result = scripted.finish(goal)
    assert (status, result.outcome) == ("aborted", "deadline") and "after 2 steps" in result.detail
    assert result.metrics.verify_passes <= before, "no pass may begin after the deadline"
    assert [step.skill for step in result.plan.steps] == ["go_to", "pick"] and not result.plan.complete
    with scripted.listening(DiagnosticArray, "/diagnostics", 10) as messages:
        warned = lambda: any("missed its deadline" in s.message for s in scripted.status(messages))  # noqa: E731
        scripted.until(warned, "a warning in the diagnostics")


def test_the_result_comes_within_one_pass_of_the_deadline(scripted: PlannerClient) -> None:
    for plain in (True, False):
        with scripted.process.slowed(PASS_S):
            begun = time.monotonic()
            goal = scripted.send(TASK, deadline=1.0, plain=plain)
            result = scripted.finish(goal)[1]
            elapsed_s = time.monotonic() - begun
        assert result.outcome == "deadline" and not result.plan.complete
        assert elapsed_s < 1.0 + PASS_S + SLACK_S
        assert max(starts_ms(goal), default=0.0) <= 1000.0, "a pass began after the deadline"
        assert result.metrics.verify_passes <= 1.0 / PASS_S


def test_a_deadline_in_the_past_decodes_nothing_and_none_is_none(scripted: PlannerClient) -> None:
    result = scripted.plan(TASK, deadline=1e-9)[1]
    assert (result.outcome, list(result.tokens), result.metrics.verify_passes) == ("deadline", [], 0)
    assert not result.plan.steps and not result.plan.complete and math.isnan(result.time_to_first_step_ms)
    assert scripted.plan(TASK, deadline=0.0)[1].outcome == "succeeded"


def test_a_deadline_that_passes_in_the_prefill(scripted: PlannerClient) -> None:
    with scripted.process.holding(after=-1):
        goal = scripted.send(f"{TASK}{', slowly' * 50}", deadline=0.3)  # new to the cache, and several passes long
        scripted.spin(0.5)
        assert not goal.result.done()
    result = scripted.finish(goal)[1]
    assert (result.outcome, list(result.tokens), result.metrics.verify_passes) == ("deadline", [], 0)
    assert scripted.plan(TASK)[1].outcome == "succeeded", "the prompt that was fed in part must not be trusted"


def test_a_deadline_that_passes_while_the_goal_waits_behind_another(scripted: PlannerClient) -> None:
    with scripted.process.holding(after=5):
        first = scripted.send(TASK)
        scripted.until(lambda: tokens_in(first) > 5, "the steps before the held pass")
        second = scripted.send(TASK, deadline=0.3)
        scripted.spin(0.5)
    assert scripted.finish(first)[1].outcome == "preempted"
    result = scripted.finish(second)[1]
    assert (result.outcome, list(result.tokens)) == ("deadline", [])


def test_the_nodes_own_deadline_holds_where_the_goal_names_none(scripted: PlannerClient) -> None:
    scripted.set_all(deadline_s=1e-6)
    try:
        assert scripted.plan(TASK)[1].outcome == "deadline"
        assert scripted.plan(TASK, deadline=3600.0)[1].outcome == "succeeded"
    finally:
        scripted.set_all(deadline_s=0.0)


def test_a_goal_that_will_be_late_is_said_to_be_while_it_runs(scripted: PlannerClient) -> None:
    with scripted.process.slowed(0.05):
        for _ in range(3):  # what runs take is a running mean
            assert scripted.plan(TASK, plain=True)[1].outcome == "succeeded"
        with scripted.listening(DiagnosticArray, "/diagnostics", 10) as messages:
            goal = scripted.send(TASK, plain=True, deadline=2.0)
            foreseen = lambda: [s for s in scripted.status(messages) if "may miss its deadline of 2 s" in s.message]  # noqa: E731
            scripted.until(lambda: foreseen() or goal.result.done(), "a warning in the diagnostics")
            assert foreseen(), "the diagnostics come every second, the goal takes two"
        result = scripted.finish(goal)[1]
    assert result.outcome == "deadline" and result.expected_ms > 2000.0
    assert scripted.process.log.count("the goal may miss its deadline of 2 s") == 1
    found = {item.key: item.value for item in foreseen()[-1].values}
    assert int(found["deadline_misses_expected"]) >= 1


def test_a_slow_pass_does_not_spoil_the_goals_after_it(scripted: PlannerClient) -> None:
    with scripted.process.slowed(1.5):
        assert scripted.plan(TASK, deadline=1.0)[1].outcome == "deadline"
    outcomes = [scripted.plan(TASK, deadline=1.0)[1].outcome for _ in range(12)]
    assert "succeeded" in outcomes, "a cost that is never measured again must not be believed for ever"


def starts_ms(goal: Goal) -> list[float]:
    """When the passes of a run began, counted from the beginning of the run, which is after the acceptance."""
    metrics = [news.metrics for news in goal.feedback if news.metrics.num_nodes]
    return [step.elapsed_ms - step.step_ms for step in metrics]
