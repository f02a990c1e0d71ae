"""DFlash in training: it learns, and what it says of itself is what the stored drafter does."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from drafters.checkpoint import detect, read_config, read_tensors
from drafters.nets.dflash_net import read_dflash_config
from drafters.training.common import GrowingCache
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


@pytest.mark.parametrize("options", [{}, {"dpace": True}, {"soft": True}], ids=["decay", "dpace", "soft"])
def test_it_learns(options):
    weights = toy_weights()
    before, after = learn(made(weights, anchors=40, **options), weights, 140, rate=1e-2)
    assert before < 1.5 and after > 3.0


def test_every_parameter_learns_and_chance_comes_from_the_generator_alone():
    weights = toy_weights()
    check_gradients(made(weights), weights)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kept", [0, 20])
def test_stored_it_drafts_as_it_was_judged(tmp_path, tied, kept):
    target, weights = real_target(tmp_path / "target", tied)
    (tmp_path / "drafter").mkdir()
    check_alignment(made(weights, draft_vocabulary=kept), target, tmp_path / "drafter")
    assert len(read_config(tmp_path / "drafter").get("draft_tokens", ())) == kept
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


def test_laws_are_those_of_what_each_slot_guesses():
    weights, batch = toy_weights(), toy_batch(toy_weights(), 0)
    trainee = made(weights, soft=True, gamma=1e9)
    windows, slots = batch.windows(4), {}
    trainee.net.run_blocks = lambda rows, positions, masks, cache: slots.setdefault("made", torch.randn(rows.shape))
    loss = trainee.loss(dataclasses.replace(batch, paths=batch.paths[:1]))
    rows = windows[: len(loss.right)]
    q = (slots["made"][:, 1:] @ weights.head.T).log_softmax(-1)
    p = (batch.features[8][rows[:, :-1].clamp(min=0)] @ weights.head.T).softmax(-1)
    expected = (-(p * q).sum(-1) * (rows[:, 1:] >= 0))[rows[:, 0].argsort()].sum()
    torch.testing.assert_close(loss.sum, expected)


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


@pytest.mark.parametrize("forced", [0, 1, 3])
def test_forced_tokens_lead_the_block_as_they_do_in_drafting(forced):
    """Against the network's own pass: the context ends before the forced tokens, which stand before the anchor."""
    weights = toy_weights()
    trainee, batch = made(weights), toy_batch(weights, 0)
    path, net = batch.paths[0].rows, trainee.net
    features = batch.stacked(trainee._read)
    with torch.no_grad():
        everything = GrowingCache(2)
        net.follow(features, everything, batch.positions)
        anchors = path[[7, 9]]
        found = trainee._run_blocks(batch, anchors, everything, forced)
        for place, hidden in zip((7, 9), found, strict=True):
            cache = net.new_cache()
            net.follow(features[path[: place - forced]], cache)
            masks = torch.full((4,), net.config.mask_token_id)
            ids = torch.cat((batch.ids[path[place - forced : place + 1]], masks))
            torch.testing.assert_close(hidden, net(weights.embedding[ids], cache, anchor=forced)[forced + 1 :])


def test_forced_tokens_are_drawn_in_training_alone_and_never_before_the_prompt():
    trainee, generator = made(toy_weights()), torch.Generator().manual_seed(0)
    drawn = [trainee._draw_forced(torch.tensor([9, 20]), generator) for _ in range(300)]
    assert set(drawn) == {0, 1, 2, 3} and 80 < drawn.count(0) < 160
    assert {trainee._draw_forced(torch.tensor([9, 1]), generator) for _ in range(30)} == {0, 1}


def test_columns_are_learnt_at_one_size_and_stored_as_they_are(tmp_path):
    """A dimension of the target that is much larger counts no more than others, until it is stored."""
    _, weights = real_target(tmp_path / "target")
    table = weights.embedding.clone()
    table[:, 5] = 100.0
    uneven = dataclasses.replace(weights, embedding=table)
    assert made(uneven, even_columns=False)._factors.eq(1).all()
    trainee = made(uneven)
    factors = trainee._factors
    assert factors.shape == (5, 32) and (factors[:, 5] < 0.1).all() and (factors.log2() % 1 == 0).all()
    with torch.no_grad():
        trainee.net.fc.weight.copy_(trainee.net.fc.weight.half())
    trainee.save(tmp_path, {})
    stored = read_tensors(tmp_path)["fc.weight"].float()
    torch.testing.assert_close(stored, trainee.net.fc.weight * factors.flatten(), rtol=0, atol=1e-6)


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
