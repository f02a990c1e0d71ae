"""DFlash's network (2602.06036): one pass without a causal order guesses a whole block of tokens.

    context   c(i) = hidden_norm(fc [h_a(i) ; h_b(i) ; …])   tapped hidden states of the target at token i, fused
    block     anchor x(s), then B − 1 mask tokens             embedded with the target's own embedding
    layer     Q from the block; K and V from c(0 … s−1) and the block, by the same matrices; c is the same tensor in
              every layer and passes no input norm; rotary positions are absolute for both
    output    norm, then the target's own head: slot j predicts x(s+j), its own position, and slot 0 is not used;
              in DeepSpec's and other shifted drafters slot j predicts x(s+j+1), and slot 0 counts

The cache holds keys and values of the context alone: those of a block are of guesses, and the next block overwrites
them. Parameters are named as published files name them. No embedding and no head are stored: the target lends them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Union

import torch
from torch import nn
from torch.nn import functional as F

from ..checkpoint import CheckpointError, load_strict, read_config, read_tensors
from .layers import Attention, DraftModule, KVCache, Mask, RMSNorm, SwiGLU
from .rope import Rope

Net = TypeVar("Net", bound="DFlashNet")
Looking = tuple[Union[int, None], bool]  # noqa: UP007 (evaluated at run time): a layer's window, and whether causal

# Frozen copies of the target's own weights that some exports carry, and tables that are computed.
_NOT_OURS = ("embed_tokens.weight", "*lm_head.weight", "verifier_norm.weight", "d2t", "*rotary_emb.inv_freq")
UNREACHED = -1e4  # added to logits of tokens outside a reduced vocabulary: no chance, unless nothing else is allowed


@dataclass(frozen=True)
class DFlashConfig:
    """What a published ``config.json`` says, under one name each.

    Attributes:
        feature_layers: Hugging Face ``hidden_states`` indices, in the order in which ``fc`` reads them.
        windows: per layer, how far a row looks back, None without end.
        window_from_anchor: the window on the context is counted from the block's first slot, not from each row.
        causal: per layer, whether a slot sees only the slots before it.
        shift: 0 where slots predict their own position, 1 where they predict the next.
    """

    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_epsilon: float
    attention_bias: bool
    block_size: int
    mask_token_id: int
    feature_layers: tuple[int, ...]
    windows: tuple[int | None, ...]
    window_from_anchor: bool
    causal: tuple[bool, ...]
    shift: int
    rope: Rope
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    logit_cap: float = 0.0

    @property
    def num_layers(self) -> int:
        return len(self.windows)


def read_dflash_config(source: Path) -> DFlashConfig:
    """The config of a z-lab, JetSpec, DeepSpec or speculators directory.

    Raises:
        CheckpointError: a field is missing, or the drafter is of a variant that is not supported.
    """
    config = read_config(source)
    try:
        return parse_dflash_config(config)
    except KeyError as error:
        raise CheckpointError(f"{source}/config.json has no {error}: give a DFlash checkpoint directory") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{source}/config.json is not a DFlash config this code supports: {error}") from error


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """All fields side by side; those of the drafter win over the transformer's, which speculators nests instead."""
    flat = {**(config.get("transformer_layer_config") or {}), **config}
    return flat | (config.get("dflash2_config") or {}) | (config.get("dflash_config") or {})


def parse_dflash_config(config: Mapping[str, Any]) -> DFlashConfig:
    """As ``read_dflash_config``, from the parsed JSON; raises ``KeyError`` or ``ValueError``."""
    exported = "transformer_layer_config" in config  # by speculators
    flat = flatten(config)
    shifted = any(flat.get(field) for field in ("sample_from_anchor", "shift_label", "draft_shift"))
    shifted |= any("DSpark" in name for name in config.get("architectures") or ())  # without its Markov head
    layers = int(flat["num_hidden_layers"])
    window = flat.get("sliding_window") if flat.get("use_sliding_window") else None
    kinds = flat.get("layer_types") or [
        "sliding_attention" if window is not None and i >= flat.get("max_window_layers", 28) else "full_attention"
        for i in range(layers)
    ]
    sliding = [kind == "sliding_attention" for kind in kinds[:layers]]
    if exported:
        both_ways = flat.get("sliding_window_non_causal", "selector_rank" in flat)
        causal = [slides and not both_ways for slides in sliding]
        features = flat["aux_hidden_state_layer_ids"]
    else:
        says = True if flat.get("causal_head") else config.get("is_causal")
        causal = sliding if says is None else [bool(says)] * layers
        features = [layer + 1 for layer in flat["target_layer_ids"]]  # outputs of 0-based layers
    per_kind = (flat.get("rope_parameters") or {}).get("sliding_attention")
    head_dim = int(flat.get("head_dim") or 128)
    parsed = DFlashConfig(
        vocabulary_size=int(flat["vocab_size"]),
        hidden_size=int(flat["hidden_size"]),
        intermediate_size=int(flat["intermediate_size"]),
        num_heads=int(flat["num_attention_heads"]),
        num_kv_heads=int(flat.get("num_key_value_heads") or flat["num_attention_heads"]),
        head_dim=head_dim,
        norm_epsilon=float(flat.get("rms_norm_eps", 1e-6)),
        attention_bias=bool(flat.get("attention_bias", False)),
        block_size=int(flat.get("block_size", 16)),
        mask_token_id=int(flat["mask_token_id"]),
        feature_layers=tuple(int(layer) for layer in features),
        windows=tuple(int(window) if slides and window is not None else None for slides in sliding),
        window_from_anchor=exported,
        causal=tuple(causal),
        shift=int(shifted),
        rope=Rope.from_config({**flat, "rope_parameters": per_kind} if per_kind else flat, head_dim),
        embedding_scale=float(flat.get("input_embedding_scale") or 1.0),
        output_multiplier=float(flat.get("output_multiplier") or 1.0),
        logit_cap=float(flat.get("final_logit_softcapping") or 0.0),
    )
    if len(parsed.windows) != layers or parsed.block_size < 2 or not parsed.feature_layers:
        raise ValueError("it needs a type for every layer, a block of at least 2 slots and target layers to read")
    if not 0 <= parsed.mask_token_id < parsed.vocabulary_size:
        raise ValueError(f"mask token {parsed.mask_token_id} is outside the vocabulary of {parsed.vocabulary_size}")
    return parsed


class DFlashLayer(nn.Module):
    """A pre-norm block of attention over context and block, and SwiGLU, both with residual."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        d, epsilon = config.hidden_size, config.norm_epsilon
        self.self_attn = Attention(d, d, config.num_heads, config.num_kv_heads, config.head_dim, config.rope,
                                   config.attention_bias, config.attention_bias, True, epsilon)  # fmt: skip
        self.mlp = SwiGLU(d, config.intermediate_size)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(d, epsilon), RMSNorm(d, epsilon)

    def attention(self, x: torch.Tensor, positions: torch.Tensor, mask: Mask, cache: KVCache,
                  index: int) -> torch.Tensor:  # fmt: skip
        """The attention sublayer on normed rows [n, d], or [blocks, n, d] at positions [blocks · n]."""
        result: torch.Tensor = self.self_attn(x.flatten(0, -2), positions, mask, cache, index).view(x.shape)
        return result

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """The other sublayer, likewise."""
        result: torch.Tensor = self.mlp(x)
        return result

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, mask: Mask, cache: KVCache,
                index: int) -> torch.Tensor:  # fmt: skip
        hidden = hidden + self.attention(self.input_layernorm(hidden), positions, mask, cache, index)
        return hidden + self.feed_forward(self.post_attention_layernorm(hidden))


class DFlashNet(DraftModule):
    """The network without embedding and head. Rows are [n, d]; the cache is the caller's."""

    def __init__(self, config: DFlashConfig, make_layer: Callable[[], DFlashLayer] | None = None) -> None:
        super().__init__()
        self.config = config
        d = config.hidden_size
        make = make_layer or partial(DFlashLayer, config)
        self.layers = nn.ModuleList(make() for _ in range(config.num_layers))
        self.fc = nn.Linear(len(config.feature_layers) * d, d, bias=False)
        self.hidden_norm, self.norm = RMSNorm(d, config.norm_epsilon), RMSNorm(d, config.norm_epsilon)
        self.reachable: torch.Tensor | None = None  # bool [V] where the drafter was trained on fewer tokens

    def new_cache(self) -> KVCache:
        """An empty cache for context rows."""
        config, place = self.config, self.fc.weight
        return KVCache(config.num_layers, config.num_kv_heads, config.head_dim, place.dtype, place.device)

    def follow(self, features: torch.Tensor, cache: KVCache, positions: torch.Tensor | None = None) -> None:
        """Append context rows: hidden states [n, m, d] of the next n committed tokens, layers as ``feature_layers``.

        positions: int64 [n] of those tokens, where they are not the n that follow the cache.
        """
        context = self.hidden_norm(self.fc(features.flatten(1)))
        if positions is None:
            positions = torch.arange(cache.length, cache.length + len(context), device=context.device)
        for index, layer in enumerate(self.layers):
            cache.write(index, *layer.self_attn.keys_values(context, positions))
        cache.advance(len(context))

    def forward(self, rows: torch.Tensor, cache: KVCache, anchor: int = 0) -> torch.Tensor:
        """Embedded block rows [n, d], standing right behind the context → hidden [n, d] after the norm.

        ``anchor``: the row of the anchor; rows before it are tokens known without features. The cache keeps nothing.
        """
        positions = torch.arange(cache.length, cache.length + len(rows), device=rows.device)
        masks = {way: block_mask(self.config, positions, cache.length, anchor, way) for way in set(self.looking)}
        return self.run_blocks(rows, positions, [masks[way] for way in self.looking], cache)

    @property
    def looking(self) -> list[Looking]:
        """How each layer looks."""
        return list(zip(self.config.windows, self.config.causal, strict=True))

    def guess(self, rows: torch.Tensor, cache: KVCache, anchor: int, asked: slice, head: torch.Tensor,
              kept: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """See ``draft_net.BlockNet``."""
        hidden = self(rows, cache, anchor)[asked]
        return hidden, self.logits(hidden, head, kept)

    def run_blocks(
        self, rows: torch.Tensor, positions: torch.Tensor, masks: Sequence[Mask], cache: KVCache
    ) -> torch.Tensor:
        """One block of embedded rows [n, d], or many in one pass [blocks, n, d] → hidden after the norm, as shaped.

        Args:
            positions: int64 [r] of all r rows, block by block.
            masks: per layer, bool [r, cache.length + r] where a row may look; None where it may look everywhere.
        """
        hidden = rows * self.config.embedding_scale
        for index, (layer, mask) in enumerate(zip(self.layers, masks, strict=True)):
            hidden = layer(hidden, positions, mask, cache, index)
        result: torch.Tensor = self.norm(hidden)
        return result

    def logits(self, hidden: torch.Tensor, head: torch.Tensor, kept: torch.Tensor | None = None) -> torch.Tensor:
        """hidden [n, d] by the target's head [V, d] → logits float32 [n, V].

        kept: int64 [V_d], whose rows ``head`` has, where it has not all; logits are [n, V_d] then.
        """
        config = self.config
        logits = F.linear(hidden.to(head.dtype), head).float() * config.output_multiplier
        if config.logit_cap > 0:
            logits = torch.tanh(logits / config.logit_cap) * config.logit_cap
        if self.reachable is not None:
            reachable = self.reachable if kept is None else self.reachable[kept]
            logits = torch.where(reachable, logits, logits + UNREACHED)
        return logits


def block_mask(config: DFlashConfig, rows: torch.Tensor, context: int, anchor: int, way: Looking,
               ) -> torch.Tensor | None:  # fmt: skip
    """bool [n, context + n], True where a row may look; None where it may look everywhere. Slots are positions."""
    window, causal = way
    if window is None and not causal:
        return None
    row, slot = rows[:, None], torch.arange(context + len(rows), device=rows.device)[None]
    seen = slot <= row if causal else torch.ones_like(slot <= row)
    if window is not None and config.window_from_anchor:
        seen &= slot >= context + anchor - window
    elif window is not None:
        seen &= (row - slot < window) & (slot - row < window)
    return seen


def load_dflash(source: Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> DFlashNet:
    """A published DFlash directory.

    Raises:
        CheckpointError: its config or tensors cannot be used.
    """
    with torch.device("meta"):
        net = DFlashNet(read_dflash_config(source)).to(dtype)
    return fill(net, source, device)


def fill(net: Net, source: Path, device: torch.device | str) -> Net:
    """Give ``net``, built on the meta device, the tensors of ``source``."""
    tensors = read_tensors(source)
    reachable = tensors.pop("t2d", None)
    if reachable is not None and reachable.shape != (net.config.vocabulary_size,):
        raise CheckpointError(f"t2d in {source} is {list(reachable.shape)}, not one entry per token: copy it again")
    load_strict(net, tensors, lambda name: name.replace("_codebook.weight", "_codebook"), source, _NOT_OURS)
    if reachable is not None and not bool(reachable.bool().all()):
        net.reachable = reachable.bool().to(device)
    return net.to(device).eval()
