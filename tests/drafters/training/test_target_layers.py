"""Copies of the target's layers, whole or with the inner units that matter most, and what their config says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from drafters.nets.rope import Rope
from drafters.training.target_layers import layer_config, layer_tensors

from .toy_target import HIDDEN, INNER, weights_of, write_target


def feed_forward(tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    gate, up, down = (tensors[f"mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    bias = {name: tensors.get(f"mlp.{name}_proj.bias") for name in ("gate", "up", "down")}
    return F.linear(F.silu(F.linear(x, gate, bias["gate"])) * F.linear(x, up, bias["up"]), down, bias["down"])


def test_the_largest_inner_units_stay(tmp_path):
    """A layer whose other units do nothing is the same layer without them, biases included."""
    weights = weights_of(write_target(tmp_path / "target"))
    whole = dict(weights.layer(1))
    generator = torch.Generator().manual_seed(5)
    kept = torch.randperm(INNER, generator=generator)[:20]
    faint = torch.full((INNER,), 1e-6).index_fill(0, kept, 1.0)
    whole["mlp.down_proj.weight"] = whole["mlp.down_proj.weight"] * faint
    for name, size in (("gate", INNER), ("up", INNER), ("down", HIDDEN)):
        whole[f"mlp.{name}_proj.bias"] = torch.randn(size, generator=generator)
    target = replace(weights, layer=lambda _: whole)
    pruned = layer_tensors(target, 1, 20)
    assert pruned["mlp.gate_proj.weight"].shape == pruned["mlp.up_proj.weight"].shape == (20, HIDDEN)
    assert pruned["mlp.down_proj.weight"].shape == (HIDDEN, 20)
    x = torch.randn(9, HIDDEN, generator=generator)
    torch.testing.assert_close(feed_forward(pruned, x), feed_forward(whole, x), rtol=1e-4, atol=1e-3)
    others = {name for name in whole if not name.startswith("mlp.")}
    assert pruned.keys() == whole.keys() and all(torch.equal(pruned[name], whole[name]) for name in others)
    assert layer_config(target, 20) == layer_config(target) | {"intermediate_size": 20}


def test_all_of_them_is_the_whole_layer(tmp_path):
    weights = weights_of(write_target(tmp_path / "target"))
    for intermediate in (0, INNER):
        found = layer_tensors(weights, 0, intermediate)
        assert all(torch.equal(found[name], tensor) for name, tensor in weights.layer(0).items())


@pytest.mark.parametrize("intermediate", [-1, INNER + 1])
def test_more_than_there_are_is_refused(tmp_path, intermediate):
    with pytest.raises(ValueError, match="name 1 to 48, or 0 for all"):
        layer_tensors(weights_of(write_target(tmp_path / "target")), 0, intermediate)


@pytest.mark.parametrize("kind", ["default", "linear"])
def test_rotary_positions_are_named_both_ways(tmp_path, kind):
    weights = weights_of(write_target(tmp_path / "target"))
    rotary = {"rope_theta": 5e5, "rope_type": kind} | ({"factor": 4.0} if kind == "linear" else {})
    config = {name: value for name, value in weights.config.items() if name != "rope_theta"}
    found = layer_config(replace(weights, config=config | {"rope_parameters": rotary}))
    assert found["rope_theta"] == 5e5 and found["rope_parameters"] == rotary
    assert found.get("rope_scaling") == (None if kind == "default" else {"rope_type": "linear", "factor": 4.0})
    older = {name: value for name, value in found.items() if name != "rope_parameters"}
    assert torch.equal(Rope.from_config(older, 8).frequencies, Rope.from_config(found, 8).frequencies)
