"""``spec-planner export`` and ``build``: their output's form, and errors in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("onnx")

from engine_trt.trt_module import load_tensorrt
from spec_planner.engines.decoder_config import EngineUnavailable

from .conftest import Run


def _can_build() -> bool:
    try:
        return bool(load_tensorrt().capabilities())
    except EngineUnavailable:
        return False


def test_export_says_what_it_wrote(spec_planner: Run, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "graphs"
    arguments = ("export", f"--target={tiny_model}", f"--out={out}", "--context-length=100", "--precision=int8")
    done = spec_planner(*arguments, "--trt=10.3", "--taps=1,2", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["files"] == {path.name: path.stat().st_size for path in out.iterdir()}
    assert summary["bytes"] == sum(summary["files"].values()) and summary["key"].startswith("target-int8-")
    names = {tensor["name"] for tensor in summary["inputs"]["decoder"]}
    assert {"ids", "positions", "slots", "mask", "rows", "past.0.key", "past.1.value"} == names - {"past.0.value"} - {
        "past.1.key"
    }
    outputs = {tensor["name"]: tensor["shape"] for tensor in summary["outputs"]["decoder"]}
    assert outputs["logits"] == ["r", 320] and "hidden.0" not in outputs and outputs["hidden.2"] == ["n", 64]
    shown = spec_planner(*arguments)
    assert shown.returncode == 0 and f"spec-planner build --graph {out}" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--precision", "int3"], "there is no precision 'int3' for TensorRT: use one of float32, float16"),
        (["--trt", "8.6"], "there are no graphs for TensorRT '8.6': use 10.15 or 10.3"),
        (["--taps", "one"], "--taps takes layers with commas between them, got 'one'"),
        (["--target", "nowhere"], "model 'nowhere' is not a directory"),
        (["--drafter", "magic"], "drafter 'magic' is neither a directory nor one of"),
        (["--drafter", "eagle3"], "was trained for"),
        (["--drafter", "eagle3", "--lend"], "--lend and --taps are of a target's graph"),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_sentence(
    spec_planner: Run, tiny_model: Path, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = spec_planner("export", f"--target={tiny_model}", f"--out={tmp_path / 'out'}", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert sentence in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_build_refuses_what_is_no_export(spec_planner: Run, tmp_path: Path) -> None:
    done = spec_planner("build", f"--graph={tmp_path}", f"--out={tmp_path / 'out'}")
    assert done.returncode == 2 and "manifest.json cannot be read" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.skipif(_can_build(), reason="there is a TensorRT here")
def test_build_without_tensorrt_says_how_to_get_it(spec_planner: Run, tiny_model: Path, tmp_path: Path) -> None:
    graphs = tmp_path / "graphs"
    assert spec_planner("export", f"--target={tiny_model}", f"--out={graphs}", "--context-length=64").returncode == 0
    done = spec_planner("build", f"--graph={graphs}", f"--out={tmp_path / 'out'}")
    assert done.returncode == 2 and "needs TensorRT" in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.skipif(not _can_build(), reason="no TensorRT-RTX here")
def test_build_prints_what_the_engine_needs(spec_planner: Run, tiny_model: Path, tmp_path: Path) -> None:
    graphs, out = tmp_path / "graphs", tmp_path / "engine"
    assert spec_planner("export", f"--target={tiny_model}", f"--out={graphs}", "--context-length=64").returncode == 0
    done = spec_planner("build", f"--graph={graphs}", f"--out={out}", "--compute-capability=sm89", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["key"]["capability"] == "sm89"
    assert record["engines"]["decoder"]["plan"] == (out / "decoder.plan").stat().st_size
    shown = spec_planner("build", f"--graph={graphs}", f"--out={out}", "--compute-capability=sm89")
    assert all(words in shown.stdout for words in ("weights", "KV cache", "activations", "together", "in place"))
    refused = spec_planner("build", f"--graph={graphs}", f"--out={out}")
    assert refused.returncode == 2 and "name one with --compute-capability" in refused.stderr
