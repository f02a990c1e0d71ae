"""Sizes of hidden states that are found without data."""

from __future__ import annotations

import dataclasses

import torch

from drafters.training.stream_sizes import stream_sizes
from tests.drafters.training.rows_support import real_target, think, toy_weights

READ = (1, 4, 8)


def test_the_targets_layers_are_run_as_the_engine_runs_them(tmp_path):
    target, weights = real_target(tmp_path)
    ids = torch.randint(40, (128,), generator=torch.Generator().manual_seed(0)).tolist()
    expected = think(target, ids, READ)[8:].square().mean(0).sqrt()
    torch.testing.assert_close(stream_sizes(weights, READ), expected, rtol=1e-4, atol=1e-5)


def test_a_target_of_other_layers_is_taken_as_even(tmp_path):
    assert stream_sizes(toy_weights(), READ).eq(1).all()
    _, weights = real_target(tmp_path)
    extra = {"pre_feedforward_layernorm.weight": torch.ones(32)}
    unknown = dataclasses.replace(weights, layer=lambda number: {**weights.layer(number), **extra})
    assert stream_sizes(unknown, READ).eq(1).all()
