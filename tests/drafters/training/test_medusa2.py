"""Heads that go on learning begin as what was stored, whatever form it was stored in."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from drafters.checkpoint import CheckpointError, read_config
from drafters.training.medusa2 import go_on, read_heads, trained_for
from drafters.training.trainee import make_trainee

from .toy_target import HIDDEN, VOCABULARY, weights_of, write_target

FORMS = [{"num_heads": "2"}, {"num_heads": "3", "num_layers": "2"}, {"num_heads": "2", "borrows_head": "false"}]


@pytest.mark.parametrize("options", FORMS, ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_they_begin_as_stored(tmp_path, options, biased):
    weights = weights_of(write_target(tmp_path / "target"))
    torch.manual_seed(1)
    made = make_trainee("medusa", weights, options).net
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.normal_(std=0.1 if biased or not name.endswith("bias") else 0.0)
    stored = {name: tensor for name, tensor in made.state_dict().items() if biased or not name.endswith("bias")}
    save_file(stored, tmp_path / "medusa_lm_head.safetensors")
    trainee = go_on(read_heads(tmp_path, HIDDEN, VOCABULARY), weights)
    hidden, heads = torch.randn(5, HIDDEN), range(int(options["num_heads"]))
    assert trainee.depth == len(heads)
    assert torch.equal(trainee.net.logits(hidden, heads, weights.head), made.logits(hidden, heads, weights.head))
    (tmp_path / "again").mkdir()
    trainee.save(tmp_path / "again", {"target": "weights-abc"})
    again = go_on(read_heads(tmp_path / "again", HIDDEN, VOCABULARY), weights)
    torch.testing.assert_close(again.net.state_dict(), trainee.net.state_dict(), atol=1e-3, rtol=1e-3)
    assert trained_for(tmp_path / "again") == "weights-abc"


def test_they_say_the_tokens_that_they_said(tmp_path):
    weights = weights_of(write_target(tmp_path / "target"))
    for place, options in (("few", {"draft_vocabulary": "9"}), ("all", {})):
        (tmp_path / place).mkdir()
        make_trainee("medusa", weights, options).save(tmp_path / place, {})
        trainee = go_on(read_heads(tmp_path / place, HIDDEN, VOCABULARY), weights)
        (tmp_path / f"{place} again").mkdir()
        trainee.save(tmp_path / f"{place} again", {})
        kept = [read_config(tmp_path / each).get("draft_tokens") for each in (place, f"{place} again")]
        assert kept == [list(range(9))] * 2 if place == "few" else kept == [None, None]


def test_whose_they_are_is_known_of_our_own_only(tmp_path):
    assert trained_for(tmp_path) is None
    for config in ({}, {"spec_planner": None}, {"spec_planner": {}}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert trained_for(tmp_path) is None


def test_another_drafter_is_refused(tmp_path):
    save_file({"midlayer.input_layernorm.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="kind 'eagle3', and only Medusa heads learn together with a target"):
        read_heads(tmp_path, HIDDEN, VOCABULARY)
