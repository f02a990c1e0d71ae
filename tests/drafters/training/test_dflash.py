"""DFlash in training: it learns, and what it says of itself is what the stored drafter does."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from drafters.checkpoint import detect
from drafters.nets.dflash_net import read_dflash_config
from drafters.training.dflash import DFlashOptions, DFlashTrainee, spread_layers, unsaid_token
from tests.drafters.training.rows_support import (
    WORDS,
    check_alignment,
    check_gradients,
    learn,
    real_target,
    toy_batch,
    toy_weights,
)

SMALL = {"layers": 2, "block_size": 5, "anchors": 20, "loss_vocabulary": 24}


def made(weights, seed: int = 0, **options) -> DFlashTrainee:
    torch.manual_seed(seed)
    return DFlashTrainee(weights, DFlashOptions(**{**SMALL, **options}))


@pytest.mark.parametrize("dpace", [False, True])
def test_it_learns(dpace):
    weights = toy_weights()
    before, after = learn(made(weights, dpace=dpace, anchors=40), weights, 90, rate=1e-2)
    assert before < 1.5 and after > 3.0


def test_every_parameter_learns_and_chance_comes_from_the_generator_alone():
    weights = toy_weights()
    check_gradients(made(weights), weights)


@pytest.mark.parametrize("tied", [False, True])
def test_stored_it_drafts_as_it_was_judged(tmp_path, tied):
    target, weights = real_target(tmp_path / "target", tied)
    (tmp_path / "drafter").mkdir()
    check_alignment(made(weights), target, tmp_path / "drafter")
    assert detect(tmp_path / "drafter") == "dflash"
    config = read_dflash_config(tmp_path / "drafter")
    assert config.feature_layers == spread_layers(8) == (2, 3, 4, 5, 6) and config.block_size == 5


def test_slots_weigh_less_the_further_they_are():
    weights, trainee = toy_weights(), made(toy_weights(), block_size=8)
    judged = torch.tensor([[True] * 7, [True] * 2 + [False] * 5])
    decayed = trainee._weights(torch.zeros(2, 7), judged)
    torch.testing.assert_close(decayed[0], torch.exp(-torch.arange(7) / 4))
    assert decayed[1, 2:].eq(0).all() and torch.equal(decayed[1, :2], decayed[0, :2])
    sure = torch.tensor([[0.0, 1.0, 3.0]])
    factors = torch.exp(-sure[0]) * 0.5 + 0.5
    by_hand = [sum(factors[: m + 1].prod() for m in range(j, 3)) for j in range(3)]
    paced = made(weights, dpace=True, block_size=4)._weights(sure, torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(paced[0], torch.stack(by_hand))


def test_blocks_do_not_see_each_other():
    """Behind an anchor the same is guessed alone and among others; and in evaluation a few at a time."""
    weights = toy_weights()
    trainee, batch = made(weights), toy_batch(weights, 0)
    few, all_at_once = made(weights, anchors=7).loss(batch), made(weights, anchors=500).loss(batch)
    torch.testing.assert_close(few.sum, all_at_once.sum)
    assert few.count == pytest.approx(all_at_once.count) and torch.equal(few.right, all_at_once.right)
    assert torch.equal(trainee.loss(batch).right, few.right)
    spaced = made(weights, evaluated_anchors=9).loss(batch)
    assert torch.equal(spaced.right, few.right[torch.arange(9) * len(few.right) // 9])


def test_the_mask_token_is_never_said():
    weights = toy_weights()
    assert unsaid_token(weights) == WORDS - 2  # its beginning of text
    counts = weights.token_counts.clone()
    counts[WORDS - 2] = counts[WORDS - 1] = 1
    assert unsaid_token(dataclasses.replace(weights, token_counts=counts)) == WORDS - 3
    with pytest.raises(ValueError, match="every token of toy stands in some answer"):
        unsaid_token(dataclasses.replace(weights, token_counts=torch.ones(WORDS)))


def test_feature_layers_are_spread_as_the_papers_do():
    assert spread_layers(36) == (2, 10, 18, 26, 34) and spread_layers(32) == (2, 9, 16, 23, 30)
    assert spread_layers(1) == (1,) and spread_layers(5) == (2, 3)
