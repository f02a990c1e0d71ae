"""``spec-planner plan`` on a tiny random checkpoint: its output's form, the promise of equal tokens, its errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spec_planner.cli.main import main

from .conftest import ROOT, Run

INTERRUPTED = """
import sys, time
from types import SimpleNamespace
from spec_planner import factory
from spec_planner.cli.main import main

def run(*_):
    print("running", file=sys.stderr, flush=True)
    time.sleep(60)

factory.build_pipeline = lambda *_: SimpleNamespace(skills=(), run=run, close=lambda: print("closed", file=sys.stderr))
sys.exit(main(["plan", "--instruction", "go"]))
"""

PLAN = ("plan", "--engine", "torch")  # auto would first try every engine
METRICS = {
    *("acceptance_length", "verify_passes", "new_tokens", "time_to_first_token_ms", "decode_ms"),
    *("draft_ms", "verify_ms", "accept_ms", "commit_ms", "exact"),
}


def plan_json(run: Run, model: Path, *arguments: str) -> dict:
    done = run(
        *PLAN,
        "--model",
        str(model),
        "--instruction",
        "put the cup on the table",
        "--max-tokens",
        "24",
        "--json",
        *arguments,
    )
    assert done.stdout.count("\n") == 1, done.stderr
    answer: dict = json.loads(done.stdout)
    # A random model writes no plan; the tokens, the figures and the exit code are there all the same.
    assert done.returncode == 0, done.stderr  # how it ended is in the object
    return answer


def test_json_has_the_fixed_fields(spec_planner: Run, tiny_model: Path) -> None:
    answer = plan_json(spec_planner, tiny_model)
    assert all(isinstance(token, int) for token in answer["tokens"]) and answer["tokens"]
    assert isinstance(answer["text"], str) and isinstance(answer["steps"], list)
    assert set(answer["metrics"]) >= METRICS
    assert answer["metrics"]["exact"] is True
    assert answer["metrics"]["new_tokens"] == len(answer["tokens"]) <= 24


@pytest.mark.parametrize("sampling", [(), ("--temperature", "1", "--seed", "5")], ids=["greedy", "sampled"])
def test_same_tokens_whatever_the_drafter(spec_planner: Run, tiny_model: Path, sampling: tuple[str, ...]) -> None:
    answers = {
        drafter: plan_json(spec_planner, tiny_model, "--drafter", drafter, *sampling)
        for drafter in ("none", "lookup", "draft-model")
    }
    assert answers["none"]["metrics"]["acceptance_length"] == 1.0
    assert answers["lookup"]["tokens"] == answers["none"]["tokens"]
    assert answers["draft-model"]["tokens"] == answers["none"]["tokens"]


def test_seed_and_temperature_reach_the_model(spec_planner: Run, tiny_model: Path) -> None:
    one, two = (plan_json(spec_planner, tiny_model, "--temperature", "1", "--seed", seed) for seed in ("1", "2"))
    assert one["tokens"] != two["tokens"]


def test_human_output_ends_with_the_figures(spec_planner: Run, tiny_model: Path) -> None:
    done = spec_planner(*PLAN, "--model", str(tiny_model), "--instruction", "tidy up", "--max-tokens", "8")
    assert "tokens per verify pass" in done.stdout and "time to first token" in done.stdout


def test_settings_file_and_flags(spec_planner: Run, tiny_model: Path, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("/**:\n  ros__parameters:\n    max_tokens: 3\n    seed: 9\n", encoding="utf-8")
    arguments = (*PLAN, "--model", str(tiny_model), "--instruction", "go", "--config", str(settings), "--json")
    assert len(json.loads(spec_planner(*arguments).stdout)["tokens"]) <= 3
    answer = json.loads(spec_planner(*arguments, "--max-tokens", "5", "--temperature", "1").stdout)
    assert 3 < len(answer["tokens"]) <= 5
    assert answer["sampling"]["seed"] == 9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--instruction", "  "), "the instruction is empty"),
        (("--instruction", "x" * 20_000), "max_instruction_bytes"),
        (("--instruction", "go", "--model", "no-such-folder"), "no-such-folder"),
        (("--instruction", "go", "--temperature", "-1"), "temperature"),
        (("--instruction", "go", "--rule", "hopeful"), "hopeful"),
        (("--instruction", "go", "--drafter", "oracle"), "oracle"),
        (("--instruction", "go", "--precision", "int3"), "precision"),
        (("--instruction", "go", "--skills-file", "no-such-file.yaml"), "no-such-file.yaml"),
        (("--instruction", "go", "--config", "no-such-file.yaml"), "no-such-file.yaml"),
    ],
    ids=lambda value: value[-1][:16] if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_sentence_and_code_2(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.startswith("spec-planner: ") and captured.err.count("\n") == 1


def test_a_broken_model_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert main(["plan", "--instruction", "go", "--model", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_unknown_flag_and_verb_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["plan", "--instruction", "go", "--fast"], ["dance"], ["plan"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    assert "examples:" not in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("plan", "doctor"):
        with pytest.raises(SystemExit) as caught:
            main([verb, "--help"])
        assert caught.value.code == 0
        assert f"spec-planner {verb}" in capsys.readouterr().out.split("examples:")[1]


def test_json_goes_alone_to_standard_output(tiny_model: Path) -> None:
    """As its own process, so that nothing any library prints is missed."""
    command = [
        sys.executable,
        "-m",
        "spec_planner",
        *PLAN,
        "--model",
        str(tiny_model),
        "--instruction",
        "go",
        "--json",
    ]
    done = subprocess.run(
        [*command, "--max-tokens", "4"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert json.loads(done.stdout)["tokens"], done.stderr
    assert "loading tiny" in done.stderr


def test_interrupt_is_code_130_and_closes_the_pipeline() -> None:
    child = subprocess.Popen([sys.executable, "-c", INTERRUPTED], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    assert child.stderr.readline() == "running\n"
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert errors == "closed\nspec-planner: interrupted\n"
    assert child.returncode == 130


def test_weights_that_overflow_end_in_one_sentence(spec_planner: Run, tiny_model: Path, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    broken = tmp_path / "nan"
    shutil.copytree(tiny_model, broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    for temperature in ("0", "1"):
        done = spec_planner(*PLAN, "--model", str(broken), "--instruction", "wave", "--temperature", temperature)
        assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("spec-planner: ")
        assert "logits" in done.stderr and "Traceback" not in done.stderr


def test_a_broken_config_is_named_before_the_tokenizer_is_tried(
    spec_planner: Run, tiny_model: Path, tmp_path: Path
) -> None:
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(tiny_model, broken)
    (broken / "config.json").write_text("{")
    done = spec_planner("plan", "--model", str(broken), "--instruction", "wave")
    assert done.returncode == 2 and "config.json is not valid JSON" in done.stderr
    done = spec_planner("plan", "--model", "", "--instruction", "wave")
    assert done.returncode == 2 and "model '' is not a directory" in done.stderr


@pytest.mark.parametrize("flag", [("--seed", "1" + "0" * 400), ("--temperature", "nan"), ("--rule", "relaxed-foo")])
def test_values_out_of_any_range_are_one_sentence(spec_planner: Run, tiny_model: Path, flag: tuple[str, str]) -> None:
    done = spec_planner("plan", "--model", str(tiny_model), "--instruction", "wave", *flag)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
