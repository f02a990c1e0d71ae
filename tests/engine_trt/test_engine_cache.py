"""What an engine is for: keys, and the sentence that refuses one that is for something else."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("onnx")

from engine_trt import engine_cache, engine_key
from engine_trt.bindings import MANIFEST_FILE, NATIVE, SCATTER, Manifest, read_manifest
from engine_trt.build_engine import ENGINE_FILE, Built, EngineRecord, read_record
from engine_trt.engine_cache import check_engine_directory, dialect_for, engine_directory, tenths
from engine_trt.engine_key import EngineKey, jetson_release
from engine_trt.export import export_target
from engine_trt.inspect_engine import Compiled
from engine_trt.trt_module import TensorRt, load_tensorrt
from spec_planner.engines.decoder_config import EngineUnavailable, ModelError
from tests.models import make_tiny_model

ROOT = Path(__file__).resolve().parents[2]
PLAN = b"as good as a plan"


def full(version: str) -> TensorRt:
    """The full TensorRT, as far as keys look at it."""
    return TensorRt(SimpleNamespace(__version__=version), "tensorrt")


def rtx() -> TensorRt:
    capability = SimpleNamespace(SM75=1, SM89=2, CURRENT=0)
    return TensorRt(SimpleNamespace(__version__="1.7.1", ComputeCapability=capability), "tensorrt-rtx")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("cache") / "tiny")


@pytest.fixture
def engine(model, tmp_path, monkeypatch):
    """A directory as ``build`` leaves it, made on an Orin with TensorRT 10.3; and this machine is that Orin."""
    monkeypatch.setattr(engine_key, "device_capability", lambda: "sm87")
    monkeypatch.setattr(engine_key, "jetson_release", lambda: "R36.4.3")
    monkeypatch.setattr(engine_cache, "load_tensorrt", lambda: full("10.3.0"))
    directory = tmp_path / "engine"
    manifest = export_target(model, directory, precision="float16", context_length=100, dialect=SCATTER)
    (directory / "decoder.plan").write_bytes(PLAN)
    built = Built(len(PLAN), hashlib.sha256(PLAN).hexdigest(), 2, 3, Compiled())
    record = EngineRecord(EngineKey.of(full("10.3.0"), manifest), {"decoder": built})
    (directory / ENGINE_FILE).write_text(json.dumps(dataclasses.asdict(record)))
    assert read_record(directory) == record
    return directory


def check(engine, model, context_length: int = 100, precision: str = "float16") -> Manifest:
    return check_engine_directory(engine, model, context_length=context_length, precision=precision)


def test_an_engine_that_fits_is_taken(engine, model):
    assert check(engine, model).networks["decoder"].cache
    assert check(engine, model, context_length=64).context_length == 100  # shorter contexts fit into longer ones


def test_a_stale_engine_is_refused_with_what_differs_and_what_to_do(engine, model, monkeypatch, tmp_path):
    monkeypatch.setattr(engine_cache, "load_tensorrt", lambda: full("10.16.2"))
    with pytest.raises(ModelError) as refused:
        check(engine, model)
    sentence = str(refused.value)
    assert "TensorRT version 10.3.0 and not 10.16.2" in sentence
    assert f"spec-planner build --graph graphs --out {engine}" in sentence and f"--trt {NATIVE}" in sentence
    monkeypatch.setattr(engine_cache, "load_tensorrt", lambda: full("10.3.0"))
    monkeypatch.setattr(engine_key, "device_capability", lambda: "sm110")
    monkeypatch.setattr(engine_key, "jetson_release", lambda: "R38.4.0")
    with pytest.raises(ModelError, match="GPU sm87 and not sm110, Jetson Linux release R36.4.3 and not R38.4.0"):
        check(engine, model)


def test_an_engine_of_something_else_is_refused(engine, model, tmp_path):
    other = make_tiny_model(tmp_path / "other", seed=7)
    with pytest.raises(ModelError, match="target weights-.* and not weights-"):
        check(engine, other)
    with pytest.raises(ModelError, match="precision float16 and not int8"):
        check(engine, model, precision="int8")
    with pytest.raises(ModelError, match="contexts of 100 tokens and not 200"):
        check(engine, model, context_length=200)
    export_target(model, engine, precision="float16", context_length=128, dialect=SCATTER)  # the engine file is gone
    with pytest.raises(ModelError, match="holds no engine.*spec-planner build"):
        check(engine, model)


def test_an_engine_that_cannot_be_used_is_refused_before_it_is_opened(engine, model):
    assert engine_directory(str(engine)) == engine == engine_directory(str(engine / "decoder.plan"))
    with pytest.raises(ModelError, match="engine_file .*nowhere does not exist: give the directory"):
        engine_directory(str(engine / "nowhere"))
    (engine / "decoder.plan").write_bytes(PLAN[:-1])
    with pytest.raises(ModelError, match="is not the plan that was built .16 bytes, 17 expected"):
        check(engine, model)
    (engine / "decoder.plan").write_bytes(PLAN[::-1])
    with pytest.raises(ModelError, match="is not the plan that was built.*make the engine again"):
        check(engine, model)
    (engine / "decoder.plan").unlink()
    with pytest.raises(ModelError, match="decoder.plan cannot be read .*make the engine again"):
        check(engine, model)
    manifest = json.loads((engine / MANIFEST_FILE).read_text())
    (engine / MANIFEST_FILE).write_text(json.dumps({**manifest, "kind": "eagle3"}))
    with pytest.raises(ModelError, match="is that of a drafter .eagle3.: give the target's"):
        check(engine, model)


def test_the_full_tensorrt_is_bound_to_the_very_device(engine, model, monkeypatch):
    """Two GPUs of one compute capability have kernels of their own; TensorRT-RTX compiles for the capability."""
    monkeypatch.setattr(engine_key, "device_name", lambda: "Orin Nano (8 multiprocessors)")
    with pytest.raises(ModelError, match="is for device none and not Orin Nano .8 multiprocessors.: make it again"):
        check(engine, model)
    monkeypatch.setattr(engine_key, "device_capability", lambda: "sm89")
    assert EngineKey.of(rtx(), read_manifest(engine)).device == ""


def test_every_tenth_of_a_build_is_told_once():
    said: list[str] = []
    progress = tenths(said.append)
    for share in (0.0, 0.05, 0.1, 0.12, 0.35, 0.39, 1.0):
        progress(share, "timing tactics")
    assert [line.split(": ")[1] for line in said] == [f"{n} % of its steps (timing tactics)" for n in (10, 30, 100)]


def test_sizes_are_summed_over_engines_and_a_silent_one_counts_whole(engine):
    one, other = Built(100, "", 90, 30, Compiled()), Built(50, "", 0, 20, Compiled())
    record = EngineRecord(read_record(engine).key, {"rows": one, "follow": other})
    assert (record.weight_bytes, record.activation_bytes, record.plan_bytes) == (140, 50, 150)


def test_capabilities(model, tmp_path, monkeypatch):
    manifest = export_target(model, tmp_path / "graphs", precision="float16", context_length=64)
    monkeypatch.setattr(engine_key, "device_capability", lambda: "")
    assert EngineKey.of(rtx(), manifest, "SM89").capability == "sm89"
    for trt, wanted, words in (
        (rtx(), "", "no GPU here to build for: name one with --compute-capability .sm75, sm89"),
        (rtx(), "sm90", "cannot build for sm90: it knows sm75, sm89"),
        (full("10.16"), "", "build on the robot"),
        (full("10.16"), "sm87", "only for the GPU it runs on, none here, not sm87"),
    ):
        with pytest.raises(ModelError, match=words):
            EngineKey.of(trt, manifest, wanted)


def test_the_dialect_follows_the_version():
    assert {dialect_for(full(version)) for version in ("10.3.0", "10.13.3.9", "10.14.1")} == {SCATTER}
    assert {dialect_for(trt) for trt in (full("10.15.1"), full("11.4.0"), rtx())} == {NATIVE}


def test_jetson_release(tmp_path):
    assert jetson_release(tmp_path / "none") == ""
    path = tmp_path / "nv_tegra_release"
    path.write_text("# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n")
    assert jetson_release(path) == "R36.4.3"
    path.write_text("something else\n")
    with pytest.raises(ModelError, match="does not say which Jetson Linux"):
        jetson_release(path)


def test_a_robot_that_builds_and_runs_needs_no_onnx():
    script = """
import sys
for name in ("onnx", "ml_dtypes", "onnxruntime"):
    sys.modules[name] = None
import engine_trt.build_engine, engine_trt.trt_runner, engine_trt.trt_target
from engine_trt.engine_cache import ensure_engine
from spec_planner.cli import build
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_every_file_is_python_3_10():
    """JetPack 6's, of which there is none here: by its grammar."""
    for path in (ROOT / "engine_trt").glob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))


def test_a_tensorrt_that_is_too_old_is_refused_with_that_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(__version__="8.5.2.2"))
    for name in ("tensorrt_rtx", "tensorrt_rtx_bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EngineUnavailable, match="tensorrt is there in version 8.5.2.2, and 10.3 is the oldest"):
        load_tensorrt()
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(__version__="10.3.0"))
    assert load_tensorrt().flavour == "tensorrt"


def test_without_tensorrt_one_sentence_says_how_to_get_it(monkeypatch):
    for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EngineUnavailable, match="needs TensorRT, which is not installed here.*JetPack.*pip install"):
        load_tensorrt()
