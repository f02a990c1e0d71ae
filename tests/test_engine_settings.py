"""Engine, precision and device: what goes together, and what is said when it does not."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest

from spec_planner import target_loading
from spec_planner.config import DEVICES_OF, ENGINES, PRECISIONS, PRECISIONS_OF, ConfigError, PlannerConfig
from spec_planner.engines.decoder_config import EngineUnavailable
from spec_planner.factory import build_pipeline
from spec_planner.target_loading import load_target
from tests.models import make_tiny_model


def test_every_engine_has_precisions_and_a_device():
    assert set(PRECISIONS_OF) == set(DEVICES_OF) == set(ENGINES) - {"auto"}


@pytest.mark.parametrize("engine", PRECISIONS_OF)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_engine_takes_its_precisions_and_no_other(engine, precision):
    if precision in PRECISIONS_OF[engine]:
        config = PlannerConfig(engine=engine, precision=precision)
        assert config.engine_name == engine and config.engines == (engine,)
    else:
        with pytest.raises(ConfigError, match=f"'{engine}' does not run in precision '{precision}': set precision to"):
            PlannerConfig(engine=engine, precision=precision)


@pytest.mark.parametrize(
    ("device", "precision", "left"),
    [
        ("cpu", "float32", ("torch", "onnx", "openvino")),
        ("cpu", "bfloat16", ("torch", "openvino")),
        ("cpu", "int8", ("onnx", "openvino")),
        ("cpu", "int4", ("onnx",)),
        ("cuda", "float16", ("torch", "tensorrt")),
        ("cuda", "int8", ("tensorrt",)),
        ("auto", "fp8", ("tensorrt",)),
    ],
)
def test_auto_leaves_the_engines_that_have_precision_and_device(device, precision, left):
    assert PlannerConfig(device=device, precision=precision).engines == left


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"engine": "torch", "precision": "int4"},
            "'torch' does not run in precision 'int4': set precision to one of fl",
        ),
        ({"engine": "onnx", "device": "cuda"}, "'onnx' runs on the CPU only: set device to auto or cpu"),
        ({"engine": "openvino", "device": "cuda"}, "'openvino' runs on the CPU only: set device to auto or cpu"),
        ({"engine": "tensorrt", "device": "cpu"}, "'tensorrt' runs on a GPU only: set device to auto or cuda"),
        (
            {"device": "cpu", "precision": "nvfp4"},
            "'nvfp4' runs on a GPU only .engine tensorrt.: set device to auto or",
        ),
        ({"engine": "torch", "engine_file": "made"}, "engine_file is for engine tensorrt, which engine 'torch'"),
        ({"device": "cpu", "engine_file": "made"}, "engine_file is for engine tensorrt, which engine 'auto' on device"),
        ({"engine": "llamacpp"}, "engine must be one of auto, torch, onnx, openvino, tensorrt"),
    ],
)
def test_these_do_not_go_together(settings, message):
    with pytest.raises(ConfigError, match=message) as error:
        PlannerConfig(**settings)
    assert "\n" not in str(error.value)


def test_passes_have_one_width_where_bits_or_openvino_want_it():
    plain = PlannerConfig(engine="torch")
    assert plain.pass_width is None and replace(plain, engine="onnx").pass_width is None
    assert PlannerConfig(exactness="bitwise", num_draft_tokens=4).pass_width == 5
    assert PlannerConfig(engine="openvino", precision="int8", num_draft_tokens=15).pass_width == 16


@pytest.mark.parametrize(("engine", "package"), [("onnx", "onnxruntime"), ("openvino", "openvino")])
def test_a_missing_library_says_how_to_get_it(engine, package, tmp_path, monkeypatch):
    model = make_tiny_model(tmp_path / "model")
    for name in [name for name in sys.modules if name.startswith(f"spec_planner.engines.{engine}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    wanted = f"engine {engine!r} needs the package {package}: pip install onnx {package}, then configure again"
    with pytest.raises(ValueError, match=wanted):
        build_pipeline(PlannerConfig(model=str(model), engine=engine, drafter="none"))


def test_tensorrt_is_loaded_with_its_engine_file(tmp_path, monkeypatch):
    class TrtTarget:
        @staticmethod
        def load(directory, **options):
            return {**options, "directory": directory}

    stand_in = ModuleType("engine_trt.trt_target")
    stand_in.TrtTarget = TrtTarget
    monkeypatch.setitem(sys.modules, "engine_trt.trt_target", stand_in)
    config = PlannerConfig(engine="tensorrt", precision="int4", engine_file="made", num_draft_tokens=4)
    asked = load_target(config, tmp_path)
    asked.pop("report")
    assert asked == {
        **{"directory": tmp_path, "context_length": 2048, "precision": "int4", "pass_width": None},
        "engine_file": "made",
    }


def test_a_machine_without_tensorrt_is_told_where_it_comes_from(tmp_path, monkeypatch):
    for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EngineUnavailable, match="needs TensorRT, which is not installed here.*on a Jetson it comes"):
        load_target(PlannerConfig(engine="tensorrt", precision="int4"), make_tiny_model(tmp_path / "tiny"))


@pytest.mark.parametrize("error", [OSError("libfast.so: cannot open"), ImportError("no", name="fast")])
def test_a_library_that_cannot_be_loaded_is_no_engine(error, tmp_path, monkeypatch):
    def find(engine):
        raise error

    monkeypatch.setattr(target_loading, "_target_class", find)
    with pytest.raises(EngineUnavailable, match="engine 'onnx' .*fast.*pip install onnx onnxruntime"):
        load_target(PlannerConfig(engine="onnx"), tmp_path)


def test_a_plan_runs_on_onnx_runtime(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(tmp_path / "cache"))
    model, said = make_tiny_model(tmp_path / "model"), []
    config = PlannerConfig(
        model=str(model), engine="onnx", precision="int8", drafter="draft-model", draft_layers=1, context_length=1024
    )
    pipeline = build_pipeline(config, said.append)
    try:
        assert (pipeline.info.engine, pipeline.info.precision) == ("onnx", "int8")
        assert any("exporting" in line for line in said)
        pipeline.warm_up()
    finally:
        pipeline.close()
