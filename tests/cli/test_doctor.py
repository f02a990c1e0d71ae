"""``spec-planner doctor``: its JSON, its memory figures against the real thing, what it says when things lack."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from drafters.lookup import LookupDrafter
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


@pytest.fixture
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of other things need not wait for every library to be tried."""
    monkeypatch.setattr(probes, "import_error", lambda module: "")


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
    need = memory.budget(directory, config)
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
    need = memory.budget(directory, config)
    drafter = memory.drafter_bytes(directory, config)
    target = load_onnx(directory, context_length=256, precision=precision)
    assert (need.weights, need.kv) == (target.info.weight_bytes, target.info.kv_bytes)
    assert need.kv / 2 < drafter < need.kv / 2 + need.weights  # ONNX Runtime holds the draft model's weights again


def test_a_truncated_draft_model_costs_its_cache(tiny_model: Path) -> None:
    config = PlannerConfig(drafter="draft-model", draft_layers=1)
    need = memory.budget(tiny_model, config)
    alone = memory.drafter_bytes(tiny_model, config)
    assert alone == need.kv // 2  # one of the tiny model's two layers
    assert memory.drafter_bytes(tiny_model, PlannerConfig(drafter="none")) == 0
    own = replace(config, draft_model=str(tiny_model))
    assert memory.drafter_bytes(tiny_model, own) == need.weights + need.kv
    index = memory.drafter_bytes(tiny_model, PlannerConfig(drafter="lookup"))
    assert (
        index > 0 and memory.drafter_bytes(tiny_model, replace(config, drafter="lookup+draft-model")) == alone + index
    )


@pytest.mark.usefixtures("all_installed")
@pytest.mark.parametrize("graft", ["", "lookup+"])
def test_a_drafter_counts_by_name_as_by_directory(
    graft: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from drafters.registry import load_drafter
    from drafters.training.trainee import make_trainee
    from spec_planner.engines.identity import target_identity
    from spec_planner.engines.torch_target import TorchTarget
    from spec_planner.train.learner import read_target_weights

    directory = tmp_path / "config" / "drafters" / "tiny" / "medusa"
    directory.mkdir(parents=True)
    trainee = make_trainee("medusa", read_target_weights(tiny_model, torch.device("cpu"), torch.float32), {})
    trainee.save(directory, {"target": target_identity(tiny_model)})
    monkeypatch.setattr("spec_planner.shipped_drafters.shared_files", lambda pattern: sorted(tmp_path.glob(pattern)))
    target = TorchTarget.load(tiny_model, context_length=256, device="cpu")
    own, counted = load_drafter(directory, target, 1).own_bytes, set()
    target.close()
    for name in ("medusa", str(directory)):
        main(["doctor", "--model", str(tiny_model), "--drafter", graft + name, "--context-length", "256", "--json"])
        report = json.loads(capsys.readouterr().out)
        assert not any("drafter" in problem["what"] for problem in report["problems"])
        counted.add(report["memory"]["drafter"])
    (most,) = counted
    states = (256 + memory.PASS_ROOM) * 64 * 4
    index = LookupDrafter.most_bytes(256 + memory.PASS_ROOM) if graft else 0
    assert most == own + states + index


@pytest.mark.usefixtures("all_installed")
def test_a_drafter_that_cannot_be_used_is_one_problem_and_the_rest_is_counted(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "config" / "drafters" / "big" / "eagle3"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"spec_planner": {"target": "adapter-0123"}}))
    monkeypatch.setattr("spec_planner.shipped_drafters.shared_files", lambda pattern: sorted(tmp_path.glob(pattern)))
    for name, said, fix in (
        ("eagle3", "drafter 'eagle3' was trained for big and the target in use is another (weights-", "use that model"),
        ("lookup+dflash", "no drafter 'dflash' comes with this package, only eagle3", "use one of them"),
        ("dflush", "no drafter is called 'dflush'; choose auto, none, lookup", "set drafter to"),
        (str(directory), f"{directory} holds no weights", "give a drafter checkpoint directory"),
    ):
        assert main(["doctor", "--model", str(tiny_model), "--drafter", name, "--json"]) == 1
        report = json.loads(capsys.readouterr().out)
        (problem,) = [each for each in report["problems"] if each["what"].startswith(said)]
        assert problem["fix"].startswith(fix) and "\n" not in problem["what"]
        assert report["memory"]["weights"] > 0 and report["memory"]["drafter"] == 0


@pytest.mark.usefixtures("all_installed")
def test_a_checkpoint_without_torch_is_a_problem(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "drafters.footprint", raising=False)
    monkeypatch.delitem(sys.modules, "drafters.checkpoint", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor", "--model", str(tiny_model), "--drafter", str(tmp_path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    (problem,) = [each for each in report["problems"] if "drafter" in each["what"]]
    assert problem["what"].endswith("needs the package torch") and problem["fix"] == "pip install torch"


def test_half_precision_halves_it(tiny_model: Path) -> None:
    full, half = (memory.budget(tiny_model, PlannerConfig(precision=p)) for p in ("float32", "bfloat16"))
    assert full.total == 2 * half.total


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
