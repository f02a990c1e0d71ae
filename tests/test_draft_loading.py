"""Which library runs a draft network, and that it changes no token."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

from drafters.compiled.base import Compiled
from spec_planner.config import PlannerConfig
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.draft_loading import load_network
from spec_planner.engines.torch_target import TorchTarget
from spec_planner.factory import build_pipeline
from spec_planner.pipeline.types import PlanRequest
from tests.drafters.mtp_support import Draw, dense_layer, saved
from tests.drafters.test_registry import CONFIG, LAYERS, MAKERS
from tests.models import load_onnx, make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target") / "tiny", "qwen3", num_layers=LAYERS, tied=False)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(tmp_path / "cache"))


def test_beside_a_target_on_onnx_runtime_it_runs_there_and_beside_torch_in_torch(model, tmp_path):
    directory, config = MAKERS["eagle3"](tmp_path / "drafter"), PlannerConfig(drafter="eagle3")
    nets = {}
    for engine, target in (("onnx", load_onnx(model, context_length=64, threads=1)),
                           ("torch", TorchTarget.load(model, context_length=64, device="cpu"))):  # fmt: skip
        nets[engine] = load_network(directory, config, target, 1, lambda line: None)._net
        target.close()
    assert isinstance(nets["onnx"], Compiled) and not isinstance(nets["torch"], Compiled)
    assert nets["onnx"].num_bytes < nets["torch"].num_bytes  # in 8 bits, rotary tables and all


def test_without_onnx_runtime_it_runs_in_torch(model, tmp_path, monkeypatch):
    monkeypatch.setattr("spec_planner.draft_loading.find_spec", lambda name: None)
    target = load_onnx(model, context_length=64, threads=1)
    drafter = load_network(MAKERS["medusa"](tmp_path / "drafter"), PlannerConfig(), target, 1, lambda line: None)
    assert not isinstance(drafter._net, Compiled)
    target.close()


def test_a_network_without_a_graph_runs_in_torch_and_says_so(model, tmp_path):
    draw, inner = Draw(1), f"model.layers.{LAYERS}."
    draw(f"{inner}eh_proj.weight", 64, 128)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        draw(f"{inner}{norm}.weight", 64, around=1.0)
    dense_layer(draw, inner)
    del draw.tensors[f"{inner}self_attn.q_proj.weight"]
    draw(f"{inner}self_attn.q_proj.weight", 2 * 96, 64)  # gated, as Qwen3-Next's
    said, target = [], load_onnx(model, context_length=64, threads=1)
    directory = saved(tmp_path / "gated", draw.tensors, CONFIG)
    drafter = load_network(directory, PlannerConfig(), target, 1, said.append)
    assert not isinstance(drafter._net, Compiled)
    assert said == [
        "drafter gated: attention that is gated or latent has no graph: this draft network runs on torch only"
    ]
    target.close()


def test_the_plan_is_the_same(model, tmp_path):
    directory = MAKERS["dflash2"](tmp_path / "drafter")
    config = PlannerConfig(model=str(model), engine="onnx", drafter=str(directory), context_length=1024)
    pipeline = build_pipeline(config)
    try:
        asked = {"sampling": SamplingParams(1.0, seed=4), "max_tokens": 24, "max_steps": 3}
        plain, drafted = (pipeline.run(PlanRequest("Fetch the cup.", plain=plain, **asked)) for plain in (True, False))
        assert drafted.tokens == plain.tokens and drafted.metrics.num_drafted > 0
    finally:
        pipeline.close()
