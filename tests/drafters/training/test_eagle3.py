"""EAGLE-3 in training: it learns, and what it says of itself is what the stored drafter does."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from drafters.checkpoint import detect, read_config, read_tensors
from drafters.nets.eagle3_net import Eagle3Net
from drafters.nets.layers import KVCache
from drafters.training.eagle3 import Eagle3Options, Eagle3Trainee
from drafters.training.target_layers import layer_tensors
from tests.drafters.training.rows_support import (
    CYCLE,
    WORDS,
    check_alignment,
    check_gradients,
    learn,
    real_target,
    think,
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
    trainee = made(weights, fc_norm=True, norm_output=True)
    with torch.no_grad():  # of all but the highest feature it starts at 0, and their norms learn a step later
        trainee.net.fc.weight.add_(0.01 * torch.randn_like(trainee.net.fc.weight))
    check_gradients(trainee, weights, draws=False)


@pytest.mark.parametrize(
    "options",
    [{"draft_vocabulary": 30}, {"draft_vocabulary": 0}, {"fc_norm": False, "norm_output": False},
     {"feature_layers": (6, 1)}, {"intermediate": 20}],
    ids=["reduced", "borrowed-head", "without-norms", "two-layers", "narrow"],
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
    narrow, kept = made(weights, intermediate=20).net.layers[0].mlp, layer_tensors(weights, 7, 20)
    assert torch.equal(narrow.down_proj.weight, kept["mlp.down_proj.weight"])
    assert torch.equal(made(weights).net.lm_head.weight[:CYCLE], weights.head[:CYCLE])


@pytest.mark.parametrize("norms", [True, False])
def test_at_first_it_is_the_targets_last_layer_on_its_highest_feature(tmp_path, norms):
    """At T's last but one hidden state, one row and token half unheard, its output is the last, but for its size."""
    target, weights = real_target(tmp_path / "target")
    net = made(weights, feature_layers=(2, 7), fc_norm=norms, norm_output=True).net
    states = think(target, [5], (2, 7, 8))
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(net.layers[0].self_attn, name).weight[:, :32] = 0.0
        hidden = net.fuse(states[:, :2])
        assert F.cosine_similarity(hidden, states[:, 1])[0] > 0.9999
        output = net(torch.tensor([5]), hidden, torch.tensor([0]), None, KVCache(1, 2, 8))
    likeness = F.cosine_similarity(output, states[:, 2])[0]
    assert likeness > (0.95 if norms else 0.9999)  # with norms, as far as this row is of the usual size


def test_the_layers_it_reads_are_named_in_both_ways(tmp_path):
    made(toy_weights(), feature_layers=(6, 1)).save(tmp_path, {})
    config = read_config(tmp_path)
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [5, 0]
    assert config["eagle_aux_hidden_state_layer_ids"] == [6, 1] == list(Eagle3Net.feature_layers(config, 8))


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
