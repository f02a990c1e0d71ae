"""The EAGLE-3 network (Li et al., 2503.01840) and the norms of EAGLE-3.1 (2605.09992).

Row t reads low, middle and high hidden states of the target at t, fused by one matrix, and the token at t + 1, and
predicts the token at t + 2. What it hands on to row t + 1 is its own output, of which no target feature is asked:

    position   t                                  t + 1
    hidden     a(t) = fc([low ; mid ; high])       a(t + 1) = o(t), row t's output
    token      x(t + 1)                           x(t + 2) ~ head(norm(o(t)))

The first layer attends from [norm(embedding) ; norm(hidden)], twice as wide; its residual is the hidden state alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .eagle1_net import EagleModule
from .layers import DecoderLayer, KVCache, LayerSizes, Mask, RMSNorm
from .rope import Rope


class Eagle3Net(EagleModule):
    """Shapes: n rows, d hidden size, d_t the target's, m features per token, V tokens, V_d of them in the draft head.

    Attributes:
        embedding: [V, d], borrowed from the target, or the checkpoint's where it has one of its own.
        head: [V, d], borrowed, where the checkpoint brings no head and V_d = V.
    """

    kind = "eagle3"

    def __init__(self, config: Mapping[str, Any], names: Collection[str]) -> None:
        """``names``: tensors of the checkpoint, which say where there are biases, and whether there is a head.

        Raises:
            ValueError: the config asks for something that is not implemented.
        """
        super().__init__()
        inner = config.get("transformer_layer_config", config)
        if any(kind != "full_attention" for kind in inner.get("layer_types") or ()):
            raise ValueError("sliding-window layers are not supported in an EAGLE-3 drafter")
        self.sizes = LayerSizes.from_config(inner, names)
        self.hidden_size, epsilon = self.sizes.hidden_size, self.sizes.epsilon
        self.target_hidden_size = int(config.get("target_hidden_size") or self.hidden_size)
        self.vocabulary_size = int(inner["vocab_size"])
        self.draft_vocabulary_size = int(config.get("draft_vocab_size") or self.vocabulary_size)
        self.num_layers = int(inner.get("num_hidden_layers", 1))
        self.num_features = len(_listed_layers(config) or (0, 0, 0))
        self.norm_output = bool(config.get("norm_output", False))
        width = self.num_features * self.target_hidden_size
        rope = Rope.from_config(inner, self.sizes.head_dim)
        self.input_norm = RMSNorm(width, epsilon) if config.get("norm_before_fc") else None
        self.fc_norm = (
            nn.ModuleList(RMSNorm(self.target_hidden_size, epsilon) for _ in range(self.num_features))
            if config.get("fc_norm")
            else None
        )
        self.fc = nn.Linear(width, self.hidden_size, bias="fc.bias" in names)
        first = Eagle3Layer(self.sizes, rope, bool(config.get("norm_before_residual", False)))
        self.layers = nn.ModuleList([first, *(DecoderLayer(self.sizes, rope) for _ in range(self.num_layers - 1))])
        self.norm = RMSNorm(self.hidden_size, epsilon)
        has_head = "lm_head.weight" in names or self.draft_vocabulary_size < self.vocabulary_size
        self.lm_head = nn.Linear(self.hidden_size, self.draft_vocabulary_size, bias=False) if has_head else None
        self.embedding = self.head = torch.empty(0)

    @staticmethod
    def feature_layers(config: Mapping[str, Any], num_target_layers: int) -> tuple[int, ...]:
        """Hugging Face ``hidden_states`` indices, in the order that ``fuse`` reads them.

        Raises:
            ValueError: the target is too shallow for three different ones.
        """
        listed = _listed_layers(config)
        if listed is not None:
            return listed
        default = (2, num_target_layers // 2, num_target_layers - 3)
        if len(set(default)) < 3 or min(default) < 0:
            raise ValueError(
                f"the config lists no feature layers, and a target of {num_target_layers} layers has no low, middle "
                f"and high one (hidden states {default}): EAGLE-3 needs at least 7 layers"
            )
        return default

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """Target features [n, m, d_t] → what rows read, [n, d]."""
        if self.fc_norm is not None:
            features = torch.stack([norm(features[:, i]) for i, norm in enumerate(self.fc_norm)], dim=1)
        flat = features.flatten(1)
        fused: torch.Tensor = self.fc(flat if self.input_norm is None else self.input_norm(flat))
        return fused

    def forward(self, ids: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, mask: Mask, cache: KVCache,
                wanted: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
        """Tokens int64 [n] and hidden [n, d] → what is fed back, [n, d]; n rows are added to ``cache``.

        wanted: int64 [w], the only rows that are asked; the result is [w, d] then.
        """
        first, *rest = self.layers
        asked: list[torch.Tensor | None] = [None] * len(rest) + [wanted]  # by layer: the last one alone may skip rows
        x: torch.Tensor = first(F.embedding(ids, self.embedding), hidden, positions, mask, cache, asked[0])
        for index, layer in enumerate(rest, start=1):
            x = layer(x, positions, mask, cache, index, asked[index])
        cache.advance(len(ids))
        result: torch.Tensor = self.norm(x) if self.norm_output else x
        return result

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        head = self.head_weight
        return F.linear(self.before_head(output).to(head.dtype), head)

    @property
    def head_weight(self) -> torch.Tensor:
        """[V_d, d], its own or the borrowed one."""
        return self.head if self.lm_head is None else self.lm_head.weight

    def before_head(self, output: torch.Tensor) -> torch.Tensor:
        """What of rows [n, d] that ``forward`` returned meets the head."""
        return output if self.norm_output else self.norm(output)


class Eagle3Layer(DecoderLayer):
    """The first layer: token and hidden state, each with its own norm, side by side into attention."""

    def __init__(self, sizes: LayerSizes, rope: Rope, norm_before_residual: bool) -> None:
        super().__init__(sizes, rope, attention_input=2 * sizes.hidden_size)
        self.hidden_norm = RMSNorm(sizes.hidden_size, sizes.epsilon)
        self.norm_before_residual = norm_before_residual

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor,  # type: ignore[override]
                mask: Mask, cache: KVCache, wanted: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
        normed = self.hidden_norm(hidden)
        x = torch.cat((self.input_layernorm(embedded), normed), dim=-1)
        residual = normed if self.norm_before_residual else hidden
        residual = residual if wanted is None else residual[wanted]
        return self.finish(residual, self.self_attn(x, positions, mask, cache, 0, wanted))


def _listed_layers(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """What a config says about feature layers, as Hugging Face indices; None where it leaves them to the default.

    speculators counts hidden states as Hugging Face does. SpecForge and ModelOpt, inside ``eagle_config``, count
    layers and mean their outputs, which is one less.
    """
    outputs = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if outputs:
        return tuple(int(layer) + 1 for layer in outputs)
    states = config.get("eagle_aux_hidden_state_layer_ids")
    return tuple(int(layer) for layer in states) if states else None
