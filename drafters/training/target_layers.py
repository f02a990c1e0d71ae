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
_INNER = {"gate": 1, "up": 1, "down": 0}  # the feed-forward's matrices, and along which dimension one inner unit lies


def layer_config(target: TargetWeights, intermediate: int = 0) -> dict[str, Any]:
    """The part of the target's config that its decoder layers are made from; ``intermediate`` as in ``layer_tensors``.

    Rotary positions are named the newer way (``rope_parameters``) where the target's are, and the older way always:
    readers that know the latter alone would take their own default for the base.
    """
    config = {name: target.config[name] for name in _FIELDS if name in target.config}
    rotary = dict(config.get("rope_parameters") or {})
    if "rope_theta" in rotary:
        config["rope_theta"] = rotary.pop("rope_theta")
    if rotary.get("rope_type", "default") != "default":
        config["rope_scaling"] = rotary
    if intermediate:
        config["intermediate_size"] = intermediate
    return config


def layer_tensors(target: TargetWeights, layer: int, intermediate: int = 0) -> dict[str, Tensor]:
    """The weights of the target's decoder layer ``layer``, by their names inside it; tables that it can do without.

    Args:
        intermediate: inner units of the feed-forward block to keep, 0: all. Unit i adds down[:, i] · silu(gate[i] · x)
            · (up[i] · x), which grows with |gate[i]| · |up[i]| · |down[:, i]|: kept are those that have most of that.

    Raises:
        ValueError: the layer has not that many.
    """
    tensors = {name: tensor for name, tensor in target.layer(layer).items() if not name.endswith("rotary_emb.inv_freq")}
    if not intermediate:
        return tensors
    inner = len(tensors["mlp.gate_proj.weight"]) if "mlp.gate_proj.weight" in tensors else 0
    if not 1 <= intermediate <= inner:
        raise ValueError(
            f"option intermediate is {intermediate} and layer {layer} of target {target.name!r} has {inner} inner "
            f"units to choose from: name 1 to {inner}, or 0 for all"
        )
    lengths = [tensors[f"mlp.{name}_proj.weight"].float().norm(dim=dim) for name, dim in _INNER.items()]
    kept = torch.stack(lengths).prod(0).argsort(descending=True, stable=True)[:intermediate].sort().values
    for name, dim in _INNER.items():
        tensors[f"mlp.{name}_proj.weight"] = tensors[f"mlp.{name}_proj.weight"].index_select(1 - dim, kept)
        if dim == 1 and f"mlp.{name}_proj.bias" in tensors:
            tensors[f"mlp.{name}_proj.bias"] = tensors[f"mlp.{name}_proj.bias"][kept]
    return tensors


def begin_as(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy ``tensors`` into ``module``, which must have exactly these, in its own type."""
    with torch.no_grad():
        module.load_state_dict(dict(tensors))
