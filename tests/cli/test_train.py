"""``spec-planner train``: its output's form, its choices, and errors in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.finetune.corpora import write_tasks

from .conftest import Run


def test_json_has_what_a_script_needs(spec_planner: Run, tiny_model: Path, tmp_path: Path) -> None:
    tasks, out = write_tasks(tmp_path / "tasks", 6), tmp_path / "out"
    done = spec_planner(
        *("train", "--drafter=medusa", f"--target={tiny_model}", f"--prompts={tasks}", f"--out={out}", "--steps=2"),
        *("--max-tokens=12", "--final-prompts=1", "--precision=float32", "--engine=torch"),
        *("--set", "num_heads=2", "decay=0.5", "--json"),
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["steps"] == 2 and summary["out"] == str(out) and summary["identical"] is True
    assert summary["acceptance_length"] >= 1 and summary["lookup_acceptance_length"] >= 1
    assert isinstance(summary["by_depth"], list) and (out / "drafter" / "config.json").is_file()
    again = spec_planner(
        *("train", "--drafter=medusa", f"--target={tiny_model}", f"--prompts={tasks}", f"--out={out}", "--steps=2")
    )
    assert again.returncode == 2 and "already holds a run: add --resume" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "heads"], "--set takes OPTION=VALUE, got 'heads'"),
        (["--temperatures", "0,warm"], "--temperatures takes numbers with commas between them, got '0,warm'"),
        (["--prompts", "nowhere"], "nowhere does not exist: write tasks with `spec-planner tasks --out DIR`"),
        (["--target", "nowhere"], "model 'nowhere' is not a directory"),
    ],
)
def test_bad_input_is_one_sentence(
    spec_planner: Run, tiny_model: Path, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    out = tmp_path / "out"
    usual = ["--drafter=medusa", f"--target={tiny_model}", f"--prompts={tmp_path}", f"--out={out}"]
    done = spec_planner("train", *usual, *arguments)
    assert done.returncode == 2 and sentence in done.stderr and done.stderr.count("\n") == 1
    assert not out.exists()
