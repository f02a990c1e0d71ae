"""EAGLE-1 in training: it learns, and what it says of itself is what the stored drafter does."""

from __future__ import annotations

import pytest
import torch

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


@pytest.mark.parametrize("layers", [1, 2])
def test_stored_it_drafts_as_it_was_judged(tmp_path, layers):
    target, weights = real_target(tmp_path / "target")
    (tmp_path / "drafter").mkdir()
    check_alignment(made(weights, layers=layers), target, tmp_path / "drafter")


def test_features_and_law_of_the_anchor_are_what_its_row_learns():
    """A network that puts out the true features has no regression loss, and the law's own entropy."""
    weights = toy_weights()
    trainee, batch = made(weights, ce_weight=1.0, depth=1), toy_batch(weights, 0)
    completed = batch.features[8][batch.previous >= 0]
    trainee.net.forward = lambda ids, hidden, positions, mask, cache, wanted: completed[wanted]
    rows, counts = batch.windows(1)[:, 0].unique(return_counts=True)
    expected = torch.special.entr((batch.features[8][rows] @ weights.head.T).softmax(-1)).sum(-1)
    loss = trainee.loss(batch)
    torch.testing.assert_close(loss.sum, (expected * counts).sum())
    assert loss.count == len(batch.windows(1)) and loss.right[:, 0].all()


def test_in_training_few_anchors_are_judged():
    weights = toy_weights()
    loss = made(weights, judged_anchors=7).loss(toy_batch(weights, 0), torch.Generator().manual_seed(0))
    assert loss.right.shape == (7, 4)


def test_options_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="option depth must be at least 1"):
        made(toy_weights(), depth=0)
