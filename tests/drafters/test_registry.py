"""A checkpoint's directory is a drafter: named in the config, found out by its tensors, exact like the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import save_file

from drafters.registry import CHECKPOINTS, load_drafter
from spec_planner.config import ConfigError, PlannerConfig
from spec_planner.decoding.contracts import Incompatible
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.engines.torch_target import TorchTarget
from spec_planner.factory import build_pipeline
from spec_planner.pipeline.types import PlanRequest
from tests.models import make_tiny_model

from .dflash_support import BLOCK, config_for_target, write_dflash, write_dflash2
from .dflash_support import SIZES as SIZES_2
from .mtp_support import Draw, dense_layer, saved
from .test_checkpoint import make_eagle

DFLASH2 = {"block_size": BLOCK, **SIZES_2}
LAYERS = 12  # enough for the layers that EAGLE-3 reads
CONFIG = {"model_type": "qwen3", "vocab_size": 320, "num_hidden_layers": LAYERS, "hidden_size": 64, "head_dim": 24,
          "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
          "rope_theta": 10000.0}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target") / "tiny", "qwen3", num_layers=LAYERS, tied=False)


def make_medusa(directory: Path) -> Path:
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for head in range(3):
        tensors[f"{head}.0.linear.weight"] = torch.randn(64, 64, generator=generator) * 0.1
        tensors[f"{head}.0.linear.bias"] = torch.zeros(64)
        tensors[f"{head}.1.weight"] = torch.randn(320, 64, generator=generator)
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    return directory


def make_mtp(directory: Path) -> Path:
    draw = Draw(1)
    draw(f"model.layers.{LAYERS}.eh_proj.weight", 64, 128)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        draw(f"model.layers.{LAYERS}.{norm}.weight", 64, around=1.0)
    dense_layer(draw, f"model.layers.{LAYERS}.")
    return saved(directory, draw.tensors, CONFIG)


def make_parallel_mtp(directory: Path) -> Path:
    draw = Draw(2)
    for head in range(3):
        dense_layer(draw, f"extra_heads.{head}.")
    return saved(directory, draw.tensors, CONFIG)


def make_draft_model(directory: Path) -> Path:
    draw = Draw(3)
    for layer in range(2):
        dense_layer(draw, f"model.layers.{layer}.")
    draw("model.norm.weight", 64, around=1.0)
    return saved(directory, draw.tensors, {**CONFIG, "num_hidden_layers": 2})


SIZES = {"vocabulary": 320, "hidden": 64, "target_layers": LAYERS}
MAKERS = {
    "medusa": make_medusa,
    "mtp": make_mtp,
    "mtp-parallel": make_parallel_mtp,
    "draft-model": make_draft_model,
    "eagle1": lambda directory: make_eagle(directory, "eagle1", draft_vocabulary=320, **SIZES),
    "eagle3": lambda directory: make_eagle(directory, "eagle3", draft_vocabulary=100, **SIZES),
    "dflash": lambda directory: write_dflash(directory, config_for_target()),
    "dflash2": lambda directory: write_dflash2(directory, config_for_target(dflash_config=DFLASH2)),
}


def test_every_kind_of_checkpoint_is_tried():
    assert set(MAKERS) == set(CHECKPOINTS)


@pytest.mark.parametrize("branches", [1, 3], ids=["chain", "tree"])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_directory_is_a_drafter_and_changes_no_token(tmp_path, model, kind, branches):
    """Free text and under the grammar, sampled and greedy."""
    directory = MAKERS[kind](tmp_path / "drafter")
    settings = {"engine": "torch", "drafter": str(directory), "draft_branches": branches, "context_length": 1024}
    config = PlannerConfig(model=str(model), **settings)
    pipeline = build_pipeline(config)
    try:
        drafted = 0
        for free_text in (True, False):
            for temperature in (0.0, 1.0):
                sampling = SamplingParams(temperature, seed=4)
                asked = {"sampling": sampling, "max_tokens": 24, "free_text": free_text, "max_steps": 3}
                plain = pipeline.run(PlanRequest("Fetch the cup.", plain=True, **asked))
                result = pipeline.run(PlanRequest("Fetch the cup.", **asked))
                assert result.tokens == plain.tokens
                drafted += result.metrics.num_drafted
        assert drafted > 0 and pipeline.drafter_name not in ("none", "lookup")
    finally:
        pipeline.close()


def test_what_is_no_drafter_is_said_in_one_sentence(tmp_path, model):
    with pytest.raises(ConfigError, match="no drafter is called 'nowhere'; choose auto, none, lookup, draft-model"):
        build_pipeline(PlannerConfig(model=str(model), drafter="nowhere"))
    with pytest.raises(ValueError, match="is of no drafter kind known here"):
        build_pipeline(PlannerConfig(model=str(model), engine="torch", drafter=str(model)))
    other = make_tiny_model(tmp_path / "other", "qwen3", num_layers=2)
    target = TorchTarget.load(other, context_length=128, device="cpu")
    with pytest.raises((ValueError, Incompatible), match="0 to 2|layers"):
        load_drafter(MAKERS["eagle3"](tmp_path / "drafter"), target, 1)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text(json.dumps({}))
    with pytest.raises(ValueError, match="empty"):
        build_pipeline(PlannerConfig(model=str(model), engine="torch", drafter=str(tmp_path / "empty")))
