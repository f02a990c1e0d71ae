"""``~/certify``: what it finds, when it runs, and that nothing else has to wait for it."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus

from tests.nodes.planner_process import PlannerProcess
from tests.nodes.support import PlannerClient


def test_the_planner_passes_and_the_report_says_what_was_compared(planner: PlannerClient, tmp_path: Path) -> None:
    out = tmp_path / "not" / "there" / "yet"
    with planner.inactive():
        answer = planner.certify(tokens=200, out=str(out))
    assert answer.success and answer.passed, answer.message
    assert answer.message == f"passed: {answer.tokens} tokens compared, 0 mismatches"
    assert answer.tokens >= 200 and answer.mismatches == answer.near_ties == 0 and not answer.problems
    report = json.loads(answer.report)
    assert (report["verdict"], report["tokens"], report["exactness"]) == ("pass", answer.tokens, "tokens")
    assert [(row["drafter"], row["rule"], row["temperature"]) for row in report["rows"]] == [
        ("draft-model, chain", "drafter-invariant", 0.0),
        ("draft-model, chain", "drafter-invariant", 1.0),
    ]
    assert all(row["acceptance_length"] > 1.0 for row in report["rows"]), "nothing was accepted, so nothing was tested"
    assert len(report["hashes"]["model.safetensors"]) == 64
    assert report["drafters"] == []  # the draft model is the target's own layers
    assert json.loads((out / "certificate.json").read_text()) == report
    assert (out / "certificate.md").read_text().startswith("# Certificate of exactness: PASS")


def test_bits_are_compared_where_the_node_promises_them(planner: PlannerClient) -> None:
    with planner.reconfigured(exactness="bitwise"):
        answer = planner.certify(tokens=100, temperatures=[0.8])
    assert answer.success and answer.passed, answer.message
    report = json.loads(answer.report)
    (row,) = report["rows"]
    assert report["exactness"] == "bitwise" and row["temperature"] == 0.8
    assert row["rows_equal_in_bits"] == row["tokens"] == answer.tokens >= 100


def test_trees_are_certified_as_configured(planner: PlannerClient) -> None:
    with planner.reconfigured(draft_branches=2, num_draft_tokens=6):
        answer = planner.certify(tokens=100, temperatures=[1.0])
    assert answer.passed, answer.message
    assert [row["drafter"] for row in json.loads(answer.report)["rows"]] == ["draft-model, tree"]


def test_a_commit_that_is_off_by_one_fails(scripted: PlannerClient, tmp_path: Path) -> None:
    with scripted.process.faulty(), scripted.reconfigured(seed=3):
        answer = scripted.certify(tokens=40, out=str(tmp_path))
        with scripted.listening(DiagnosticArray, "/diagnostics", 10) as messages:
            scripted.until(lambda: scripted.status(messages), "diagnostics")
    assert answer.success and not answer.passed and answer.mismatches > 0
    assert "divergences by more than a near tie" in answer.problems[0]
    assert answer.message.startswith("failed: ") and answer.problems[0] in answer.message
    report = json.loads(answer.report)
    assert report["verdict"] == "fail" and len(report["divergences"]) == answer.mismatches
    assert report["settings"]["seed"] == 3
    assert "Why it failed" in (tmp_path / "certificate.md").read_text()
    status = scripted.status(messages)[-1]
    assert status.level == DiagnosticStatus.ERROR and status.message == f"the last certification {answer.message}"
    with scripted.reconfigured(seed=3):
        assert scripted.certify(tokens=40).passed, "without the fault it passes"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperatures": [-1.0]}, "temperature"),
        ({"temperatures": [0.0, math.nan]}, "temperature"),
        ({"out": "certificates"}, "absolute"),
        ({"out": "/proc/certificates"}, "/proc/certificates"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_carried_out_is_refused(
    planner: PlannerClient, fields: dict[str, Any], said: str
) -> None:
    with planner.inactive():
        refused_with(planner.certify(tokens=10, **fields), said)


def test_it_runs_in_the_inactive_state_only(planner: PlannerClient) -> None:
    refused_with(planner.certify(tokens=10), "the planner is active; deactivate it first")
    with planner.reconfigured(drafter="none"):
        refused_with(planner.certify(tokens=10), "drafter 'none'")
        assert planner.transition("cleanup")
        refused_with(planner.certify(tokens=10), "the planner is unconfigured; configure it first")


def refused_with(answer: Any, said: str) -> None:
    assert not answer.success and not answer.passed and not answer.report and answer.tokens == 0
    assert answer.message.startswith("refused: ") and said in answer.message and "\n" not in answer.message


def test_the_node_answers_meanwhile_and_activate_ends_it(scripted: PlannerClient, tmp_path: Path) -> None:
    assert scripted.transition("deactivate")
    with scripted.seeing_states() as seen, scripted.listening(DiagnosticArray, "/diagnostics", 10) as messages:
        with scripted.process.holding():
            certificate = scripted.order_certificate(tokens=1000, out=str(tmp_path))
            certifying = lambda: any(s.message == "inactive, certifying" for s in scripted.status(messages))  # noqa: E731
            scripted.until(certifying, "diagnostics that speak of it")
            found = {item.key: item.value for item in scripted.status(messages)[-1].values}
            assert found["certification"].startswith("running: 0%")
            assert scripted.state() == "inactive"
            scripted.set_all(max_tokens=100)
            scripted.set_all(max_tokens=160)
            refused_with(scripted.certify(tokens=10), "is running")
            before = scripted.process.cpu_seconds()
            scripted.spin(1.0)
            assert scripted.process.cpu_seconds() - before < 0.5, "waiting must not burn the processor"
            assert not certificate.done()
            activation = scripted.begin("activate")
            scripted.until(lambda: seen("activating"), "the transition to begin")
        assert scripted.done(activation, "the transition to end").success
        ended_without_verdict(scripted.done(certificate, "the certificate"), "the planner is being activated")
    assert not list(tmp_path.iterdir())
    assert scripted.state() == "active" and scripted.plan("tidy up")[1].outcome == "succeeded"


def ended_without_verdict(answer: Any, said: str) -> None:
    assert not answer.success and not answer.passed and not answer.report
    assert answer.message == f"cancelled: {said}; nothing was written"


def test_cleanup_ends_it_and_the_next_configure_starts_afresh(planner: PlannerClient) -> None:
    with planner.inactive():
        certificate = planner.order_certificate(tokens=1_000_000)
        with planner.listening(DiagnosticArray, "/diagnostics", 10) as messages:
            certifying = lambda: any(s.message == "inactive, certifying" for s in planner.status(messages))  # noqa: E731
            planner.until(certifying, "diagnostics that speak of it")
        assert planner.transition("cleanup")
        ended_without_verdict(planner.done(certificate, "the certificate"), "the planner is being cleaned up")
        assert planner.state() == "unconfigured" and planner.transition("configure")
        assert planner.certify(tokens=20).passed


@pytest.mark.parametrize("end", ["shutdown", signal.SIGINT, signal.SIGTERM], ids=str)
def test_shutdown_and_signals_end_it_cleanly(
    namespace: str, client: PlannerClient, tiny_model: Path, end: str | signal.Signals
) -> None:
    with PlannerProcess(namespace, script="scripted_node.py", model=str(tiny_model)) as process:
        assert client.transition("configure")
        with client.seeing_states() as seen, process.holding():
            certificate = client.order_certificate(tokens=1000)
            client.until(lambda: "certifying lookup, chain: 1000 tokens" in process.log, "the certification to begin")
            if end == "shutdown":
                shutdown = client.begin("shutdown")
            else:
                process.signal(end)
            client.until(lambda: seen("shuttingdown"), "the shutdown to begin")
        ended_without_verdict(client.done(certificate, "the certificate"), "the planner is being shut down")
        if end == "shutdown":
            assert client.done(shutdown, "the shutdown").success and client.state() == "finalized"
            refused_with(client.certify(tokens=10), "the planner is finalized; start the node again")
        else:
            assert process.wait() == 0, process.log
        assert "Traceback" not in process.log and "terminate called" not in process.log
