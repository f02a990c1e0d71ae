"""The lifecycle of a real node process: refusing, recovering, changing parameters, and ending."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus

from spec_planner.nodes import qos
from spec_planner_msgs.msg import EngineInfo
from tests.nodes.planner_process import PlannerProcess
from tests.nodes.support import PlannerClient


def test_configure_without_a_model_refuses_and_recovers_by_parameter(
    namespace: str, client: PlannerClient, tiny_model: Path, tmp_path: Path
) -> None:
    missing = str(tmp_path / "no_such_model")
    with PlannerProcess(namespace, model=missing, engine="torch") as process:
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
        assert "]: loading tiny (torch, float32)\n" in process.log  # as every line on what takes long
        with client.listening(EngineInfo, "engine_info", qos.latched()) as latched:
            client.until(lambda: latched, "the latched engine_info")
        info = latched[0]
        assert (info.engine, info.precision, info.num_layers, info.drafter) == ("torch", "float32", 2, "lookup")
        assert (info.rule, info.exact, info.same_tokens) == ("drafter-invariant", True, True)
        assert info.exactness == "tokens"
        assert info.weight_bytes > 0 and info.kv_bytes > 0 and "pick(object)" in info.skills
        assert set(info.kinds) >= {"object", "place", "container", "person"}
        assert any(item.key == "torch" and item.value for item in info.versions)


@pytest.mark.parametrize(
    ("setting", "content", "line"),
    [
        ("skills_file", "- name: go_to\n  parameters: [place]\n- name: pick up\n  parameters: [object]\n", 3),
        ("skills_file", "- name: go_to\n  parameters: [place\n", 3),
        ("scene_file", "places: [hall]\nobjects:\n- {name: red cup, at: kitchen}\n", 3),
        ("scene_file", "places: [hall]\nobjects:\n- 'red cup); open(safe'\n", 3),
    ],
)
def test_a_skill_or_scene_file_with_an_error_is_refused_by_line_and_can_be_corrected(
    namespace: str, client: PlannerClient, tiny_model: Path, tmp_path: Path, setting: str, content: str, line: int
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(content)
    settings = {"model": str(tiny_model), setting: str(file)}
    with PlannerProcess(namespace, script="scripted_node.py", **settings) as process:
        assert not client.transition("configure") and client.state() == "unconfigured"
        refusals = [entry for entry in process.log.splitlines() if "configure refused" in entry]
        assert len(refusals) == 1 and f"{file}, line {line}" in refusals[0], process.log
        assert "Traceback" not in process.log
        file.write_text("- name: go_to\n  parameters: [place]\n" if setting == "skills_file" else "places: [hall]\n")
        client.bring_up()
        assert {step.skill for step in client.plan("go to the hall")[1].plan.steps} >= {"go_to"}


def test_every_transition_and_back_again(namespace: str, client: PlannerClient, tiny_model: Path) -> None:
    with PlannerProcess(namespace, script="scripted_node.py", model=str(tiny_model)):
        assert client.state() == "unconfigured"
        for _ in range(2):
            client.bring_up()
            status, result = client.plan("tidy up", max_tokens=5)
            assert result.outcome in ("succeeded", "unparsable") and len(result.tokens) == 5
            assert client.transition("deactivate") and client.state() == "inactive"
            assert client.transition("cleanup") and client.state() == "unconfigured"
        assert not client.transition("activate"), "an unconfigured node must not become active"
        assert client.transition("shutdown") and client.state() == "finalized"


@pytest.mark.parametrize("steps", [(), ("configure", "activate")])  # inactive: in test_certify_service.py
def test_shutdown_works_from_every_state(
    namespace: str, client: PlannerClient, tiny_model: Path, steps: tuple[str, ...]
) -> None:
    with PlannerProcess(namespace, script="scripted_node.py", model=str(tiny_model)):
        assert all(client.transition(step) for step in steps)
        assert client.transition("shutdown") and client.state() == "finalized"


def test_parameters_out_of_range_are_refused_with_a_reason(planner: PlannerClient) -> None:
    for name, value, reason in (
        ("temperature", -0.5, "range"),
        ("top_p", 0.0, "range"),
        ("max_tokens", 0, "range"),
        ("max_steps", 201, "range"),
        ("free_text", 1, "type"),
        ("deadline_s", -1.0, "range"),
        ("seed", 2**62 + 1, "range"),
        ("temperature", "hot", "type"),
    ):
        (result,) = planner.set(**{name: value})
        assert not result.successful and reason in result.reason, (name, value, result.reason)
    temperature, max_tokens = planner.get("temperature", "max_tokens")
    assert (temperature.double_value, max_tokens.integer_value) == (0.0, 160)


def test_settings_that_shape_the_load_change_only_while_unloaded(planner: PlannerClient) -> None:
    (refused,) = planner.set(num_draft_tokens=3)
    assert not refused.successful and "num_draft_tokens" in refused.reason and "cleanup" in refused.reason
    try:
        planner.set_all(temperature=0.5, stop_sequences=["cup"], free_text=True, max_tokens=7)
        planner.set_all(stop_sequences=[""], free_text=False)
        with planner.reconfigured(num_draft_tokens=3):
            assert planner.transition("activate")
            result = planner.plan("tidy up")[1]
            assert len(result.tokens) == 7
        assert planner.transition("deactivate") and planner.transition("cleanup")
        (refused,) = planner.set(precision="float8")
        assert not refused.successful and "float32" in refused.reason
    finally:
        planner.set_all(temperature=0.0, max_tokens=160, stop_sequences=[""], free_text=False)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("free_text", "yes", "true or false"),
        ("temperature", -1.0, "between 0.0 and 100.0"),
        ("temperature", 1, "decimal point"),
        ("max_tokens", "many", "max_tokens"),
    ],
)
def test_an_override_that_cannot_be_used_ends_the_process_with_one_sentence(
    namespace: str, name: str, value: object, said: str
) -> None:
    with (
        pytest.raises(AssertionError, match="ended with code 2"),
        PlannerProcess(namespace, **{name: value}) as process,
    ):
        process.wait()
        log = process.log
    lines = [line for line in log.splitlines() if line.startswith("planner_node:")]
    assert len(lines) == 1 and name in lines[0] and said in lines[0], log
    assert "Traceback" not in log


def test_a_misspelt_parameter_is_pointed_out(namespace: str, client: PlannerClient) -> None:
    with PlannerProcess(namespace, temperatur=1.0) as process:
        assert client.state() == "unconfigured"
        assert "parameter temperatur does not exist and is ignored; did you mean temperature?" in process.log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_mid_goal_answers_the_client_and_ends_cleanly(
    namespace: str, client: PlannerClient, tiny_model: Path, number: signal.Signals
) -> None:
    with PlannerProcess(namespace, script="scripted_node.py", model=str(tiny_model)) as process:
        client.bring_up()
        with client.seeing_states() as seen, process.holding(after=5):
            goal = client.send("bring the red cup to the table")
            process.signal(number)
            client.until(lambda: seen("shuttingdown"), "the shutdown to begin")
        status, result = client.finish(goal)
        assert (status, result.outcome) == ("aborted", "cancelled")
        assert "shut down" in result.detail
        assert process.wait() == 0, process.log
        assert "Traceback" not in process.log and "terminate called" not in process.log


def test_an_idle_node_does_not_burn_the_processor(planner: PlannerClient) -> None:
    planner.spin(0.5)
    before = planner.process.cpu_seconds()
    planner.spin(2.0)
    assert planner.process.cpu_seconds() - before < 0.5, "processor time, which a busy machine hardly changes"


def test_waiting_for_a_slow_pass_does_not_burn_the_processor(scripted: PlannerClient) -> None:
    with scripted.process.holding():
        goal = scripted.send("bring the red cup to the table", plain=True)
        scripted.until(lambda: goal.feedback, "feedback")
        before = scripted.process.cpu_seconds()
        scripted.spin(2.0)
        assert scripted.process.cpu_seconds() - before < 0.5
    scripted.finish(goal)
