"""The sequential MTP module in training: taught on its own recursion, over the rows that it sees when it drafts."""

from __future__ import annotations

import pytest
import torch

from drafters.checkpoint import detect, read_config
from drafters.nets.layers import causal_mask
from drafters.training.common import GrowingCache
from drafters.training.trainee import make_trainee

from .checks import check_it_drafts_as_judged, check_it_learns, check_paths_do_not_see_each_other
from .toy_target import answered, load_target, weights_of, write_target


@pytest.mark.parametrize("soft", ["true", "false"])
def test_it_learns(tmp_path, soft):
    check_it_learns(tmp_path, "mtp", steps=30, rate=3e-3, gain=0.5, soft=soft)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_it_drafts_as_judged(tmp_path, family):
    check_it_drafts_as_judged(tmp_path, "mtp", family, 30, 3e-3, depth="5")
    assert detect(tmp_path / "drafter") == "mtp"


def test_of_few_tokens_it_drafts_as_judged(tmp_path):
    check_it_drafts_as_judged(tmp_path, "mtp", "llama", 30, 3e-3, depth="5", draft_vocabulary="13")
    assert read_config(tmp_path / "drafter")["draft_tokens"] == list(range(13))


def test_with_fewer_inner_units_it_drafts_as_judged(tmp_path):
    trainee, _ = check_it_drafts_as_judged(tmp_path, "mtp", "llama", 45, 3e-3, depth="5", intermediate="16")
    assert trainee.net.modules_by_depth[0].block.mlp.gate_proj.weight.shape == (16, 32)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_it_begins_in_the_stream_of_the_targets_last_layer(tmp_path, family):
    """What it reads off h has that stream's direction, and is not drowned by what the layer adds."""
    directory = write_target(tmp_path / "target", family)
    target, weights = load_target(directory), weights_of(directory)
    torch.manual_seed(1)
    trainee = make_trainee("mtp", weights, {})
    (module,) = trainee.net.modules_by_depth
    module.requires_grad_(False)
    batch = answered(target)
    normed = batch.features[weights.num_layers]
    read = module.hnorm(normed)
    stream = normed / weights.final_norm
    assert float(torch.cosine_similarity(read, stream).min()) > 0.99
    u = read + module.enorm(torch.nn.functional.embedding(batch.ids, weights.embedding))
    added = module.block(u, batch.positions, batch.seen, GrowingCache(1)) - u
    assert 0.5 < float(u.square().mean().sqrt() / added.square().mean().sqrt()) < 4


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_rows_that_nobody_asks_for_change_nothing(tmp_path, family):
    directory = write_target(tmp_path / "target", family)
    trainee = make_trainee("mtp", weights_of(directory), {})
    generator = torch.Generator().manual_seed(4)
    hidden, embedded = (torch.randn(9, 32, generator=generator) for _ in range(2))
    mask, positions, wanted = causal_mask(9, 0), torch.arange(9), torch.tensor([7, 2, 2])
    whole = trainee.net.step(0, hidden, embedded, positions, mask, GrowingCache(1))
    some = trainee.net.step(0, hidden, embedded, positions, mask, GrowingCache(1), wanted)
    for all_rows, few in zip(whole, some, strict=True):
        torch.testing.assert_close(few, all_rows[wanted])


@pytest.mark.parametrize("depth", ["1", "3"])
def test_answers_do_not_see_each_other(tmp_path, depth):
    together, alone = check_paths_do_not_see_each_other(tmp_path, "mtp", depth=depth)
    torch.testing.assert_close(together.sum, sum(loss.sum for loss in alone))
    assert together.count == pytest.approx(sum(loss.count for loss in alone))


def test_a_depth_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="depth of at least 1"):
        make_trainee("mtp", weights_of(write_target(tmp_path / "target")), {"depth": "0"})
