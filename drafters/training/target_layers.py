"""Decoder layers of a drafter's own that begin as copies of the target's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .batch import TargetWeights

ATTEND_AT_ONCE = 64  # rows of ``layers.SparseMask``: neighbours in a batch see much the same
# What says how a decoder layer of the target works, and no more: a drafter's config must not look like the target's.
_FIELDS = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
    "max_position_embeddings", "partial_rotary_factor", "attention_bias", "mlp_bias",
)  # fmt: skip


def layer_config(target: TargetWeights) -> dict[str, Any]:
    """The part of the target's config that its decoder layers are made from."""
    return {name: target.config[name] for name in _FIELDS if name in target.config}


def layer_tensors(target: TargetWeights, layer: int) -> dict[str, Tensor]:
    """The weights of the target's decoder layer ``layer``, by their names inside it; tables that it can do without."""
    tensors: Mapping[str, Tensor] = target.layer(layer)
    return {name: tensor for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}


def begin_as(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy ``tensors`` into ``module``, which must have exactly these, in its own type."""
    with torch.no_grad():
        module.load_state_dict(dict(tensors))
