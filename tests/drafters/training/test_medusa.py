"""Medusa in training: it learns, and the heads that are stored guess the places that they learnt."""

from __future__ import annotations

import json

import pytest
import torch

from drafters.checkpoint import detect
from drafters.medusa import stored_tree
from drafters.training.rows import head_logits
from drafters.training.trainee import Calibrated, make_trainee

from .checks import check_it_drafts_as_judged, check_it_learns, check_paths_do_not_see_each_other, judge
from .toy_target import OTHERS, answered, learn, load_target, weights_of, write_target

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


def test_of_few_tokens_it_drafts_as_judged(tmp_path):
    check_it_drafts_as_judged(tmp_path, "medusa", "llama", 20, 2e-2, draft_vocabulary="13")
    assert json.loads((tmp_path / "drafter" / "config.json").read_text())["draft_tokens"] == list(range(13))


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


@pytest.mark.parametrize(("own", "kept"), [("true", 64), ("false", 64), ("true", 12)])
def test_calibration_counts_the_ranks_of_the_true_tokens(tmp_path, own, kept, monkeypatch):
    directory = write_target(tmp_path / "target")
    target, weights = load_target(directory), weights_of(directory)
    torch.manual_seed(1)
    trainee = make_trainee("medusa", weights, {"borrows_head": own, "num_heads": "3", "draft_vocabulary": str(kept)})
    assert isinstance(trainee, Calibrated) and not isinstance(make_trainee("mtp", weights, {}), Calibrated)
    batches = [answered(target), answered(target, OTHERS)]
    learn(trainee, batches[0], 10, 1e-2)
    monkeypatch.setattr("drafters.training.medusa._AT_ONCE", 7 * 64)  # in parts
    trainee.calibrate(iter(batches))
    (tmp_path / "drafter").mkdir()
    trainee.save(tmp_path / "drafter", {})
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    assert config["medusa_tree"] == "best-first" and stored_tree(tmp_path / "drafter", 3) == ("best-first", None)
    counts, totals = torch.zeros(3, 64), torch.zeros(3)
    for batch in batches:
        for path in batch.paths:
            text = batch.ids[path.rows]
            for anchor in range(path.answer, len(text) - 1):
                state = batch.features[weights.num_layers][path.rows[anchor - 1]]
                with torch.no_grad():
                    logits = trainee.net.logits(state[None], range(3), weights.head)[:, 0]
                for head in range(min(3, len(text) - 1 - anchor)):
                    order = logits[head, :kept].argsort(descending=True, stable=True)  # the lowest ids are kept
                    counts[head, : len(order)] += order == text[anchor + 1 + head]
                    totals[head] += 1
    assert (counts.sum(1) == totals).all() == (kept == 64)  # some true tokens are not kept, and have no rank
    expected = counts[:, :10] / totals[:, None]
    torch.testing.assert_close(torch.tensor(config["medusa_rank_accuracy"]), expected, rtol=0, atol=1e-5)
    losses = [judge(trainee, batch) for batch in batches]
    right = sum((loss.right & loss.judged).sum(0) for loss in losses) / sum(loss.judged.sum(0) for loss in losses)
    torch.testing.assert_close(expected[:, 0], right)  # rank 0 is what training calls right
    (tmp_path / "drafter" / "config.json").write_text(json.dumps(config | {"medusa_tree": "measured"}))
    assert stored_tree(tmp_path / "drafter", 3) == ("best-first", config["medusa_rank_accuracy"])


def test_of_tokens_liked_equally_the_lower_id_ranks_first(tmp_path):
    weights = weights_of(write_target(tmp_path / "target"))
    weights.head.zero_()
    trainee = make_trainee("medusa", weights, {"num_heads": "1"})
    batch = answered(load_target(tmp_path / "target"))
    trainee.calibrate([batch])
    (tmp_path / "drafter").mkdir()
    trainee.save(tmp_path / "drafter", {})
    said = batch.ids[batch.windows(1)[:, 1]]
    (found,) = json.loads((tmp_path / "drafter" / "config.json").read_text())["medusa_rank_accuracy"]
    assert found == pytest.approx([float((said == rank).float().mean()) for rank in range(10)], abs=1e-5)


def test_options_that_no_heads_have_are_refused(tmp_path):
    weights = weights_of(write_target(tmp_path / "target"))
    with pytest.raises(ValueError, match="at least 1 head"):
        make_trainee("medusa", weights, {"num_heads": "0"})
    with pytest.raises(ValueError, match="no option 'heads'"):
        make_trainee("medusa", weights, {"heads": "2"})
