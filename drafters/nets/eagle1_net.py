"""The EAGLE-1 network (Li et al., 2401.15077), which EAGLE-2 (2406.16858) uses unchanged.

Row t reads the target's final hidden state at t (after the final norm) and the token at t + 1, and predicts the hidden
state at t + 1, which the target's own head turns into logits for the token at t + 2:

    position   t              t + 1
    feature    f(t)           f̂(t + 1) = row t's output, fed back when nothing better is known
    token      x(t + 1)       x(t + 2) ~ head(f̂(t + 1))

The first layer has no input norm, and there is no norm at the end.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from .layers import DecoderLayer, DraftModule, KVCache, LayerSizes, Mask
from .rope import Rope


class EagleModule(DraftModule, abc.ABC):
    """What the drafter asks of an EAGLE network, whichever it is; see ``draft_net.EagleNet``."""

    num_layers: int
    sizes: LayerSizes
    embedding: torch.Tensor

    def new_cache(self) -> KVCache:
        place = self.embedding
        return KVCache(self.num_layers, self.sizes.num_kv_heads, self.sizes.head_dim, place.dtype, place.device)

    def step(self, ids: Sequence[int], hidden: torch.Tensor, positions: Sequence[int], mask: torch.Tensor | None,
             cache: KVCache, scored: slice) -> tuple[torch.Tensor, NDArray[np.float32]]:  # fmt: skip
        tokens, places = (torch.tensor(values, device=hidden.device) for values in (ids, positions))
        output: torch.Tensor = self(tokens, hidden, places, mask, cache)
        return output, self.logits(output[scored]).float().cpu().numpy()

    @abc.abstractmethod
    def logits(self, output: torch.Tensor) -> torch.Tensor:
        """Rows [n, d] that ``forward`` returned → logits [n, V_d]."""


class Eagle1Net(EagleModule):
    """One decoder layer (or more) over fc([embedding ; feature]).

    Shapes: n rows, d hidden size of drafter and target alike, V tokens.

    Attributes:
        embedding, head: [V, d], borrowed from the target: no parameters of this module.
    """

    kind = "eagle1"
    num_features = 1

    def __init__(self, config: Mapping[str, Any], names: Collection[str]) -> None:
        """``names``: tensors of the checkpoint, which say where there are biases."""
        super().__init__()
        config = config.get("transformer_layer_config", config)
        self.sizes = LayerSizes.from_config(config, names)
        self.hidden_size = self.target_hidden_size = self.sizes.hidden_size
        self.vocabulary_size = self.draft_vocabulary_size = int(config["vocab_size"])
        self.num_layers = int(config.get("num_hidden_layers", 1))
        rope = Rope.from_config(config, self.sizes.head_dim)
        self.fc = nn.Linear(2 * self.hidden_size, self.hidden_size, bias="fc.bias" in names)
        self.layers = nn.ModuleList(DecoderLayer(self.sizes, rope, input_norm=i > 0) for i in range(self.num_layers))
        self.embedding = self.head = torch.empty(0)

    @staticmethod
    def feature_layers(config: Mapping[str, Any], num_target_layers: int) -> tuple[int, ...]:
        """The last hidden state, after the final norm."""
        return (num_target_layers,)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """Target features [n, 1, d] → what rows read, [n, d]."""
        return features[:, 0]

    def forward(self, ids: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, mask: Mask, cache: KVCache,
                wanted: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
        """Tokens int64 [n] and hidden [n, d] → predicted features [n, d]; n rows are added to ``cache``.

        wanted: int64 [w], the only rows that are asked; the result is [w, d] then.
        """
        x: torch.Tensor = self.fc(torch.cat((F.embedding(ids, self.embedding), hidden), dim=-1))
        for index, layer in enumerate(self.layers):
            x = layer(x, positions, mask, cache, index, wanted if index == self.num_layers - 1 else None)
        cache.advance(len(ids))
        return x

    @property
    def head_weight(self) -> torch.Tensor:
        return self.head

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        return F.linear(output.to(self.head.dtype), self.head)
