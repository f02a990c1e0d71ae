"""Multi-token prediction: modules that a target was trained with, or given later, and that guess further ahead.

Sequential (DeepSeek-V3, 2412.19437): module k takes, at row i, what module k − 1 made of row i (module 0: the target's
hidden state h(i) after its final norm) and the token k + 1 places on:

    u(i) = eh_proj · [ enorm(emb(x(i+1+k))) ; hnorm(h(i)) ]      MiMo: the other way round
    g(i) = block(u)(i), over its own rows 0 … i                   logits of x(i+2+k) = head · norm(g(i))

What goes on to the next module, or back into the only one, is norm(g) or g itself, by family and by age of the code
that serves it. Parallel (Gloeckle et al., 2404.19737): heads beside the target's last layer, on what enters it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .layers import DraftModule, KVCache, Mask, RMSNorm, causal_mask
from .mtp_blocks import Block, Shapes


@dataclass(frozen=True)
class MtpForm:
    """What differs between published families.

    Attributes:
        hidden_first: the projection reads [hidden ; embedding] rather than [embedding ; hidden].
        recurse_normed: the next step gets norm(g) rather than g.
        norm_offset: 1 where RMSNorm weights are stored zero-centred.
    """

    hidden_first: bool = False
    recurse_normed: bool = True
    norm_offset: float = 0.0


class MtpModule(nn.Module):
    """One sequential module; parameters have DeepSeek's names, its ``shared_head.norm`` being ``norm``."""

    def __init__(self, config: Mapping[str, Any], shapes: Shapes, form: MtpForm) -> None:
        super().__init__()
        size, epsilon = int(config["hidden_size"]), float(config.get("rms_norm_eps", 1e-6))
        self.form = form
        self.enorm, self.hnorm, self.norm = (RMSNorm(size, epsilon, form.norm_offset) for _ in range(3))
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.block = Block(config, shapes, form.norm_offset)

    def forward(self, hidden: torch.Tensor, embedded: torch.Tensor, positions: torch.Tensor, mask: Mask,
                cache: KVCache, wanted: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
        """Row i of ``hidden`` and ``embedded`` [n, d] stands behind those in ``cache``; returns g [n, d].

        Args:
            positions: int64 [n], of the rows' tokens, for RoPE.
            mask: bool [n, cache.length + n], which rows each row sees; None: all. The caller advances the cache.
            wanted: int64 [w], the rows whose g is asked for, [w, d] then (``Block``); None: all.
        """
        parts = (self.enorm(embedded), self.hnorm(hidden))
        x = self.eh_proj(torch.cat(parts[::-1] if self.form.hidden_first else parts, dim=-1))
        result: torch.Tensor = self.block(x, positions, mask, cache, wanted)
        return result


class MtpNet(DraftModule):
    """The modules of one target, in the order of their distance."""

    def __init__(self, config: Mapping[str, Any], shapes: list[Shapes], form: MtpForm) -> None:
        """``shapes``: of each module's block tensors."""
        super().__init__()
        self.form, self.hidden_size = form, int(config["hidden_size"])
        self.modules_by_depth = nn.ModuleList(MtpModule(config, each, form) for each in shapes)

    def __len__(self) -> int:
        return len(self.modules_by_depth)

    def new_caches(self) -> list[KVCache]:
        return [module.block.new_cache() for module in self.modules_by_depth]

    def step(self, depth: int, hidden: torch.Tensor, embedded: torch.Tensor, positions: torch.Tensor,
             mask: Mask, cache: KVCache, wanted: torch.Tensor | None = None,
             ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """What the next step gets, and what the head reads, of the rows asked for; arguments as for ``MtpModule``."""
        module = self.modules_by_depth[depth]
        made = module(hidden, embedded, positions, mask, cache, wanted)
        normed = module.norm(made)
        return (normed if self.form.recurse_normed else made), normed

    def guess(self, depth: int, hidden: torch.Tensor, embedded: torch.Tensor, position: int, cache: KVCache,
              head: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        """See ``draft_net.ModulesNet``."""
        count = len(hidden)
        positions = torch.arange(position, position + count, device=hidden.device)
        mask = causal_mask(count, cache.length, hidden.device) if count > 1 else None
        following, read = self.step(depth, hidden, embedded, positions, mask, cache)
        cache.advance(count)
        return following, None if head is None else F.linear(read[-1:].to(head.dtype), head)


class ParallelHeads(DraftModule):
    """K decoder layers beside the target's last one; head k guesses the token k + 2 places on (the last layer: 1)."""

    def __init__(self, config: Mapping[str, Any], shapes: list[Shapes]) -> None:
        super().__init__()
        self.hidden_size, self.epsilon = int(config["hidden_size"]), float(config.get("rms_norm_eps", 1e-6))
        self.heads = nn.ModuleList(Block(config, each) for each in shapes)

    def __len__(self) -> int:
        return len(self.heads)

    def new_cache(self) -> KVCache:
        place, shape = self.heads[0].input_layernorm.weight, self.heads[0].self_attn.cache_shape
        return KVCache(len(self.heads), *shape, dtype=place.dtype, device=place.device)

    def follow(self, trunk: torch.Tensor, cache: KVCache) -> None:
        """See ``draft_net.ParallelNet``; likewise ``guess``."""
        self._at_last(trunk, range(0), cache)

    def guess(self, trunk: torch.Tensor, wanted: range, cache: KVCache, final_norm: torch.Tensor,
              head: torch.Tensor) -> torch.Tensor:  # fmt: skip
        read = self.normed(self._at_last(trunk, wanted, cache), final_norm)
        return F.linear(read.to(head.dtype), head)

    def _at_last(self, trunk: torch.Tensor, wanted: range, cache: KVCache) -> torch.Tensor:
        """Put ``trunk`` behind the cache; [len(wanted), d], the wanted heads at the last row."""
        positions = torch.arange(cache.length, cache.length + len(trunk), device=trunk.device)
        last = torch.tensor([len(trunk) - 1], device=trunk.device)
        return self(trunk, positions, last, None, wanted, cache)[:, 0]

    def forward(self, trunk: torch.Tensor, positions: torch.Tensor, asked: torch.Tensor, mask: Mask,
                wanted: range, cache: KVCache) -> torch.Tensor:  # fmt: skip
        """Put rows ``trunk`` [n, d] at int64 [n] behind the cache, and the rows ``asked``, int64 [m], to the heads.

        Of the rows that are not asked each head needs keys and values alone. ``mask`` bool [m, cache.length + n]: what
        the asked rows see; None: all. Returns [len(wanted), m, d].
        """
        results = []
        for k, block in enumerate(self.heads):
            attention, x = block.self_attn, block.input_layernorm(trunk)
            keys, values = cache.write(k, *attention.keys_values(x, positions))
            if k in wanted:
                query = attention.queries(x[asked], positions[asked])
                results.append(block.finish(trunk[asked], attention.attend(query, keys, values, mask)))
        cache.advance(len(trunk))
        return torch.stack(results) if results else trunk.new_zeros((0, len(asked), self.hidden_size))

    def normed(self, results: torch.Tensor, final_norm: torch.Tensor) -> torch.Tensor:
        """[..., d] through the target's final norm [d]: what its head reads."""
        wide = results.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return wide.to(results.dtype) * final_norm
