"""Medusa in training: it learns, and the heads that are stored guess the places that they learnt."""

from __future__ import annotations

import json

import pytest
import torch

from drafters.checkpoint import detect
from drafters.training.rows import head_logits
from drafters.training.trainee import make_trainee

from .checks import check_it_drafts_as_judged, check_it_learns, check_paths_do_not_see_each_other
from .toy_target import answered, load_target, weights_of, write_target

FORMS = [{}, {"soft": "false"}, {"borrows_head": "false", "num_heads": "3"}, {"num_layers": "2"}]


@pytest.mark.parametrize("options", [*FORMS, {"loss_vocabulary": "24"}], ids=str)
def test_it_learns(tmp_path, options):
    check_it_learns(tmp_path, "medusa", steps=40, rate=2e-2, gain=1.0, **options)


@pytest.mark.parametrize("options", [*FORMS, {"borrows_head": "false", "soft": "false"}], ids=str)
def test_it_drafts_as_judged(tmp_path, options):
    check_it_drafts_as_judged(tmp_path, "medusa", "llama", 20, 2e-2, **options)
    assert detect(tmp_path / "drafter") == "medusa"
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    heads, layers = int(options.get("num_heads", 6)), int(options.get("num_layers", 1))
    assert config["medusa_num_heads"] == config["num_heads"] == heads
    assert config["medusa_num_layers"] == config["num_hidden_layers"] == layers
    assert (config["hidden_size"], config["vocab_size"], config["medusa_fc_bias"]) == (32, 64, True)
    assert config.get("version") == ("2" if options.get("borrows_head", "true") == "true" else None)


@pytest.mark.parametrize("soft", ["true", "false"])
def test_answers_do_not_see_each_other(tmp_path, soft):
    together, alone = check_paths_do_not_see_each_other(tmp_path, "medusa", soft=soft)
    torch.testing.assert_close(together.sum, sum(loss.sum for loss in alone))
    assert together.count == pytest.approx(sum(loss.count for loss in alone))


@pytest.mark.parametrize("own", ["true", "false"])
def test_a_head_begins_as_the_targets_own(tmp_path, own):
    """So at first it guesses the anchor, which the target's head says at the same hidden state."""
    directory = write_target(tmp_path / "target")
    target, weights = load_target(directory), weights_of(directory)
    trainee = make_trainee("medusa", weights, {"borrows_head": own})
    batch = answered(target)
    windows = batch.windows(1)
    states = batch.features[weights.num_layers][batch.previous[windows[:, 0]]]
    logits = trainee.net.logits(states, range(6), weights.head)
    states = batch.features[weights.num_layers][batch.previous[windows[:, 0]]]
    torch.testing.assert_close(logits, head_logits(states, weights.head).expand(6, -1, -1))


def test_options_that_no_heads_have_are_refused(tmp_path):
    weights = weights_of(write_target(tmp_path / "target"))
    with pytest.raises(ValueError, match="at least 1 head"):
        make_trainee("medusa", weights, {"num_heads": "0"})
    with pytest.raises(ValueError, match="no option 'heads'"):
        make_trainee("medusa", weights, {"heads": "2"})
