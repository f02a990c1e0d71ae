"""The lifecycle of a real node process: refusing, recovering, changing parameters, and ending."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus

from spec_planner.nodes import qos
from spec_planner_msgs.msg import EngineInfo
from tests.nodes.support import PlannerClient, PlannerProcess, active_planner


def test_configure_without_a_model_refuses_and_recovers_by_parameter(
    namespace: str, client: PlannerClient, tiny_model: Path, tmp_path: Path
) -> None:
    missing = str(tmp_path / "no_such_model")
    with PlannerProcess(namespace, tmp_path, model=missing) as process:
        assert not client.transition("configure")
        assert client.state() == "unconfigured"
        refusals = [line for line in process.log.splitlines() if "configure refused" in line]
        assert len(refusals) == 1 and missing in refusals[0], process.log
        assert "Traceback" not in process.log
        with client.listening(DiagnosticArray, "/diagnostics", 10) as messages:
            client.until(lambda: client.status(messages), "diagnostics of the refused node")
        status = client.status(messages)[-1]
        assert status.level == DiagnosticStatus.ERROR and missing in status.message

        assert client.set(model=str(tiny_model))[0].successful
        client.bring_up()
        assert client.state() == "active"
        with client.listening(EngineInfo, "engine_info", qos.latched()) as latched:
            client.until(lambda: latched, "the latched engine_info")
        info = latched[0]
        assert (info.engine, info.precision, info.num_layers, info.drafter) == ("torch", "float32", 2, "lookup")
        assert (info.rule, info.exact, info.same_tokens) == ("drafter-invariant", True, True)
        assert info.weight_bytes > 0 and info.kv_bytes > 0 and "pick(object)" in info.skills
        assert any(item.key == "torch" and item.value for item in info.versions)


def test_every_transition_and_back_again(
    namespace: str, client: PlannerClient, tiny_model: Path, tmp_path: Path
) -> None:
    with PlannerProcess(namespace, tmp_path, model=str(tiny_model)):
        assert client.state() == "unconfigured"
        for _ in range(2):
            client.bring_up()
            status, result = client.plan("tidy up", max_tokens=5)
            assert result.outcome in ("succeeded", "unparsable") and len(result.tokens) == 5
            assert client.transition("deactivate") and client.state() == "inactive"
            assert client.transition("cleanup") and client.state() == "unconfigured"
        assert not client.transition("activate"), "an unconfigured node must not become active"
        assert client.transition("shutdown") and client.state() == "finalized"


@pytest.mark.parametrize("steps", [(), ("configure",), ("configure", "activate")])
def test_shutdown_works_from_every_state(
    namespace: str, client: PlannerClient, tiny_model: Path, tmp_path: Path, steps: tuple[str, ...]
) -> None:
    with PlannerProcess(namespace, tmp_path, model=str(tiny_model)):
        assert all(client.transition(step) for step in steps)
        assert client.transition("shutdown") and client.state() == "finalized"


def test_parameters_out_of_range_are_refused_with_a_reason(planner: PlannerClient) -> None:
    for name, value, reason in (
        ("temperature", -0.5, "range"),
        ("top_p", 0.0, "range"),
        ("max_tokens", 0, "range"),
        ("deadline_s", -1.0, "range"),
        ("seed", 2**62 + 1, "range"),
        ("temperature", "hot", "type"),
    ):
        (result,) = planner.set(**{name: value})
        assert not result.successful and reason in result.reason, (name, value, result.reason)
    temperature, max_tokens = planner.get("temperature", "max_tokens")
    assert (temperature.double_value, max_tokens.integer_value) == (0.0, 160)


def test_settings_that_shape_the_load_change_only_while_unloaded(
    namespace: str, tiny_model: Path, tmp_path: Path
) -> None:
    with active_planner(namespace, tmp_path, model=str(tiny_model)) as client:
        (refused,) = client.set(num_draft_tokens=3)
        assert not refused.successful and "num_draft_tokens" in refused.reason and "cleanup" in refused.reason
        assert all(result.successful for result in client.set(temperature=0.5, objects=["cup"], max_tokens=7))
        assert all(result.successful for result in client.set(objects=[""], places=[""]))
        assert client.transition("deactivate") and client.transition("cleanup")
        assert client.set(num_draft_tokens=3)[0].successful
        (refused,) = client.set(precision="float8")
        assert not refused.successful and "float32" in refused.reason
        client.bring_up()
        assert len(client.plan("tidy up")[1].tokens) == 7


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("temperature", -1.0, "between 0.0 and 100.0"),
        ("temperature", 1, "decimal point"),
        ("max_tokens", "many", "max_tokens"),
    ],
)
def test_an_override_that_cannot_be_used_ends_the_process_with_one_sentence(
    namespace: str, tmp_path: Path, name: str, value: object, said: str
) -> None:
    process = PlannerProcess(namespace, tmp_path, **{name: value})
    process.__enter__()
    assert process.wait() == 2
    lines = [line for line in process.log.splitlines() if line.startswith("planner_node:")]
    assert len(lines) == 1 and name in lines[0] and said in lines[0], process.log
    assert "Traceback" not in process.log


def test_a_misspelt_parameter_is_pointed_out(namespace: str, client: PlannerClient, tmp_path: Path) -> None:
    with PlannerProcess(namespace, tmp_path, temperatur=1.0) as process:
        assert client.state() == "unconfigured"
        assert "parameter temperatur does not exist and is ignored; did you mean temperature?" in process.log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_mid_goal_answers_the_client_and_ends_cleanly(
    namespace: str, client: PlannerClient, tiny_model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with PlannerProcess(namespace, tmp_path, script="scripted_node.py", model=str(tiny_model)) as process:
        client.bring_up()
        goal = client.send("bring the red cup to the table")
        client.until(lambda: len(goal.feedback) >= 2, "feedback")
        process.signal(number)
        status, result = client.finish(goal)
        assert (status, result.outcome) == ("aborted", "cancelled")
        assert "shut down" in result.detail
        assert process.wait() == 0, process.log
    assert "Traceback" not in process.log and "terminate called" not in process.log


def test_an_idle_node_does_not_burn_the_processor(
    namespace: str, client: PlannerClient, tiny_model: Path, tmp_path: Path
) -> None:
    with PlannerProcess(namespace, tmp_path, model=str(tiny_model)) as process:
        client.bring_up()
        client.spin(0.5)
        before = process.cpu_seconds()
        client.spin(2.0)
        assert process.cpu_seconds() - before < 0.3


def test_waiting_for_a_slow_pass_does_not_burn_the_processor(
    namespace: str, client: PlannerClient, tiny_model: Path, tmp_path: Path
) -> None:
    with PlannerProcess(namespace, tmp_path, script="scripted_node.py", model=str(tiny_model)) as process:
        client.bring_up()
        goal = client.send("bring the red cup to the table", plain=True)
        client.until(lambda: goal.feedback, "feedback")
        before, begun = process.cpu_seconds(), time.monotonic()
        client.finish(goal)
        assert process.cpu_seconds() - before < 0.3 * (time.monotonic() - begun)
