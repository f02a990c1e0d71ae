"""One decoder-only transformer for the Llama, Qwen2 and Qwen3 families, over a fixed-capacity KV cache.

Written for the verify pass: n rows (a draft tree) over a committed context, each row at its own position with
its own mask row. Keys and values are written in place at given slots; nothing is reallocated per pass.
Grouped-query heads are folded into query rows, so the cache is read as it lies, never expanded.

Shapes: n rows of one pass, d hidden, h / g query / key-value heads, e head_dim, S cached slots visible to the pass.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch.nn import functional as F

from .decoder_config import DecoderConfig
from .rope import rope_tables, rotate


class KVCache:
    """Keys and values for every layer: [layers, g, capacity, e], allocated once."""

    def __init__(self, config: DecoderConfig, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (config.num_layers, config.num_kv_heads, capacity, config.head_dim)
        self.capacity = capacity
        # Zeros, not empty: a masked slot still enters the matrix product, and NaN × 0 is NaN.
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self._reached = 0  # slots that any pass saw

    @property
    def num_bytes(self) -> int:
        return 2 * self.keys.numel() * self.keys.element_size()

    def reach(self, extent: int) -> None:
        """A pass writes into the first ``extent`` slots."""
        self._reached = max(self._reached, extent)

    def clear(self) -> None:
        """Zeros again, where anything was written."""
        self.keys[:, :, : self._reached] = 0
        self.values[:, :, : self._reached] = 0
        self._reached = 0

    def move(self, sources: torch.Tensor, start: int) -> None:
        """Copy slots ``sources`` [m] to slots start … start + m − 1 in every layer (commit of a tree branch)."""
        end = start + len(sources)
        self.keys[:, :, start:end] = self.keys.index_select(2, sources)
        self.values[:, :, start:end] = self.values.index_select(2, sources)


class Decoder:
    """Weights and forward pass. The weights of q|k|v and of gate|up lie in one matrix each: fewer, larger products."""

    def __init__(self, config: DecoderConfig, weights: Mapping[str, torch.Tensor], capacity: int,
                 dtype: torch.dtype, device: torch.device) -> None:  # fmt: skip
        self.config, self.dtype, self.device = config, dtype, device

        def take(name: str) -> torch.Tensor:
            return weights[name].to(device=device, dtype=dtype)

        def fuse(names: Iterable[str]) -> torch.Tensor:
            parts = [weights[name] for name in names]
            sizes = [len(part) for part in parts]
            # Filled in place: parts converted first would leave holes in memory.
            fused = torch.empty((sum(sizes), *parts[0].shape[1:]), dtype=dtype, device=device)
            for place, part in zip(fused.split(sizes), parts, strict=True):
                place.copy_(part)
            return fused

        self.embedding = take("model.embed_tokens.weight")  # [V, d]
        self.head = self.embedding if config.tied_head else take("lm_head.weight")  # [V, d]
        self.final_norm = take("model.norm.weight")
        self.layers = [_Layer(config, f"model.layers.{i}.", take, fuse) for i in range(config.num_layers)]
        cos, sin = rope_tables(config, capacity)
        self.cos, self.sin = cos.to(device, dtype)[:, None], sin.to(device, dtype)[:, None]  # [capacity, 1, e]

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, mask: torch.Tensor,
                cache: KVCache, feature_layers: Sequence[int] = (),
                ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:  # fmt: skip
        """Run one pass. All that differs between passes of one shape is in tensors, so a pass can be recorded.

        Args:
            ids, positions, slots: int64 [n]; keys and values of row i land in slots[i].
            mask: bool [n, S], S above every slot; True where row i may look.
            feature_layers: which hidden states to return, as Hugging Face ``hidden_states`` indices
                (0 embedding, l + 1 after layer l, num_layers after the final norm).

        Returns:
            hidden [n, d] after the final norm, and the tapped states by index, each [n, d].
        """
        config = self.config
        group = config.num_heads // config.num_kv_heads
        hidden = F.embedding(ids, self.embedding)
        cos, sin = self.cos[positions], self.sin[positions]
        tapped: dict[int, torch.Tensor] = {}
        folded_mask = mask.repeat(group, 1)  # [group · n, S], the row order of _Layer's folded queries
        for index, layer in enumerate(self.layers):
            if index in feature_layers:
                tapped[index] = hidden
            hidden = layer.forward(hidden, cos, sin, slots, folded_mask, cache.keys[index], cache.values[index])
        hidden = F.rms_norm(hidden, (config.hidden_size,), self.final_norm, config.norm_epsilon)
        if config.num_layers in feature_layers:
            tapped[config.num_layers] = hidden
        return hidden, tapped

    def first_layers(self, num_layers: int) -> Decoder:
        """A decoder of the first layers only, sharing every tensor with this one."""
        smaller = copy.copy(self)
        smaller.layers = self.layers[:num_layers]
        smaller.config = self.config.first_layers(num_layers)
        return smaller

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [n, d] → logits [n, V] in the compute dtype."""
        return F.linear(hidden, self.head)

    @property
    def num_bytes(self) -> int:
        tensors = [self.embedding, self.final_norm, *(t for layer in self.layers for t in layer.tensors())]
        if self.head is not self.embedding:
            tensors.append(self.head)
        return sum(t.numel() * t.element_size() for t in tensors)


class _Layer:
    """Pre-norm attention and SwiGLU block, both with residual."""

    def __init__(self, config: DecoderConfig, prefix: str, take, fuse) -> None:
        self.config = config
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        self.input_norm = take(prefix + "input_layernorm.weight")
        self.post_norm = take(prefix + "post_attention_layernorm.weight")
        self.qkv = fuse(f"{attention}{x}_proj.weight" for x in "qkv")
        self.qkv_bias = fuse(f"{attention}{x}_proj.bias" for x in "qkv") if config.attention_bias else None
        self.out = take(attention + "o_proj.weight")
        self.out_bias = take(attention + "o_proj.bias") if config.output_bias else None
        self.gate_up = fuse(f"{mlp}{x}_proj.weight" for x in ("gate", "up"))
        self.gate_up_bias = fuse(f"{mlp}{x}_proj.bias" for x in ("gate", "up")) if config.mlp_bias else None
        self.down = take(mlp + "down_proj.weight")
        self.down_bias = take(mlp + "down_proj.bias") if config.mlp_bias else None
        self.q_norm = take(attention + "q_norm.weight") if config.qk_norm else None
        self.k_norm = take(attention + "k_norm.weight") if config.qk_norm else None

    def tensors(self) -> list[torch.Tensor]:
        return [value for value in vars(self).values() if isinstance(value, torch.Tensor)]

    def forward(self, hidden, cos, sin, slots, mask, keys, values):
        config, n = self.config, hidden.shape[0]
        h, g, e, eps = config.num_heads, config.num_kv_heads, config.head_dim, config.norm_epsilon
        x = F.rms_norm(hidden, (config.hidden_size,), self.input_norm, eps)
        qkv = F.linear(x, self.qkv, self.qkv_bias).view(n, h + 2 * g, e)
        query, key, value = qkv.split((h, g, g), dim=1)
        if config.qk_norm:
            query = F.rms_norm(query, (e,), self.q_norm, eps)
            key = F.rms_norm(key, (e,), self.k_norm, eps)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        keys.index_copy_(1, slots, key.transpose(0, 1))  # [g, n, e]
        values.index_copy_(1, slots, value.transpose(0, 1))
        visible = mask.shape[1]
        # Query head j·group + r reads key head j: fold r into rows → [g, group · n, e].
        folded = query.view(n, g, h // g, e).permute(1, 2, 0, 3).reshape(1, g, -1, e)
        mixed = F.scaled_dot_product_attention(
            folded, keys[None, :, :visible], values[None, :, :visible], attn_mask=mask
        )
        mixed = mixed.view(g, h // g, n, e).permute(2, 0, 1, 3).reshape(n, h * e)
        hidden = hidden + F.linear(mixed, self.out, self.out_bias)
        x = F.rms_norm(hidden, (config.hidden_size,), self.post_norm, eps)
        gate, up = F.linear(x, self.gate_up, self.gate_up_bias).chunk(2, dim=-1)
        return hidden + F.linear(F.silu(gate) * up, self.down, self.down_bias)
