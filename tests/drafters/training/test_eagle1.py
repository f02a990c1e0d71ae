"""EAGLE-1 in training: it learns, and what it says of itself is what the stored drafter does."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from drafters.checkpoint import read_config, read_tensors
from drafters.nets.layers import KVCache, causal_mask
from drafters.training.eagle1 import Eagle1Options, Eagle1Trainee
from tests.drafters.training.rows_support import (
    check_alignment,
    check_gradients,
    learn,
    real_target,
    toy_batch,
    toy_weights,
)

SMALL = {"depth": 4, "loss_vocabulary": 24}


def made(weights, seed: int = 0, **options) -> Eagle1Trainee:
    torch.manual_seed(seed)
    return Eagle1Trainee(weights, Eagle1Options(**{**SMALL, **options}))


def test_it_learns():
    weights = toy_weights()
    before, after = learn(made(weights), weights, 60)
    assert before < 1.5 and after > 3.5


def test_every_parameter_learns_and_chance_comes_from_the_generator_alone():
    weights = toy_weights()
    check_gradients(made(weights, layers=2), weights)


@pytest.mark.parametrize("options", [{}, {"layers": 2}, {"draft_vocabulary": 20}], ids=str)
def test_stored_it_drafts_as_it_was_judged(tmp_path, options):
    target, weights = real_target(tmp_path / "target")
    (tmp_path / "drafter").mkdir()
    check_alignment(made(weights, **options), target, tmp_path / "drafter")
    assert ("draft_tokens" in read_config(tmp_path / "drafter")) == ("draft_vocabulary" in options)


def test_features_and_law_of_the_anchor_are_what_its_row_learns():
    """A network that puts out the true features has no regression loss, and the law's own entropy."""
    weights = toy_weights()
    trainee, batch = made(weights, ce_weight=1.0, depth=1, steps=1), toy_batch(weights, 0)
    completed = batch.features[8][batch.previous >= 0]
    trainee.net.forward = lambda ids, hidden, positions, mask, cache, wanted: completed[wanted]
    rows, counts = batch.windows(1)[:, 0].unique(return_counts=True)
    expected = torch.special.entr((batch.features[8][rows] @ weights.head.T).softmax(-1)).sum(-1)
    loss = trainee.loss(batch)
    torch.testing.assert_close(loss.sum, (expected * counts).sum())
    assert loss.count == len(batch.windows(1)) and loss.right[:, 0].all()


def test_steps_after_the_first_feed_on_the_networks_own_outputs():
    """Two steps by hand: anchors' base rows, then the rows of what follows them, each on what step 0 put out."""
    weights = toy_weights()
    trainee, batch = made(weights, ce_weight=0.0, depth=2, steps=2), toy_batch(weights, 0)
    windows, features, net = batch.windows(2), batch.features[8], trainee.net
    expected, terms = 0.0, 0
    with torch.no_grad():
        for path in batch.paths:
            ids, states = batch.ids[path.rows], features[path.rows]
            for t in range(path.answer, len(ids) - 1):
                cache, hidden = KVCache(1, net.sizes.num_kv_heads, net.sizes.head_dim), states[:t]
                for step in range(min(2, len(ids) - 1 - t)):
                    ran = ids[1 : t + 1] if not step else ids[t + step][None]
                    places = torch.arange(t) if not step else torch.tensor([t + step - 1])
                    mask = causal_mask(len(ran), cache.length)
                    hidden = net(ran, hidden, places, mask, cache)[-1:]
                    expected += F.smooth_l1_loss(hidden[0], states[t + step])
                    terms += 1
        loss = trainee.loss(batch)
    torch.testing.assert_close(loss.sum, expected)
    assert loss.count == terms and len(loss.right) == len(windows)


def test_in_training_nothing_is_judged():
    weights = toy_weights()
    loss = made(weights).loss(toy_batch(weights, 0), torch.Generator().manual_seed(0))
    assert loss.right.shape == loss.judged.shape == (0, 4) and loss.count > 0


def test_it_is_stored_without_a_bias(tmp_path):
    made(toy_weights()).save(tmp_path, {})
    assert "fc.bias" not in read_tensors(tmp_path) and read_config(tmp_path)["bias"] is False


def test_options_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="option depth must be at least 1"):
        made(toy_weights(), depth=0)
    with pytest.raises(ValueError, match="option steps is 5: at most depth, 4, can be learnt"):
        made(toy_weights(), steps=5)
