"""The decoder layers that published MTP modules are made of, as far as they are not plain Llama.

An MTP module's block is a layer of its target's own kind: grouped-query attention (MiMo, GLM-4.5), gated attention
(Qwen3-Next, Qwen3.5), latent attention (DeepSeek-V3); a dense feed-forward or a mixture of experts. Which of them a
checkpoint holds is read off its tensors, the numbers that no tensor shows off its config. Parameters have Hugging
Face's names. Shapes as in ``layers.py``: n rows, d wide, h heads, S slots in view.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .layers import Attention, KVCache, Mask, RMSNorm, SwiGLU
from .rope import Rope, rotate

Shapes = Mapping[str, torch.Size]  # of the block's tensors, by name within the block


class Block(nn.Module):
    """Pre-norm attention and feed-forward, both with residual."""

    def __init__(self, config: Mapping[str, Any], shapes: Shapes, norm_offset: float = 0.0) -> None:
        """From a Hugging Face config and the tensors at hand.

        Raises:
            KeyError, TypeError, ValueError: the config lacks a number, or has one that no layer has.
        """
        super().__init__()
        size, epsilon = int(config["hidden_size"]), float(config.get("rms_norm_eps", 1e-6))
        self.input_layernorm = RMSNorm(size, epsilon, norm_offset)
        self.post_attention_layernorm = RMSNorm(size, epsilon, norm_offset)
        self.self_attn = make_attention(config, shapes, norm_offset)
        self.mlp = make_feed_forward(config, shapes)

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, mask: Mask, cache: KVCache,
                wanted: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
        """hidden [n, d] → [n, d]; the rows go behind ``cache``, which the caller advances.

        Of rows outside ``wanted``, int64 [w], only keys and values are made; the result is [w, d] then. Only plain
        attention takes that, and a ``SparseMask``: both are for training.
        """
        x = self.input_layernorm(hidden)
        if wanted is None:
            return self.finish(hidden, self.self_attn(x, positions, mask, cache))
        return self.finish(hidden[wanted], self.self_attn(x, positions, mask, cache, wanted=wanted))

    def finish(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        hidden = residual + attended
        result: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return result

    def new_cache(self) -> KVCache:
        """An empty cache in the type and on the device of the weights."""
        place = self.input_layernorm.weight
        return KVCache(1, *self.self_attn.cache_shape, dtype=place.dtype, device=place.device)


def make_attention(config: Mapping[str, Any], shapes: Shapes, norm_offset: float) -> nn.Module:
    if "self_attn.kv_a_proj_with_mqa.weight" in shapes:
        return LatentAttention(config, shapes)
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = shapes["self_attn.k_proj.weight"][0] // kv_heads
    gated = shapes["self_attn.q_proj.weight"][0] == 2 * heads * head_dim
    size, epsilon = int(config["hidden_size"]), float(config.get("rms_norm_eps", 1e-6))
    kind = GatedAttention if gated else PlainAttention
    attention = kind(
        size, size, heads, kv_heads, head_dim, Rope.from_config(config, head_dim), "self_attn.q_proj.bias" in shapes,
        "self_attn.o_proj.bias" in shapes, "self_attn.q_norm.weight" in shapes, epsilon,
    )  # fmt: skip
    if attention.q_norm is not None:
        attention.q_norm = RMSNorm(head_dim, epsilon, norm_offset)
        attention.k_norm = RMSNorm(head_dim, epsilon, norm_offset)
    return attention


class PlainAttention(Attention):
    """Grouped-query attention that says what its cache holds per token."""

    @property
    def cache_shape(self) -> tuple[int, int]:
        return self.num_kv_heads, self.head_dim


class GatedAttention(PlainAttention):
    """Each head's q_proj yields [query | gate]; the head's result is multiplied by sigmoid(gate) (Qwen3-Next)."""

    def __init__(self, input_size: int, output_size: int, num_heads: int, num_kv_heads: int, head_dim: int, rope: Rope,
                 bias: bool = False, output_bias: bool = False, qk_norm: bool = False, epsilon: float = 1e-6,
                 ) -> None:  # fmt: skip
        super().__init__(
            input_size, output_size, num_heads, num_kv_heads, head_dim, rope, bias, output_bias, qk_norm, epsilon
        )
        self.q_proj = nn.Linear(input_size, 2 * num_heads * head_dim, bias=bias)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache: KVCache,
                layer: int = 0) -> torch.Tensor:  # fmt: skip
        query, gate = self.q_proj(x).view(len(x), self.num_heads, 2 * self.head_dim).chunk(2, dim=-1)
        query = self.q_norm(query) if self.q_norm is not None else query
        query = rotate(query, *self.rope.tables(positions, query.dtype))
        keys, values = cache.write(layer, *self.keys_values(x, positions))
        mixed = attend(query, keys, values, mask, self.head_dim**-0.5)
        return self.o_proj((mixed * gate.sigmoid()).flatten(1))


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2, 2405.04434): the cache holds one latent per token for all heads.

    Per token c [r] (normed) and one turned key part k [e_rope]; head j's key is [U_j c ; k], its value V_j c. U is
    moved to the query and V behind the mixture, so keys and values are never spelled out.
    """

    def __init__(self, config: Mapping[str, Any], shapes: Shapes) -> None:
        super().__init__()
        size, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        self.num_heads, self.rank = heads, int(config["kv_lora_rank"])
        self.rope_dim, self.plain_dim = int(config["qk_rope_head_dim"]), int(config["qk_nope_head_dim"])
        self.value_dim = int(config["v_head_dim"])
        self.interleaved = bool(config.get("rope_interleave", True))
        query_size, bias = heads * (self.plain_dim + self.rope_dim), "self_attn.kv_a_proj_with_mqa.bias" in shapes
        self.q_proj = self.q_a_proj = self.q_b_proj = self.q_a_layernorm = None
        if "self_attn.q_proj.weight" in shapes:
            self.q_proj = nn.Linear(size, query_size, bias=False)
        else:
            query_rank = shapes["self_attn.q_a_proj.weight"][0]
            self.q_a_proj = nn.Linear(size, query_rank, bias="self_attn.q_a_proj.bias" in shapes)
            self.q_a_layernorm = RMSNorm(query_rank)
            self.q_b_proj = nn.Linear(query_rank, query_size, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(size, self.rank + self.rope_dim, bias=bias)
        self.kv_a_layernorm = RMSNorm(self.rank)
        self.kv_b_proj = nn.Linear(self.rank, heads * (self.plain_dim + self.value_dim), bias=False)
        self.o_proj = nn.Linear(heads * self.value_dim, size, bias="self_attn.o_proj.bias" in shapes)
        self.rope, sharpness = _latent_rope(config, self.rope_dim)
        self.scale = sharpness / math.sqrt(self.plain_dim + self.rope_dim)

    @property
    def cache_shape(self) -> tuple[int, int]:
        """The token's latent and turned key part, cut in halves: the cache keeps two vectors of one size."""
        return 1, -(-(self.rank + self.rope_dim) // 2)

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache: KVCache, layer: int = 0
    ) -> torch.Tensor:
        n, h = len(x), self.num_heads
        query = self.q_proj(x) if self.q_proj is not None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        plain, turning = query.view(n, h, -1).split((self.plain_dim, self.rope_dim), dim=-1)
        latent, key = self.kv_a_proj_with_mqa(x).split((self.rank, self.rope_dim), dim=-1)
        tables = self.rope.tables(positions, x.dtype)
        turning, key = rotate(self._paired(turning), *tables), rotate(self._paired(key)[:, None], *tables)[:, 0]
        stored = torch.cat((self.kv_a_layernorm(latent), key), dim=-1)
        half = self.cache_shape[1]
        stored = F.pad(stored, (0, 2 * half - stored.shape[-1]))
        first, second = cache.write(layer, stored[:, None, :half], stored[:, None, half:])
        keys = torch.cat((first, second), dim=-1)[..., : self.rank + self.rope_dim]  # [1, S, r + e_rope]
        up, down = self.kv_b_proj.weight.view(h, -1, self.rank).split((self.plain_dim, self.value_dim), dim=1)
        query = torch.cat((torch.einsum("nhe,her->nhr", plain, up), turning), dim=-1)
        mixed = attend(query, keys, keys[..., : self.rank], mask, self.scale)  # [n, h, r]
        return self.o_proj(torch.einsum("nhr,her->nhe", mixed, down).flatten(1))

    def _paired(self, x: torch.Tensor) -> torch.Tensor:
        """Elements 0 2 4 … 1 3 5 …: the published weights keep the two numbers that turn together side by side."""
        return torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1) if self.interleaved else x


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """query [n, h, e] over keys [g, S, e] and values [g, S, v] under bool [n, S] → [n, h, v]."""
    n, h, e = query.shape
    g = keys.shape[0]
    folded = query.view(n, g, h // g, e).permute(1, 2, 0, 3).reshape(1, g, -1, e)
    folded_mask = None if mask is None else mask.repeat(h // g, 1)
    mixed = F.scaled_dot_product_attention(folded, keys[None], values[None], attn_mask=folded_mask, scale=scale)
    return mixed.view(g, h // g, n, -1).permute(2, 0, 1, 3).reshape(n, h, -1)


def _latent_rope(config: Mapping[str, Any], rope_dim: int) -> tuple[Rope, float]:
    """Rotary positions, and the factor on the softmax scale that DeepSeek's YaRN moves out of cos and sin."""
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    factor, all_dim = float(parameters.get("factor") or 1.0), float(parameters.get("mscale_all_dim") or 0.0)
    yarn = parameters.get("rope_type", parameters.get("type", "default")) == "yarn"

    def sharpness(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if yarn and parameters.get("mscale") and all_dim:
        parameters["attention_factor"] = sharpness(float(parameters["mscale"])) / sharpness(all_dim)
    without = {name: value for name, value in config.items() if name not in ("partial_rotary_factor", "rope_scaling")}
    rope = Rope.from_config({**without, "rope_parameters": parameters}, rope_dim)
    return rope, sharpness(all_dim) ** 2 if yarn and all_dim else 1.0


def make_feed_forward(config: Mapping[str, Any], shapes: Shapes) -> nn.Module:
    if "mlp.gate.weight" in shapes:
        return Experts(config, shapes)
    return SwiGLU(int(config["hidden_size"]), shapes["mlp.gate_proj.weight"][0], "mlp.gate_proj.bias" in shapes)


class Experts(nn.Module):
    """A mixture of experts: each row through the few that its router picks, and through a shared one.

    Two routers are published. DeepSeek-V3 and GLM: sigmoid scores, a correction bias that counts for the choice alone,
    experts in groups of which the best few are open. Qwen: softmax scores, and the shared expert behind a gate.
    """

    def __init__(self, config: Mapping[str, Any], shapes: Shapes) -> None:
        super().__init__()
        count, size = shapes["mlp.gate.weight"]
        self.top_k, self.normed = int(config["num_experts_per_tok"]), bool(config.get("norm_topk_prob", True))
        self.corrected = "mlp.gate.e_score_correction_bias" in shapes
        self.groups = int(config.get("n_group") or 1)
        self.open_groups = int(config.get("topk_group") or 1)
        self.scaling = float(config.get("routed_scaling_factor") or 1.0)
        self.gate = nn.Linear(size, count, bias=False)
        if self.corrected:
            self.gate.register_buffer("e_score_correction_bias", torch.zeros(count))
        inner = shapes["mlp.experts.0.gate_proj.weight"][0]
        self.experts = nn.ModuleList(SwiGLU(size, inner) for _ in range(count))
        shared = next(
            (name for name in ("shared_experts", "shared_expert") if f"mlp.{name}.gate_proj.weight" in shapes), None
        )
        self.shared_experts = self.shared_expert = self.shared_expert_gate = None
        if shared:
            setattr(self, shared, SwiGLU(size, shapes[f"mlp.{shared}.gate_proj.weight"][0]))
        if "mlp.shared_expert_gate.weight" in shapes:
            self.shared_expert_gate = nn.Linear(size, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen, weights = self._route(x)
        result = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            row, place = torch.where(chosen == expert)
            result.index_add_(0, row, (self.experts[expert](x[row]) * weights[row, place, None]).to(x.dtype))
        if self.shared_experts is not None:
            result = result + self.shared_experts(x)
        if self.shared_expert is not None:
            extra = self.shared_expert(x)
            gate = self.shared_expert_gate
            result = result + (extra if gate is None else gate(x).sigmoid() * extra)
        return result

    def _route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Experts and their weights, each [n, top_k]."""
        scores = F.linear(x.float(), self.gate.weight.float())
        if not self.corrected:
            weights, chosen = scores.softmax(-1).topk(self.top_k, dim=-1)
            return chosen, weights / weights.sum(-1, keepdim=True) if self.normed else weights
        scores = scores.sigmoid()
        ranked = scores + self.gate.e_score_correction_bias.float()
        if self.groups > 1:
            grouped = ranked.view(len(x), self.groups, -1)
            best = grouped.topk(2, dim=-1).values.sum(-1).topk(self.open_groups, dim=-1).indices
            closed = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, best, False)
            ranked = grouped.masked_fill(closed[..., None], -math.inf).flatten(1)
        chosen = ranked.topk(self.top_k, dim=-1).indices
        weights = scores.gather(1, chosen)
        if self.normed:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights * self.scaling
