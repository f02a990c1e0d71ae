"""``spec-planner doctor``: its JSON, its memory figures against the real thing, what it says when things lack."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spec_planner.cli import memory, probes
from spec_planner.cli.main import main
from spec_planner.config import PlannerConfig

from .conftest import ROOT, Run

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""


def test_json_says_what_is_there(spec_planner: Run, tiny_model: Path) -> None:
    done = spec_planner("doctor", "--model", str(tiny_model), "--json")
    report = json.loads(done.stdout)
    assert report["ok"] is (report["problems"] == []) is (done.returncode == 0)
    assert all(set(problem) == {"what", "why", "fix"} for problem in report["problems"])
    assert report["versions"]["torch"] and report["versions"]["python"]
    assert report["devices"][0]["name"] == "cpu"
    assert report["memory"]["fits"] is True
    assert 0 < report["memory"]["total"] < report["memory"]["available"] <= report["memory"]["machine"]


@pytest.mark.parametrize("tied", [True, False])
def test_weights_and_cache_are_what_the_target_takes(tied: bool, tmp_path: Path) -> None:
    from spec_planner.engines.torch_target import TorchTarget
    from tests.models import make_tiny_model

    directory = make_tiny_model(tmp_path / "model", tied=tied)
    config = PlannerConfig(context_length=256)
    need = memory.budget(directory, config, None)
    target = TorchTarget.load(directory, context_length=256, device="cpu")
    assert (need.weights, need.kv) == (target.info.weight_bytes, target.info.kv_bytes)
    target.close()


@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
@pytest.mark.parametrize("tied", [True, False])
def test_an_onnx_target_takes_what_was_said(precision: str, tied: bool, tmp_path: Path) -> None:
    from tests.models import load_onnx, make_tiny_model

    directory = make_tiny_model(tmp_path / "model", "qwen3", tied=tied)
    config = PlannerConfig(
        engine="onnx", precision=precision, context_length=256, drafter="draft-model", draft_layers=1
    )
    need = memory.budget(directory, config, None)
    target = load_onnx(directory, context_length=256, precision=precision)
    assert (need.weights, need.kv) == (target.info.weight_bytes, target.info.kv_bytes)
    assert need.kv / 2 < need.drafter < need.kv / 2 + need.weights  # ONNX Runtime holds the draft model's weights again


def test_a_truncated_draft_model_costs_its_cache(tiny_model: Path) -> None:
    config = PlannerConfig(drafter="draft-model", draft_layers=1)
    need = memory.budget(tiny_model, config, None)
    assert need.drafter == need.kv // 2  # one of the tiny model's two layers
    assert memory.budget(tiny_model, PlannerConfig(), None).drafter == 0
    own = memory.budget(tiny_model, config, tiny_model)
    assert own.drafter == own.weights + own.kv


def test_half_precision_halves_it(tiny_model: Path) -> None:
    full, half = (memory.budget(tiny_model, PlannerConfig(precision=p), None) for p in ("float32", "bfloat16"))
    assert full.total == 2 * half.total


@pytest.fixture
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of other things need not wait for every library to be tried."""
    monkeypatch.setattr(probes, "import_error", lambda module: "")


@pytest.mark.usefixtures("all_installed")
@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]", b'\x10\0\0\0\0\0\0\0{"w":{"shape":1}}']
)
def test_a_broken_weights_file_is_a_problem_not_a_crash(
    content: bytes, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(content)
    assert main(["doctor", "--model", str(tmp_path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["memory"] is None
    assert any("model.safetensors" in problem["what"] for problem in report["problems"])


@pytest.mark.usefixtures("all_installed")
def test_a_missing_model_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", "no-such-folder"]) == 1
    assert "no-such-folder is not a directory" in capsys.readouterr().out


@pytest.mark.usefixtures("all_installed")
def test_more_than_the_machine_has_does_not_fit(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: (1000, 2000))
    assert main(["doctor", "--model", str(tiny_model), "--device", "cpu", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["memory"]["fits"] is False
    assert any("needs" in problem["what"] and "available" in problem["what"] for problem in report["problems"])


@pytest.mark.parametrize("names", [("torch",), ("rclpy", "spec_planner_msgs"), ("numpy", "yaml", "torch", "rclpy")])
def test_runs_without(names: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCK.format(names=names), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "spec_planner", "doctor", "--json"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    said = " ".join(problem["what"] for problem in report["problems"])
    assert names[0] in said
    assert all(problem["fix"] for problem in report["problems"])
