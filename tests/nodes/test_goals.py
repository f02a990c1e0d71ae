"""Goals over DDS: results, feedback, refusals, cancel, preemption, deadlines, deactivation."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.duration import Duration
from std_msgs.msg import String

from spec_planner.factory import build_pipeline
from spec_planner.nodes import qos
from spec_planner.nodes.planner_node import PlannerNode
from spec_planner_msgs.msg import EngineInfo, Plan, PlanStepStamped, RunMetrics, StepMetrics
from tests.nodes.planner_process import PATIENCE_S, PlannerProcess
from tests.nodes.support import PlannerClient, make_scene, tokens_in

TASK = "bring the red cup to the table"
SCENE = make_scene({"kitchen": "room", "table": "surface"}, {"red cup": "kitchen"})


def test_steps_stream_and_the_result_holds_the_plan(scripted: PlannerClient) -> None:
    begun = time.monotonic()
    with scripted.process.holding() as hold:
        goal = scripted.send(TASK, scene=SCENE)

        def ended() -> bool:  # action clients keep ten messages of feedback, so the node must not run away from us
            hold(tokens_in(goal) + 4)
            return goal.result.done()

        scripted.until(ended, "the goal to end")
    status, result = scripted.finish(goal)
    elapsed_ms = (time.monotonic() - begun) * 1e3
    assert (status, result.outcome, result.detail) == ("succeeded", "succeeded", "")
    assert [(s.skill, list(s.values)) for s in result.plan.steps] == [
        ("go_to", ["kitchen"]),
        ("pick", ["red cup"]),
        ("go_to", ["table"]),
        ("put", ["red cup", "table"]),
    ]
    assert result.plan.complete and result.plan.instruction == TASK
    assert bytes(result.plan.goal_id.uuid) == bytes(goal.handle.goal_id.uuid)
    assert 0 < result.time_to_first_step_ms < elapsed_ms

    streamed = [step for news in goal.feedback for step in news.new_steps]
    assert [s.text for s in streamed] == [s.text for s in result.plan.steps]
    arrivals = [i for i, news in enumerate(goal.feedback) if news.new_steps]
    assert len(arrivals) > 1 and arrivals[0] < len(goal.feedback) // 2, "steps must come one by one, not at the end"
    assert [news.metrics.index for news in goal.feedback] == list(range(len(goal.feedback)))
    assert len(goal.feedback) == result.metrics.verify_passes + 1
    assert sum(news.metrics.num_accepted for news in goal.feedback) == result.metrics.num_accepted > 0


def test_each_step_is_published_the_moment_it_is_complete(scripted: PlannerClient) -> None:
    with scripted.listening(PlanStepStamped, "plan_step", qos.stream()) as published:
        with scripted.process.holding(after=17):
            goal = scripted.send(TASK)
            # Its closing bracket is the 15th token, so the second step cannot be there yet.
            scripted.until(lambda: published, "the first step while the rest is unwritten")
            assert [message.step.text for message in published] == ["1. go_to(kitchen)"]
            assert not goal.result.done()
        result = scripted.finish(goal)[1]
        scripted.until(lambda: len(published) == 4, "the other steps")
    assert [message.step for message in published] == list(result.plan.steps)
    assert {bytes(message.goal_id.uuid) for message in published} == {bytes(goal.handle.goal_id.uuid)}
    stamps = [(message.header.stamp.sec, message.header.stamp.nanosec) for message in published]
    assert stamps == sorted(stamps) and stamps[0] < stamps[-1]


@pytest.mark.parametrize("free_text", [False, True])
def test_plain_and_speculative_decoding_give_the_same_tokens(planner: PlannerClient, free_text: bool) -> None:
    for sampling in ({}, {"override_sampling": True, "temperature": 1.0, "seed": 7}):
        fields = {"max_tokens": 40, "free_text": free_text, **sampling}
        speculative, plain = planner.plan(TASK, **fields)[1], planner.plan(TASK, plain=True, **fields)[1]
        assert list(speculative.tokens) == list(plain.tokens) and plain.tokens
        assert plain.metrics.num_drafted == 0 and plain.metrics.acceptance_length == 1.0
        assert speculative.metrics.num_drafted > 0 and speculative.metrics.exact
        assert free_text or not plain.plan.rejected or len(plain.tokens) == 40, "only the cut may leave half a line"
    _, other = planner.plan(TASK, max_tokens=40, override_sampling=True, temperature=1.0, seed=8)
    assert list(other.tokens) != list(plain.tokens)


def test_the_goal_limits_the_plan_or_frees_it(scripted: PlannerClient) -> None:
    short = scripted.plan(TASK, max_steps=2)[1]
    assert [step.skill for step in short.plan.steps] == ["go_to", "pick"] and not short.plan.complete
    free = scripted.plan(TASK, free_text=True, skills=["fly(place)", "go_to(place)"])[1]
    assert [line.text for line in free.plan.rejected] == ["2. pick(red cup)", "4. put(red cup, table)"]
    bound = scripted.plan(TASK, skills=["fly(place)", "go_to(place)"])[1]
    assert {step.skill for step in bound.plan.steps} <= {"fly", "go_to"} and bound.plan.steps


def test_a_stop_sequence_ends_the_answer(scripted: PlannerClient) -> None:
    scripted.set_all(stop_sequences=["3."])
    try:
        result = scripted.plan(TASK)[1]
    finally:
        scripted.set_all(stop_sequences=[""])
    assert (result.outcome, len(result.plan.steps)) == ("succeeded", 2) and result.plan.text.endswith("(red cup)\n")


@pytest.mark.parametrize("budget", [200, 10])
def test_a_thought_comes_apart_from_the_plan(scripted: PlannerClient, budget: int) -> None:
    with scripted.reconfigured(thinking_tokens=budget):
        assert scripted.transition("activate")
        goal = scripted.send(TASK, scene=SCENE)
        result = scripted.finish(goal)[1]
        plain = scripted.plan(TASK, scene=SCENE, plain=True)[1]
    thought = "The cup is in the kitchen, s\u00ed."
    assert result.outcome == "succeeded" and list(result.tokens) == list(plain.tokens)
    assert result.thinking == goal.feedback[-1].thinking == (thought if budget == 200 else thought[:10])
    assert any(news.thinking and not news.text.strip("1.") for news in goal.feedback), "it comes before the plan"
    assert "kitchen, s" not in result.plan.text and not result.plan.rejected
    if budget == 200:
        assert [step.skill for step in result.plan.steps] == ["go_to", "pick", "go_to", "put"] and result.plan.complete


def test_a_signature_of_the_nodes_own_skill_keeps_its_types(planner: PlannerClient) -> None:
    scene = make_scene({"table": "surface", "fridge": "container"}, {"red cup": "table"})
    for seed in range(3):
        fields = {"override_sampling": True, "temperature": 1.0, "seed": seed, "max_steps": 3, "max_tokens": 400}
        result = planner.plan(TASK, scene=scene, skills=["open(container)"], **fields)[1]
        assert {(step.skill, *step.values) for step in result.plan.steps} == {("open", "fridge")}, result.plan.text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"instruction": ""}, "empty"),
        ({"instruction": " \n\t "}, "empty"),
        ({"instruction": "x" * 100_000}, "100000 bytes"),
        ({"instruction": TASK, "override_sampling": True, "temperature": -1.0}, "temperature"),
        ({"instruction": TASK, "override_sampling": True, "temperature": math.nan}, "temperature"),
        ({"instruction": TASK, "override_sampling": True, "top_p": 0.0}, "top_p"),
        ({"instruction": TASK, "override_sampling": True, "seed": 2**64 - 1}, "seed"),
        ({"instruction": TASK, "deadline": -1.0}, "deadline must be between 0 and 86400 s, got -1.0"),
        ({"instruction": TASK, "deadline": math.nan}, "deadline must be between 0 and 86400 s, got nan"),
        ({"instruction": TASK, "deadline": math.inf}, "deadline must be between 0 and 86400 s, got inf"),
        ({"instruction": TASK, "max_steps": 2**32 - 1}, "max_steps"),
        ({"instruction": TASK, "max_tokens": 2**32 - 1}, "max_tokens"),
        ({"instruction": TASK, "skills": ["not a signature"]}, "not a signature"),
        ({"instruction": TASK, "skills": ["pick(object)", "pick(object)"]}, "names skill 'pick' twice"),
        ({"instruction": TASK, "skills": ["say(" + "x" * 100_000 + ")"]}, "not a skill"),
        ({"instruction": TASK, "skills": [f"skill_{i}(object)" for i in range(1001)]}, "1001 skills, more than 1000"),
        ({"instruction": TASK, "skills": [f"skill_{i}(object)" for i in range(500)]}, "but the context holds 2048"),
        ({"instruction": "word " * 3_000}, "context"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_content_that_cannot_be_used_is_aborted_with_the_reason(
    planner: PlannerClient, fields: dict[str, Any], said: str
) -> None:
    status, result = planner.plan(**fields)
    assert (status, result.outcome) == ("aborted", "refused")
    assert said in result.detail and "\n" not in result.detail
    assert not result.tokens and not result.plan.steps
    status, result = planner.plan(TASK, max_tokens=3)
    assert len(result.tokens) == 3, "the node must go on as if nothing had happened"


def test_a_bad_goal_does_not_disturb_the_running_one(scripted: PlannerClient) -> None:
    with scripted.process.holding(after=5):
        running = scripted.send(TASK)
        assert scripted.plan("")[1].outcome == "refused"
    assert scripted.finish(running)[1].outcome == "succeeded"


def test_cancel_ends_with_the_pass_under_way(scripted: PlannerClient) -> None:
    with scripted.process.holding(after=5):
        goal = scripted.send(TASK)
        scripted.until(lambda: tokens_in(goal) > 5, "the steps before the held pass")
        scripted.done(goal.handle.cancel_goal_async(), "the cancel to be answered")
        before = len(goal.feedback)
    status, result = scripted.finish(goal)
    assert (status, result.outcome) == ("canceled", "cancelled") and "client" in result.detail
    # Step 0 has no pass; the held pass ends and is the last. The run's end comes as one more step, of no tokens.
    assert result.metrics.verify_passes == before, "no pass may begin after the cancel"
    assert result.plan.text and not result.plan.complete
    assert scripted.plan(TASK)[1].outcome == "succeeded"


def test_a_new_goal_preempts_the_running_one(scripted: PlannerClient) -> None:
    with scripted.process.holding(after=5):
        first = scripted.send(TASK)
        scripted.until(lambda: tokens_in(first) > 5, "the steps before the held pass")
        second = scripted.send(TASK)
    status, result = scripted.finish(first)
    assert (status, result.outcome) == ("aborted", "preempted") and result.detail == "a newer goal took over"
    assert scripted.finish(second)[1].outcome == "succeeded"


def test_of_many_goals_at_once_the_newest_is_carried_out(scripted: PlannerClient) -> None:
    with scripted.process.holding():
        goals = [scripted.send(TASK) for _ in range(5)]
    outcomes = [scripted.finish(goal)[1].outcome for goal in goals]
    assert outcomes == ["preempted"] * 4 + ["succeeded"]


def test_deactivate_in_mid_goal_aborts_it_and_closes_the_door(scripted: PlannerClient) -> None:
    with (
        scripted.listening(RunMetrics, "run_metrics", qos.latched()) as runs,
        scripted.seeing_states() as seen,
    ):
        with scripted.process.holding(after=5):
            goal = scripted.send(TASK)
            scripted.until(lambda: tokens_in(goal) > 5, "the steps before the held pass")
            deactivation = scripted.begin("deactivate")
            scripted.until(lambda: seen("deactivating"), "the transition to begin")
        assert scripted.done(deactivation, "the transition to end").success
        status, result = scripted.finish(goal)
        assert (status, result.outcome) == ("aborted", "cancelled") and "deactivated" in result.detail
        scripted.until(lambda: result.metrics in runs, "the aborted run's metrics")
    assert not scripted.send(TASK).handle.accepted
    assert scripted.transition("activate")
    assert scripted.plan(TASK)[1].outcome == "succeeded"


def test_a_goal_before_configure_is_rejected(namespace: str, client: PlannerClient) -> None:
    with PlannerProcess(namespace) as process:
        assert not client.send(TASK).handle.accepted
        assert "goal rejected: the planner is not active" in process.log


def test_an_instruction_by_topic_takes_the_same_path(scripted: PlannerClient) -> None:
    publisher = scripted.node.create_publisher(String, scripted.name("instruction"), qos.command())
    with (
        scripted.listening(StepMetrics, "step_metrics", qos.telemetry()) as steps,
        scripted.listening(RunMetrics, "run_metrics", qos.latched()) as runs,
        scripted.listening(Plan, "plan", qos.latched()) as plans,
    ):
        scripted.until(lambda: publisher.get_subscription_count() == 1, "the instruction topic")
        publisher.publish(String(data="fetch the red cup"))
        mine = lambda: [plan for plan in plans if plan.instruction == "fetch the red cup"]  # noqa: E731
        scripted.until(mine, "the plan")
        (plan,) = mine()
        same_goal = lambda message: bytes(message.goal_id.uuid) == bytes(plan.goal_id.uuid)  # noqa: E731
        scripted.until(lambda: any(map(same_goal, runs)), "the run's metrics")
        scripted.until(lambda: any(map(same_goal, steps)), "the steps' metrics")
    (run,) = filter(same_goal, runs)
    steps = list(filter(same_goal, steps))
    assert plan.complete and len(plan.steps) == 4 and bytes(plan.goal_id.uuid) != bytes(16)
    assert plan.header.stamp.sec > 0 and run.outcome == "succeeded"
    # They are best effort, so some may be missing; the feedback, which is reliable, is counted elsewhere.
    assert 0 < len({step.index for step in steps}) == len(steps) <= run.verify_passes + 1
    assert all(step.acceptance_length == step.num_accepted + 1 for step in steps)
    with scripted.listening(Plan, "plan", qos.latched()) as late:
        scripted.until(lambda: late, "the latched plan")
    assert late[0] == plan


def test_an_instruction_by_topic_preempts_a_goal(scripted: PlannerClient) -> None:
    publisher = scripted.node.create_publisher(String, scripted.name("instruction"), qos.command())
    scripted.until(lambda: publisher.get_subscription_count() == 1, "the instruction topic")
    scripted.settle()
    with scripted.listening(Plan, "plan", qos.latched()) as plans:
        with scripted.process.holding(after=5):
            goal = scripted.send(TASK)
            publisher.publish(String(data="something else"))
            assert publisher.wait_for_all_acked(Duration(seconds=PATIENCE_S))
            scripted.state()  # the node looks at topics before services, so it has seen the instruction
        assert scripted.finish(goal)[1].outcome == "preempted"
        scripted.until(lambda: plans and plans[-1].instruction == "something else", "the other plan")


def test_diagnostics_report_engine_latency_and_memory(planner: PlannerClient) -> None:
    _, result = planner.plan(TASK, max_tokens=30, deadline=3600.0)
    with planner.listening(DiagnosticArray, "/diagnostics", 10) as messages:
        planner.until(lambda: len(planner.status(messages)) >= 2, "two diagnostics")
    found = {item.key: item.value for item in planner.status(messages)[-1].values}
    assert (found["state"], found["engine"], found["fallback"]) == ("active", "torch", "none")
    assert (found["rule"], found["exact"], found["exactness"]) == ("drafter-invariant", "true", "tokens")
    assert float(found["acceptance_length"]) >= 1.0
    assert 0 < float(found["step_ms_p50"]) <= float(found["step_ms_p95"]) <= float(found["step_ms_p99"])
    assert float(found["token_ms_p50"]) <= float(found["step_ms_p99"])
    assert float(found["memory_rss_mib"]) > 50 and float(found["memory_weights_mib"]) > 0
    assert float(found["memory_kv_mib"]) > 0
    assert (found["last_goal_outcome"], found["last_goal_deadline_s"]) == (result.outcome, "3600")
    assert int(found["goals"]) >= 1 and int(found["deadline_misses"]) == 0


def test_diagnostics_are_due_once_a_second() -> None:
    node = PlannerNode(build_pipeline)
    try:
        (timer,) = node.timers
        assert timer.timer_period_ns == 1_000_000_000
    finally:
        node.destroy_node()


def test_a_relaxed_rule_is_marked_wherever_its_tokens_go(planner: PlannerClient) -> None:
    with planner.reconfigured(rule="relaxed-typical"):
        assert "rule relaxed-typical is lossy" in planner.process.log
        assert planner.transition("activate")
        with (
            planner.listening(EngineInfo, "engine_info", qos.latched()) as infos,
            planner.listening(StepMetrics, "step_metrics", qos.telemetry()) as steps,
            planner.listening(RunMetrics, "run_metrics", qos.latched()) as runs,
            planner.listening(DiagnosticArray, "/diagnostics", 10) as messages,
        ):
            goal = planner.send(TASK, max_tokens=20, override_sampling=True, temperature=1.0)
            result = planner.finish(goal)[1]
            planner.until(lambda: infos and steps and runs and planner.status(messages), "what the node publishes")
        assert not result.metrics.exact and result.metrics.num_drafted > 0
        assert goal.feedback and not any(news.metrics.exact for news in goal.feedback)
        assert not any(message.exact for message in (*steps, *runs, *infos))
        assert (infos[-1].rule, infos[-1].same_tokens) == ("relaxed-typical", False)
        found = {item.key: item.value for item in planner.status(messages)[-1].values}
        assert (found["rule"], found["exact"]) == ("relaxed-typical", "false")
