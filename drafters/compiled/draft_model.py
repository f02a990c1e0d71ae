"""A distilled draft model over ``graphs/draft_model.py``."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from ..draft_head import DraftHead
from ..graphs.draft_model import draft_model_graphs
from ..graphs.net_graphs import SlotCache
from ..nets.draft_model_net import DraftModelNet
from .base import Compiled, Compiling, causal_inputs


class CompiledDraftModel(Compiled):
    """See ``draft_net.ModelNet``."""

    def __init__(self, net: DraftModelNet, head: DraftHead, compiling: Compiling) -> None:
        """``net``: loaded, on the CPU in float32; ``head`` gives up the rows it has copied."""
        graphs = draft_model_graphs(net, compiling.positions, head.weight, head.kept is None)
        super().__init__(graphs, compiling)
        head.give_up_rows()
        self.embedding, self.sizes, self.num_layers = net.embedding, net.sizes, net.num_layers

    def new_cache(self) -> SlotCache:
        layers = [str(layer) for layer in range(self.num_layers)]
        return self._runner.new_cache(layers, self.sizes.num_kv_heads, self.sizes.head_dim)

    def read(self, ids: torch.Tensor, cache: SlotCache, head: torch.Tensor) -> torch.Tensor:
        inputs = causal_inputs(cache.length, len(ids), cache)
        inputs |= {"embedded": F.embedding(ids, self.embedding).numpy(), "rows": np.array([len(ids) - 1])}
        (logits,) = self._runner.run("rows", inputs, ["logits"], cache)
        cache.advance(len(ids))
        return torch.from_numpy(logits)
