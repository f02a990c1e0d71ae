"""Parallel heads in training: copies of the target's last layer that come to look further ahead."""

from __future__ import annotations

import pytest
import torch

from drafters.checkpoint import detect, read_config
from drafters.training.common import GrowingCache
from drafters.training.trainee import make_trainee

from .checks import check_it_drafts_as_judged, check_it_learns, check_paths_do_not_see_each_other
from .toy_target import answered, load_target, weights_of, write_target


@pytest.mark.parametrize("options", [{}, {"soft": "false", "num_heads": "2"}], ids=str)
def test_it_learns(tmp_path, options):
    check_it_learns(tmp_path, "mtp-parallel", steps=30, rate=3e-3, gain=0.6, **options)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_it_drafts_as_judged(tmp_path, family):
    check_it_drafts_as_judged(tmp_path, "mtp-parallel", family, 20, 3e-3)
    assert detect(tmp_path / "drafter") == "mtp-parallel"


def test_of_few_tokens_it_drafts_as_judged(tmp_path):
    check_it_drafts_as_judged(tmp_path, "mtp-parallel", "llama", 20, 3e-3, draft_vocabulary="13")
    assert read_config(tmp_path / "drafter")["draft_tokens"] == list(range(13))


def test_with_fewer_inner_units_it_drafts_as_judged(tmp_path):
    trainee, _ = check_it_drafts_as_judged(tmp_path, "mtp-parallel", "llama", 30, 3e-3, intermediate="16")
    assert trainee.net.heads[0].mlp.gate_proj.weight.shape == (16, 32)


def test_answers_do_not_see_each_other(tmp_path):
    together, alone = check_paths_do_not_see_each_other(tmp_path, "mtp-parallel")
    torch.testing.assert_close(together.sum, sum(loss.sum for loss in alone))
    assert together.count == pytest.approx(sum(loss.count for loss in alone))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_head_begins_as_the_targets_last_layer(tmp_path, family):
    """So what it makes of z is the hidden state that the target's head reads."""
    directory = write_target(tmp_path / "target", family)
    target, weights = load_target(directory), weights_of(directory)
    trainee = make_trainee("mtp-parallel", weights, {"num_heads": "1"})
    batch = answered(target)
    asked = torch.arange(0, len(batch.ids), 3)
    results = trainee.net(
        batch.features[weights.num_layers - 1], batch.positions, asked, batch.seen[asked], range(1), GrowingCache(1)
    )
    made = trainee.net.normed(results[0], weights.final_norm)
    torch.testing.assert_close(made, batch.features[weights.num_layers][asked], rtol=1e-4, atol=1e-4)


def test_no_head_at_all_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least 1 head"):
        make_trainee("mtp-parallel", weights_of(write_target(tmp_path / "target")), {"num_heads": "0"})
