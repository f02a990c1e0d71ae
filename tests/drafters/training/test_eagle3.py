"""EAGLE-3 in training: it learns, and what it says of itself is what the stored drafter does."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from drafters.checkpoint import detect, read_config, read_tensors
from drafters.training.eagle3 import Eagle3Options, Eagle3Trainee
from tests.drafters.training.rows_support import (
    CYCLE,
    WORDS,
    check_alignment,
    check_gradients,
    learn,
    real_target,
    toy_batch,
    toy_weights,
)

SMALL = {"depth": 4, "draft_vocabulary": 20}


def made(weights, seed: int = 0, **options) -> Eagle3Trainee:
    torch.manual_seed(seed)
    return Eagle3Trainee(weights, Eagle3Options(**{**SMALL, **options}))


def test_it_learns():
    weights = toy_weights()
    before, after = learn(made(weights), weights, 60)
    assert before < 1.5 and after > 3.5


def test_every_parameter_learns():
    weights = toy_weights()
    check_gradients(made(weights, fc_norm=True, norm_output=True), weights, draws=False)


@pytest.mark.parametrize(
    "options",
    [{"draft_vocabulary": 30}, {"draft_vocabulary": 0}, {"fc_norm": True, "norm_output": True},
     {"feature_layers": (6, 1)}],
    ids=["reduced", "borrowed-head", "3.1", "two-layers"],
)  # fmt: skip
def test_stored_it_drafts_as_it_was_judged(tmp_path, options):
    target, weights = real_target(tmp_path / "target")
    (tmp_path / "drafter").mkdir()
    check_alignment(made(weights, **options), target, tmp_path / "drafter")
    assert detect(tmp_path / "drafter") == "eagle3"


def test_it_is_stored_as_published_ones_are(tmp_path):
    weights = toy_weights()
    trainee = made(weights)
    trainee.save(tmp_path, {"steps": 3})
    tensors, config = read_tensors(tmp_path), read_config(tmp_path)
    assert {"midlayer.self_attn.q_proj.weight", "midlayer.hidden_norm.weight", "fc.weight", "norm.weight",
            "lm_head.weight", "d2t", "t2d"} < set(tensors)  # fmt: skip
    assert "embed_tokens.weight" not in tensors and tensors["fc.weight"].dtype == torch.float16
    kept = (torch.arange(20) + tensors["d2t"]).tolist()
    assert set(range(CYCLE)) < set(kept) and torch.nonzero(tensors["t2d"])[:, 0].tolist() == kept
    assert trainee.feature_layers == (2, 4, 5, 8) and config["spec_planner"] == {"steps": 3}
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]


def test_what_has_the_targets_shape_starts_as_the_targets():
    weights = toy_weights()
    layer, given = made(weights).net.layers[0], weights.layer(7)
    assert torch.equal(layer.mlp.up_proj.weight, given["mlp.up_proj.weight"])
    assert torch.equal(layer.self_attn.o_proj.weight, given["self_attn.o_proj.weight"])
    assert torch.equal(made(weights).net.lm_head.weight[:CYCLE], weights.head[:CYCLE])


def test_tokens_outside_the_draft_vocabulary_teach_nothing_and_are_wrong():
    counts = torch.zeros(WORDS, dtype=torch.long)
    counts[:5] = 9
    weights = dataclasses.replace(toy_weights(), token_counts=counts)
    trainee, batch = made(weights, draft_vocabulary=5, decay=1.0), toy_batch(weights, 0)
    loss = trainee.loss(batch)
    words = batch.ids[batch.windows(4)[:, 1:].clamp(min=0)]
    assert not loss.right[words >= 5].any()
    assert loss.count == int((loss.judged & (words < 5)).sum())


def test_a_shallow_target_must_name_its_layers():
    weights = dataclasses.replace(toy_weights(), config={**toy_weights().config, "num_hidden_layers": 5})
    with pytest.raises(ValueError, match="at least 7 layers"):
        made(weights)
    assert made(weights, feature_layers=(1, 3)).feature_layers == (1, 3, 5)
    with pytest.raises(ValueError, match="name different hidden states from 1 to 5"):
        made(weights, feature_layers=(1, 6))
