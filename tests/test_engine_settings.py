"""Engine, precision and device: what goes together, what ``auto`` comes to, what is said when it does not."""

from __future__ import annotations

import sys

import pytest

from spec_planner.config import ConfigError, PlannerConfig
from spec_planner.factory import build_pipeline
from tests.models import make_tiny_model


@pytest.mark.parametrize(
    ("engine", "precision", "comes_to"),
    [
        ("auto", "float32", "torch"),
        ("auto", "bfloat16", "torch"),
        ("auto", "int8", "onnx"),
        ("onnx", "float32", "onnx"),
        ("onnx", "int4", "onnx"),
        ("openvino", "bfloat16", "openvino"),
        ("torch", "float16", "torch"),
    ],
)
def test_these_go_together(engine, precision, comes_to):
    assert PlannerConfig(engine=engine, precision=precision).engine_name == comes_to


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"engine": "torch", "precision": "int4"},
            "'torch' does not run in precision 'int4': set precision to one of fl",
        ),
        ({"engine": "onnx", "precision": "bfloat16"}, "'onnx' does not run in precision 'bfloat16'"),
        ({"engine": "onnx", "device": "cuda"}, "'onnx' runs on the CPU only: set device to auto or cpu"),
        ({"engine": "openvino", "device": "cuda"}, "'openvino' runs on the CPU only: set device to auto or cpu"),
        ({"engine": "openvino", "precision": "int4"}, "'openvino' does not run in precision 'int4'"),
        ({"engine": "llamacpp"}, "engine must be one of auto, torch, onnx, openvino"),
    ],
)
def test_these_do_not(settings, message):
    with pytest.raises(ConfigError, match=message) as error:
        PlannerConfig(**settings)
    assert "\n" not in str(error.value)


def test_passes_have_one_width_where_bits_or_openvino_want_it():
    assert PlannerConfig().pass_width is None and PlannerConfig(engine="onnx").pass_width is None
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


def test_a_plan_runs_on_onnx_runtime(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(tmp_path / "cache"))
    model, said = make_tiny_model(tmp_path / "model"), []
    config = PlannerConfig(
        model=str(model), precision="int8", drafter="draft-model", draft_layers=1, context_length=1024
    )
    pipeline = build_pipeline(config, said.append)
    try:
        assert (pipeline.info.engine, pipeline.info.precision) == ("onnx", "int8")
        assert any("exporting" in line for line in said)
        pipeline.warm_up()
    finally:
        pipeline.close()
