"""``spec-planner doctor``: its JSON, its memory figures against the real thing, what it says when things lack."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from drafters.lookup import LookupDrafter
from spec_planner.cli import probes
from spec_planner.cli.main import main
from spec_planner.memory import check
from spec_planner.memory.available import Memory
from spec_planner.memory.budget import PASS_ROOM

from .conftest import ROOT, Run

BLOCK = """
import sys
sys.modules.update(dict.fromkeys({names!r}))
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
        command = ["doctor", "--model", str(tiny_model), "--engine", "torch", "--drafter", graft + name]
        main([*command, "--context-length", "256", "--json"])
        report = json.loads(capsys.readouterr().out)
        assert not any("drafter" in problem["what"] for problem in report["problems"])
        counted.add(report["memory"]["drafter"])
    (most,) = counted
    states = (256 + PASS_ROOM) * 64 * 4
    index = LookupDrafter.most_bytes(256 + PASS_ROOM) if graft else 0
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
def test_a_cache_that_cannot_be_made_is_a_problem(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(tmp_path / "file" / "cache"))
    assert main(["doctor", "--model", str(tiny_model), "--engine", "torch", "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert "cannot be made" in problem["what"] and "SPEC_PLANNER_CACHE" in problem["fix"]


@pytest.mark.usefixtures("all_installed")
def test_more_than_the_machine_has_does_not_fit(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "main_memory", lambda: Memory("cpu", 1000, 2000))
    assert main(["doctor", "--model", str(tiny_model), "--device", "cpu", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["memory"]["fits"] is False
    (problem,) = [each for each in report["problems"] if "needs" in each["what"]]
    assert problem["what"].endswith("of memory on cpu and 0.0 MB are available")
    assert problem["fix"].startswith("use a smaller model")


@pytest.mark.usefixtures("all_installed")
def test_what_fits_is_shown_line_by_line(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--model", str(tiny_model), "--engine", "onnx", "--precision", "int8", "--drafter", "none"])
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("memory (onnx, int8, context 2048, on cpu)")
    shown = [line.split()[0] for line in lines[start + 1 :] if line.startswith("  ")]
    parts = ["weights", "copies", "kv", "drafter", "activations", "workspace", "process", "total", "available"]
    assert shown[: len(parts)] == parts
    assert any("total" in line and line.endswith("fits") for line in lines)


@pytest.mark.usefixtures("all_installed")
def test_auto_is_judged_by_the_engine_that_was_found_before(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spec_planner.engine_choice.remembered_engine", lambda *given: "openvino")
    main(["doctor", "--model", str(tiny_model), "--json"])
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert (memory["engine"], memory["largest_of"]) == ("openvino", [])


@pytest.mark.usefixtures("all_installed")
def test_auto_is_judged_by_what_it_may_become_until_it_is_tried(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spec_planner.engine_choice.remembered_engine", lambda *given: None)
    tried = {}
    for engine in ("onnx", "torch", "openvino", "auto"):
        command = ["doctor", "--model", str(tiny_model), "--device", "cpu", "--drafter", "none", "--json"]
        main([*command, "--engine", engine])
        tried[engine] = json.loads(capsys.readouterr().out)["memory"]
    auto = tried.pop("auto")
    assert auto["largest_of"] == list(tried) and auto["total"] == max(one["total"] for one in tried.values())
    assert auto["total"] == tried[auto["engine"]]["total"]
    main(["doctor", "--model", str(tiny_model), "--device", "cpu", "--drafter", "none"])
    said = "memory (auto: not tried yet, the largest of onnx, torch, openvino; float32, context 2048, on cpu)"
    assert said in capsys.readouterr().out
    # Where one of them does not fit, the trial leaves it out.
    sizes = sorted(one["total"] for one in tried.values())
    monkeypatch.setattr(check, "main_memory", lambda: Memory("cpu", sizes[-1] - 1, 2 * sizes[-1]))
    main(["doctor", "--model", str(tiny_model), "--device", "cpu", "--drafter", "none", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["memory"]["fits"] is True and report["memory"]["total"] == sizes[-2]
    assert not any("needs" in problem["what"] for problem in report["problems"])


@pytest.mark.parametrize(
    ("missing", "problems"), [(("onnxruntime",), []), (("onnxruntime", "openvino"), ["onnxruntime", "openvino"])]
)
def test_under_auto_one_engine_that_can_be_imported_is_enough(
    missing: tuple[str, ...], problems: list[str], tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("spec_planner.engine_choice.engines_to_try", lambda config: ("onnx", "openvino"))
    monkeypatch.setattr(probes, "import_error", lambda module: "broken" if module in missing else "")
    code = main(["doctor", "--model", str(tiny_model), "--precision", "int8", "--drafter", "none", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert [problem["what"].split()[0] for problem in report["problems"]] == problems
    assert code == bool(problems) and report["memory"]["weights"] > 0


@pytest.mark.usefixtures("all_installed")
def test_without_any_engine_it_says_what_to_install(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("onnxruntime", "openvino"):
        monkeypatch.setitem(sys.modules, name, None)
    command = ["doctor", "--model", str(tiny_model), "--precision", "int8", "--device", "cpu", "--drafter", "none"]
    assert main([*command, "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["what"].startswith("no engine that runs precision 'int8'") and "onnxruntime" in problem["fix"]


@pytest.mark.usefixtures("all_installed")
def test_the_model_as_it_was_published_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(tmp_path))
    for name in ("default", "default-base"):
        main(["doctor", "--model", name, "--json"])
        report = json.loads(capsys.readouterr().out)
        assert report["model"]["setting"] == name and not any("model" in one["what"] for one in report["problems"])
        assert ("instruct" in report["model"]["directory"]) is (name == "default-base")
    assert not list(tmp_path.rglob("*.safetensors"))


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
