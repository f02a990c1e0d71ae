"""Which library runs a draft network, and that it changes no token."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

from safetensors.torch import load_file, save_file

from drafters.checkpoint import CheckpointError
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


def no_onnx_runtime(monkeypatch, cache):
    monkeypatch.setitem(sys.modules, "spec_planner.engines.onnx_runner", None)


def old_onnx_runtime(monkeypatch, cache):
    monkeypatch.setattr("onnxruntime.__version__", "1.23.2")


def no_onnx(monkeypatch, cache):
    for name in ("spec_planner.graphs.layers", "spec_planner.graphs.builder"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "onnx", None)


def no_place_to_write(monkeypatch, cache):
    cache.write_text("a file where the cache should be")


@pytest.mark.parametrize(
    ("lack", "said"),
    [
        (no_onnx_runtime, "its graph needs the package"),
        (old_onnx_runtime, "a draft network's graph needs onnxruntime 1.31 or newer and found 1.23.2"),
        (no_onnx, "exporting a draft network needs the package onnx"),
        (no_place_to_write, "cannot write the draft network's graph to"),
    ],
)
def test_where_no_graph_can_be_made_it_runs_in_torch_and_says_why(model, tmp_path, monkeypatch, lack, said):
    said_lines, target = [], load_onnx(model, context_length=64, threads=1)
    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(tmp_path / "other"))
    lack(monkeypatch, tmp_path / "other")
    drafter = load_network(MAKERS["medusa"](tmp_path / "medusa"), PlannerConfig(), target, 1, said_lines.append)
    assert not isinstance(drafter._net, Compiled) and drafter.network == "torch, float32"
    (line,) = said_lines
    assert line.startswith(f"drafter medusa: {said}") and line.endswith("; torch runs it instead")
    target.close()


def test_what_is_wrong_with_the_checkpoint_is_said_and_not_tried_in_torch(model, tmp_path):
    directory, said = MAKERS["eagle3"](tmp_path / "drafter"), []
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "vocab_size": 7}))
    target = load_onnx(model, context_length=64, threads=1)
    with pytest.raises(CheckpointError, match="a vocabulary of 7"):
        load_network(directory, PlannerConfig(), target, 1, said.append)
    assert said == []
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


def its_own_layers(model: Path, directory: Path) -> Path:
    """A draft model that guesses what the target says: it has the target's own layers."""
    directory.mkdir()
    tensors = load_file(model / "model.safetensors")
    lent = ("model.embed_tokens.weight", "lm_head.weight")
    save_file({name: each for name, each in tensors.items() if name not in lent}, directory / "model.safetensors")
    shutil.copy(model / "config.json", directory)
    return directory


def test_the_answer_is_the_same_and_many_of_the_drafts_are_kept(model, tmp_path):
    """So the network in 8 bits, in the planner, is the one that the checkpoint holds."""
    directory = its_own_layers(model, tmp_path / "drafter")
    config = PlannerConfig(model=str(model), engine="onnx", drafter=str(directory), context_length=1024)
    pipeline = build_pipeline(replace(config, draft_budget="fixed", num_draft_tokens=4))
    try:
        asked = {"sampling": SamplingParams(1.0, seed=4), "max_tokens": 48, "free_text": True}
        plain, drafted = (pipeline.run(PlanRequest("Fetch the cup.", plain=plain, **asked)) for plain in (True, False))
        assert drafted.tokens == plain.tokens and pipeline.drafter.network == "onnx, int8"
        assert drafted.metrics.num_accepted > 0.4 * drafted.metrics.num_drafted > 10
    finally:
        pipeline.close()
