"""DFlash's and DFlash 2's networks over ``graphs/dflash.py``."""

from __future__ import annotations

import numpy as np
import torch

from ..draft_head import DraftHead
from ..graphs.dflash import dflash_graphs, ways_to_look
from ..graphs.net_graphs import SlotCache
from ..nets.dflash_net import DFlashNet, block_mask
from ..nets.layers import module_bytes
from .base import Compiled, Compiling, row_inputs


class CompiledDFlash(Compiled):
    """See ``draft_net.BlockNet``; of DFlash 2 the selector stays as it is."""

    def __init__(self, net: DFlashNet, head: DraftHead, compiling: Compiling) -> None:
        """``net``: loaded, on the CPU in float32; ``head`` gives up the rows it has copied.

        Raises:
            TorchOnly: its block is too large.
        """
        super().__init__(dflash_graphs(net, compiling.positions, head.weight, head.kept), compiling)
        head.give_up_rows()
        self.config, self._ways = net.config, ways_to_look(net)
        self.candidate_selector = getattr(net, "candidate_selector", None)

    @property
    def num_bytes(self) -> int:
        selector = 0 if self.candidate_selector is None else module_bytes(self.candidate_selector)
        return super().num_bytes + selector

    def new_cache(self) -> SlotCache:
        layers = [str(layer) for layer in range(self.config.num_layers)]
        return self._runner.new_cache(layers, self.config.num_kv_heads, self.config.head_dim)

    def follow(self, features: torch.Tensor, cache: SlotCache) -> None:
        count, start = len(features), cache.length
        cache.make_room(count)
        inputs = {"features": features.flatten(1).numpy(), "positions": np.arange(start, start + count),
                  "start": np.array([start])}  # fmt: skip
        self._runner.run("follow", inputs, [], cache)
        cache.advance(count)

    def guess(self, rows: torch.Tensor, cache: SlotCache, anchor: int, asked: slice, head: torch.Tensor,
              kept: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        positions = torch.arange(cache.length, cache.length + len(rows))
        masks = [block_mask(self.config, positions, cache.length, anchor, way) for way in self._ways]
        inputs = row_inputs(positions.numpy(), masks[0], cache)
        for way, mask in enumerate(masks[1:], start=1):
            inputs[f"mask.{way}"] = row_inputs(positions.numpy(), mask, cache)["mask"]
        inputs["embedded"], inputs["rows"] = rows.numpy(), np.arange(len(rows))[asked]
        hidden, logits = self._runner.run("block", inputs, ["hidden.out", "logits"], cache)
        return torch.from_numpy(hidden), torch.from_numpy(logits)
