"""Medusa's heads over ``graphs/medusa.py``."""

from __future__ import annotations

import numpy as np
import torch

from ..draft_head import DraftHead
from ..graphs.medusa import medusa_graphs
from ..nets.medusa_net import MedusaNet
from .base import Compiled, Compiling


class CompiledMedusa(Compiled):
    """See ``draft_net.MedusaHeads``."""

    def __init__(self, net: MedusaNet, head: DraftHead | None, compiling: Compiling) -> None:
        """``net``: loaded, on the CPU in float32; ``head``: for heads that have no output, which gives up its rows."""
        weight, lent = (None, False) if head is None else (head.weight, head.kept is None)
        super().__init__(medusa_graphs(net, weight, lent), compiling)
        if head is not None:
            head.give_up_rows()
        self.hidden_size, self.vocabulary_size, self.borrows_head = (
            net.hidden_size, net.vocabulary_size, net.borrows_head,
        )  # fmt: skip
        self._num_heads = len(net)

    def __len__(self) -> int:
        return self._num_heads

    def logits(self, hidden: torch.Tensor, heads: range, lent: torch.Tensor | None = None) -> torch.Tensor:
        (logits,) = self._runner.run("heads", {"hidden": hidden.numpy(), "rows": np.array(heads)}, ["logits"])
        return torch.from_numpy(logits)[:, None]
