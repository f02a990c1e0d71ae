"""The sequential MTP module in training: taught on its own recursion, over the rows that it sees when it drafts."""

from __future__ import annotations

import pytest
import torch

from drafters.checkpoint import detect
from drafters.training.trainee import make_trainee

from .checks import check_it_drafts_as_judged, check_it_learns, check_paths_do_not_see_each_other
from .toy_target import weights_of, write_target


@pytest.mark.parametrize("soft", ["true", "false"])
def test_it_learns(tmp_path, soft):
    check_it_learns(tmp_path, "mtp", steps=30, rate=3e-3, gain=0.5, soft=soft)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_it_drafts_as_judged(tmp_path, family):
    check_it_drafts_as_judged(tmp_path, "mtp", family, 20, 3e-3, depth="5")
    assert detect(tmp_path / "drafter") == "mtp"


@pytest.mark.parametrize("depth", ["1", "3"])
def test_answers_do_not_see_each_other(tmp_path, depth):
    together, alone = check_paths_do_not_see_each_other(tmp_path, "mtp", depth=depth)
    torch.testing.assert_close(together.sum, sum(loss.sum for loss in alone))
    assert together.count == pytest.approx(sum(loss.count for loss in alone))


def test_a_depth_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="depth of at least 1"):
        make_trainee("mtp", weights_of(write_target(tmp_path / "target")), {"depth": "0"})
