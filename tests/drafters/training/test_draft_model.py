"""A draft model distilled from the target: a few layers of it between the target's own embedding and head."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from drafters.checkpoint import CheckpointError, detect, read_config, tensor_names
from drafters.draft_model import ModelDrafter
from drafters.nets.draft_model_net import DraftModel
from drafters.training.rows import head_logits
from drafters.training.trainee import make_trainee
from spec_planner.decoding.contracts import PromptInput

from .checks import check_it_drafts_as_judged, check_it_learns, check_paths_do_not_see_each_other, judge
from .toy_target import LAYERS, PROMPTS, answered, load_target, weights_of, write_target


@pytest.mark.parametrize("loss_vocabulary", ["0", "24"])
def test_it_learns(tmp_path, loss_vocabulary):
    """On the answers it has read: what else it says well, it says from the start, by the layers it began with."""
    check_it_learns(tmp_path, "draft-model", steps=30, rate=3e-3, gain=1.5, scale=0.25, on_others=False,
                    loss_vocabulary=loss_vocabulary)  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_it_drafts_as_judged(tmp_path, family):
    check_it_drafts_as_judged(tmp_path, "draft-model", family, 8, 3e-3, depth="5")
    assert detect(tmp_path / "drafter") == "draft-model"
    assert not any("embed" in name or "head" in name for name in tensor_names(tmp_path / "drafter"))


def test_of_few_tokens_it_drafts_as_judged(tmp_path):
    check_it_drafts_as_judged(tmp_path, "draft-model", "llama", 8, 3e-3, depth="5", draft_vocabulary="13")
    assert read_config(tmp_path / "drafter")["draft_tokens"] == list(range(13))


def test_with_fewer_inner_units_it_drafts_as_judged(tmp_path):
    trainee, _ = check_it_drafts_as_judged(tmp_path, "draft-model", "llama", 8, 3e-3, depth="5", intermediate="16")
    assert trainee.net.layers[1].mlp.gate_proj.weight.shape == (16, 32)


def test_answers_do_not_see_each_other(tmp_path):
    check_paths_do_not_see_each_other(tmp_path, "draft-model")


def test_with_all_layers_it_is_the_target(tmp_path):
    """So its laws are the target's, and its loss is what nobody can take from it: their entropy."""
    directory = write_target(tmp_path / "target", "qwen3")
    target, weights = load_target(directory), weights_of(directory)
    trainee = make_trainee("draft-model", weights, {"layers": str(LAYERS)})
    batch = answered(target)
    rows = batch.windows(1)[:, 0].unique()
    law = head_logits(batch.features[weights.num_layers][rows], weights.head).log_softmax(-1)
    loss = judge(trainee, batch)
    torch.testing.assert_close(loss.sum, -(law.exp() * law).sum(), rtol=1e-4, atol=1e-3)
    assert loss.count == len(rows)
    (tmp_path / "drafter").mkdir()
    trainee.save(tmp_path / "drafter", {})
    model = DraftModel.load(tmp_path / "drafter", target)
    target.truncate(0)
    for prompt in (PROMPTS[0], PROMPTS[2]):  # of the first, two tokens stay
        target.truncate(min(target.committed_length, 2))
        model.truncate(2)
        expected, found = (net.extend(PromptInput(prompt)).logits_row(0) for net in (target, model))
        np.testing.assert_allclose(found, expected, atol=0.05)


def test_bytes_own_and_borrowed(tmp_path):
    directory = write_target(tmp_path / "target")
    target = load_target(directory)
    trainee = make_trainee("draft-model", weights_of(directory), {"layers": "2"})
    (tmp_path / "drafter").mkdir()
    trainee.save(tmp_path / "drafter", {})
    drafter = ModelDrafter.load(tmp_path / "drafter", target)
    own = sum(parameter.numel() for parameter in trainee.net.parameters()) * 4
    assert drafter.own_bytes == own and drafter.borrowed_bytes == 2 * 64 * 32 * 4
    drafter.observe(range(40), None)
    assert drafter.own_bytes == own + 2 * 2 * 64 * 2 * 8 * 4  # keys and values of two layers, 64 slots
    drafter.close()


def test_what_cannot_be_used_is_said(tmp_path):
    directory = write_target(tmp_path / "target")
    target, weights = load_target(directory), weights_of(directory)
    with pytest.raises(ValueError, match="1 to 3 layers"):
        make_trainee("draft-model", weights, {"layers": "4"})
    source = tmp_path / "drafter"
    source.mkdir()
    make_trainee("draft-model", weights, {}).save(source, {})
    config = json.loads((source / "config.json").read_text())
    for change, message in (
        ({"vocab_size": 99}, r"made for an embedding of \[99, 32\]"),
        ({"num_hidden_layers": 3}, "missing layers.2"),
        ({"num_attention_heads": 0}, "lacks what a layer needs"),
    ):
        (source / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(CheckpointError, match=message):
            DraftModel.load(source, target)
