"""How large the target's hidden states are, found without data: its own layers run over a few random tokens.

A few dimensions of a language model's stream are tens of times larger than the rest, and later layers far larger than
early ones. Adam moves every weight by about as much, so a drafter's first matrix would follow those few dimensions
alone. A trainee that divides by these sizes, and folds them in again when it is stored, learns from all.

No batch is asked: processes that learn together, and a run that goes on, must find the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..nets.layers import DecoderLayer, LayerSizes, causal_mask
from ..nets.rope import Rope
from .batch import TargetWeights
from .common import GrowingCache
from .target_layers import layer_tensors

_TOKENS, _LEFT_OUT = 128, 8  # at the first positions a stream may be a hundred times larger: they say little of others


@torch.no_grad()
def stream_sizes(target: TargetWeights, layers: Sequence[int]) -> Tensor:
    """Root mean squares [len(layers), d] of the hidden states ``layers``, Hugging Face indices, float32.

    All 1 for a target whose layers are not Llama's, Qwen2's or Qwen3's: it cannot be run here.
    """
    table = target.embedding
    ids = torch.randint(len(table), (_TOKENS,), generator=torch.Generator().manual_seed(0)).to(table.device)
    hidden, positions = F.embedding(ids, table).float(), torch.arange(_TOKENS, device=table.device)
    mask, found = causal_mask(_TOKENS, 0, table.device), {0: hidden}
    for number in range(max(layers)):
        layer = _target_layer(target, number)
        if layer is None:
            return torch.ones((len(layers), table.shape[1]), device=table.device)
        found[number + 1] = hidden = layer(hidden, positions, mask, GrowingCache(1))
    if target.num_layers in found:
        epsilon = float(target.config.get("rms_norm_eps", 1e-6))
        found[target.num_layers] = F.rms_norm(hidden, hidden.shape[1:], target.final_norm.float(), epsilon)
    kept = torch.stack([found[layer][_LEFT_OUT:] for layer in layers])
    return kept.square().mean(1).sqrt().clamp(min=1e-6)


def _target_layer(target: TargetWeights, number: int) -> DecoderLayer | None:
    tensors = {name: tensor.float() for name, tensor in layer_tensors(target, number).items()}
    sizes = LayerSizes.from_config(target.config, {f"layers.0.{name}" for name in tensors})
    with torch.device("meta"):
        layer = DecoderLayer(sizes, Rope.from_config(target.config, sizes.head_dim))
    if tensors.keys() != layer.state_dict().keys():
        return None
    layer.load_state_dict(tensors, assign=True)
    return layer
