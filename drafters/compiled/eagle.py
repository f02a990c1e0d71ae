"""EAGLE's networks over ``graphs/eagle.py``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..graphs.eagle import eagle_graphs
from ..graphs.net_graphs import SlotCache
from ..nets.eagle1_net import Eagle1Net
from ..nets.eagle3_net import Eagle3Net
from .base import Compiled, Compiling, row_inputs


class CompiledEagle(Compiled):
    """See ``draft_net.EagleNet``."""

    def __init__(self, net: Eagle1Net | Eagle3Net, head_is_lent: bool, compiling: Compiling) -> None:
        """``net``: loaded, on the CPU in float32; of it the embedding is kept, and the head where it is lent.

        Raises:
            TorchOnly: it has no graph.
        """
        super().__init__(eagle_graphs(net, compiling.positions, head_is_lent), compiling)
        self.kind, self.hidden_size, self.target_hidden_size = net.kind, net.hidden_size, net.target_hidden_size
        self.embedding, self.head = net.embedding, net.head if head_is_lent else torch.empty(0)
        self._rows, self._sizes, self._num_layers = net.embedding.numpy(), net.sizes, net.num_layers

    def new_cache(self) -> SlotCache:
        layers = [str(layer) for layer in range(self._num_layers)]
        return self._runner.new_cache(layers, self._sizes.num_kv_heads, self._sizes.head_dim)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        if self.kind == "eagle1":
            return features[:, 0]
        (fused,) = self._runner.run("fuse", {"features": features.flatten(1).numpy()}, ["hidden.out"])
        return torch.from_numpy(fused)

    def step(self, ids: Sequence[int], hidden: torch.Tensor, positions: Sequence[int], mask: torch.Tensor | None,
             cache: SlotCache, scored: slice) -> tuple[torch.Tensor, NDArray[np.float32]]:  # fmt: skip
        inputs = row_inputs(positions, mask, cache)
        inputs["embedded"], inputs["hidden"] = self._rows[list(ids)], hidden.numpy()
        inputs["rows"] = np.arange(len(ids))[scored]
        output, logits = self._runner.run("rows", inputs, ["hidden.out", "logits"], cache)
        cache.advance(len(ids))
        return torch.from_numpy(output), logits
