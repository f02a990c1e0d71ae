"""What the demo concludes from its runs, and that it never leaves its node behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path

import pytest

from spec_planner.demo import node_process
from spec_planner.demo.__main__ import SCENE
from spec_planner.demo.node_process import DemoError, NodeProcess
from spec_planner.demo.report import Run, first_difference, table, warm_start
from spec_planner.resources import shared_file

PLAIN = Run((1, 2, 3, 4), 2, 1.0, 3, 40.0, 200.0, 500.0, 320.0, True, 400, 0)
FAST = dataclasses.replace(PLAIN, acceptance_length=2.0, time_per_output_token_ms=20.0, time_to_first_step_ms=250.0)


def test_identical_only_when_every_run_is() -> None:
    assert first_difference([PLAIN, PLAIN], [FAST, FAST]) == ""
    shorter = dataclasses.replace(FAST, tokens=(1, 2, 3))
    assert "speculative run 2" in first_difference([PLAIN, PLAIN], [FAST, shorter])
    assert "token 3 (the end instead of 4)" in first_difference([PLAIN], [shorter])
    other = dataclasses.replace(PLAIN, tokens=(1, 9, 3, 4))
    assert "plain run 2 differs from plain run 1 at token 1 (9 instead of 2)" in first_difference(
        [PLAIN, other], [FAST]
    )


def test_table_shows_medians_and_ratios_in_80_columns() -> None:
    slow = dataclasses.replace(PLAIN, time_per_output_token_ms=4000.0)
    text = table([PLAIN, slow, PLAIN], [FAST, FAST, FAST])
    assert max(map(len, text.splitlines())) < 80
    row = next(line for line in text.splitlines() if "ms per token" in line)
    assert row.split()[-4:] == ["40.0", "20.0", "2.00", "x"]
    assert next(line for line in text.splitlines() if "verify pass " in f"{line} ").split()[-2:] == ["1.00", "2.00"]


def test_table_without_a_step() -> None:
    none = dataclasses.replace(PLAIN, time_to_first_step_ms=None)
    row = next(line for line in table([none], [none]).splitlines() if "first step" in line)
    assert row.split()[-2:] == ["-", "-"]


def test_what_a_warm_start_gains() -> None:
    warm = dataclasses.replace(PLAIN, time_to_first_token_ms=20.0, reused_tokens=384)
    said = warm_start(PLAIN, [warm, warm])
    assert max(map(len, f"  {said}".splitlines())) <= 80
    assert "200.0 ms" in said and "20.0 ms" in said and "384 of their 400 prompt tokens" in said


def test_the_shipped_scene_becomes_the_message_that_reads_back_as_it() -> None:
    pytest.importorskip("spec_planner_msgs")
    from spec_planner.demo.scene import read_scene
    from spec_planner.language.scene import load_scene
    from spec_planner.language.skills import load_skills
    from spec_planner.nodes import incoming

    file, skills = shared_file(SCENE), load_skills()
    message, described = read_scene(str(file), "")
    assert incoming.scene(message, skills, "the demo's scene") == load_scene(file, skills)
    assert max(map(len, described.splitlines())) <= 80 and "milk at fridge" in described
    assert read_scene("", "")[0] == type(message)()


def test_a_scene_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("spec_planner_msgs")
    from spec_planner.demo.scene import read_scene

    file = tmp_path / "scene.yaml"
    file.write_text("places: [hall, hall]\n", encoding="utf-8")
    with pytest.raises(DemoError, match=r"scene.yaml, line 1: 'hall' is listed twice"):
        read_scene(str(file), "")


@pytest.fixture
def fake_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An executable of the test's own in the place of planner_node."""
    path = tmp_path / node_process.EXECUTABLE
    monkeypatch.setattr(node_process, "find_executable", lambda: path)
    return path


def start(path: Path, script: str) -> NodeProcess:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return NodeProcess([], dict(os.environ))


def wait_for(node: NodeProcess, text: str) -> None:
    limit = time.monotonic() + 10
    while text not in node.output():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_node_that_dies_is_one_sentence_with_its_last_complaint(fake_node: Path) -> None:
    node = start(fake_node, "echo starting; echo '[ERROR] no such model'; echo bye; exit 3")
    wait_for(node, "bye")
    with pytest.raises(DemoError, match=r"ended with code 3: \[ERROR\] no such model"):
        while True:
            node.check()
            time.sleep(0.01)
    assert node.stop() == 3


def test_what_the_node_said_is_found_without_its_stamp(fake_node: Path) -> None:
    stamped = "echo '[INFO] [12.5] [planner]: engine auto: "
    node = start(fake_node, f"{stamped}trying torch'; {stamped}torch (8 rows: torch 9 ms)'; echo bye")
    wait_for(node, "bye")
    assert node.said("engine auto: ") == "torch (8 rows: torch 9 ms)"
    assert node.said("engine torch: ") == ""
    assert node.stop() == 0


def test_stop_ends_the_whole_group_in_order(fake_node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_process, "GRACE_S", tuple((number, 0.3) for number, _ in node_process.GRACE_S))
    node = start(fake_node, "trap '' INT TERM; sleep 100 & echo child $!; while :; do sleep 0.1; done")
    wait_for(node, "child")
    child = int(node.output().split()[-1])
    assert node.stop() == -signal.SIGKILL
    limit = time.monotonic() + 5
    while is_alive(child):
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_polite_node_is_stopped_with_sigint(fake_node: Path) -> None:
    node = start(fake_node, "trap 'exit 0' INT; echo up; while :; do sleep 0.05; done")
    wait_for(node, "up")
    assert node.stop() == 0


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
