"""Sequential modules and parallel heads over ``graphs/mtp.py``."""

from __future__ import annotations

import numpy as np
import torch

from ..draft_head import DraftHead
from ..graphs.mtp import mtp_graphs, parallel_graphs
from ..graphs.net_graphs import SlotCache
from ..nets.mtp_net import MtpNet, ParallelHeads
from .base import Compiled, Compiling, causal_inputs, row_inputs


class CompiledMtp(Compiled):
    """See ``draft_net.ModulesNet``."""

    def __init__(self, net: MtpNet, head: DraftHead, compiling: Compiling) -> None:
        """``net``: loaded, on the CPU in float32; ``head`` gives up the rows it has copied.

        Raises:
            TorchOnly: a block is not plain.
        """
        super().__init__(mtp_graphs(net, compiling.positions, head.weight, head.kept is None), compiling)
        head.give_up_rows()
        self.hidden_size = net.hidden_size
        self._cache_shapes = [module.block.self_attn.cache_shape for module in net.modules_by_depth]

    def __len__(self) -> int:
        return len(self._cache_shapes)

    def new_caches(self) -> list[SlotCache]:
        return [self._runner.new_cache([str(depth)], *shape) for depth, shape in enumerate(self._cache_shapes)]

    def guess(self, depth: int, hidden: torch.Tensor, embedded: torch.Tensor, position: int, cache: SlotCache,
              head: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        count = len(hidden)
        inputs = causal_inputs(position, count, cache)
        inputs["hidden"], inputs["embedded"] = hidden.numpy(), embedded.numpy()
        inputs["rows"] = np.arange(count)[-1:] if head is not None else np.zeros(0, dtype=np.int64)
        following, logits = self._runner.run(f"module.{depth}", inputs, ["hidden.out", "logits"], cache)
        cache.advance(count)
        return torch.from_numpy(following), None if head is None else torch.from_numpy(logits)


class CompiledParallelHeads(Compiled):
    """See ``draft_net.ParallelNet``."""

    def __init__(self, net: ParallelHeads, final_norm: torch.Tensor, head: DraftHead, compiling: Compiling) -> None:
        """As for ``CompiledMtp``; ``final_norm`` [d]: the target's."""
        graphs = parallel_graphs(net, compiling.positions, final_norm, head.weight, head.kept is None)
        super().__init__(graphs, compiling)
        head.give_up_rows()
        self.hidden_size, self._num_heads = net.hidden_size, len(net)
        self._cache_shape = net.heads[0].self_attn.cache_shape

    def __len__(self) -> int:
        return self._num_heads

    def new_cache(self) -> SlotCache:
        return self._runner.new_cache([str(k) for k in range(len(self))], *self._cache_shape)

    def follow(self, trunk: torch.Tensor, cache: SlotCache) -> None:
        self._run("follow", trunk, cache, {}, [])

    def guess(self, trunk: torch.Tensor, wanted: range, cache: SlotCache, final_norm: torch.Tensor,
              head: torch.Tensor) -> torch.Tensor:  # fmt: skip
        (logits,) = self._run("heads", trunk, cache, {"asked": np.array([len(trunk) - 1]), "rows": np.array(wanted)},
                              ["logits"])  # fmt: skip
        return torch.from_numpy(logits)

    def _run(self, step: str, trunk: torch.Tensor, cache: SlotCache, more: dict[str, np.ndarray],
             outputs: list[str]) -> list[np.ndarray]:  # fmt: skip
        count = len(trunk)
        inputs = row_inputs(range(cache.length, cache.length + count), None, cache)
        seen = inputs.pop("mask")[-1:]
        inputs |= {"hidden": trunk.numpy(), **more} | ({"mask": seen} if step == "heads" else {})
        results = self._runner.run(step, inputs, outputs, cache)
        cache.advance(count)
        return results
