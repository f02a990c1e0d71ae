"""DFlash 2's network (inco.ai, "DFlash 2: Keep Drafting Parallel", 2026): DFlash, local mixing and a path selector.

    mixing     around each sublayer F, on block rows only:  r + mix_out(F(mix_in(x))),  x the normed rows
               mix(u)_i = k(i, 0) ⊙ u_i + k(i, 1) ⊙ u_(i−1),  u_(−1) = 0
               k = base + δ(x_i), δ one number per group of channels; both sides read δ from x, before any mixing
    selector   the 16 likeliest tokens of a slot, scored again given the token before:
               S_t(a, b) = U_t(b) + Σ_r A[a]_r · (H h_t)_r · B[b]_r      U: logits, h: hidden after the norm

Slots are still filled in one pass; only the choice among 16 tokens each goes left to right (``dflash2.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from ..checkpoint import CheckpointError, read_config
from .dflash_net import DFlashConfig, DFlashLayer, DFlashNet, fill, flatten, read_dflash_config
from .layers import KVCache, Mask


@dataclass(frozen=True)
class DFlash2Sizes:
    """What DFlash 2 adds to the config."""

    taps: int
    group: int  # channels that share one dynamic number
    rank: int
    top_k: int


def read_dflash2_sizes(source: Path) -> DFlash2Sizes:
    """Raises ``CheckpointError`` where ``source`` is no DFlash 2 directory."""
    flat = flatten(read_config(source))
    names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    missing = [name for name in names if flat.get(name) is None]
    if missing:
        raise CheckpointError(f"{source}/config.json lacks {', '.join(missing)}: give a DFlash 2 checkpoint directory")
    sizes = DFlash2Sizes(*(int(flat[name]) for name in names))
    if min(sizes.taps, sizes.group, sizes.rank, sizes.top_k) < 1 or int(flat["hidden_size"]) % sizes.group:
        raise CheckpointError(f"{source}/config.json gives sizes that do not fit ({sizes}): copy the checkpoint again")
    return sizes


class LocalMixing(nn.Module):
    """The dynamic depthwise convolution around one sublayer: side 0 before it, side 1 after it."""

    def __init__(self, hidden_size: int, sizes: DFlash2Sizes) -> None:
        super().__init__()
        self.taps, self.group = sizes.taps, sizes.group
        self.base_kernel = nn.Parameter(torch.zeros(2, sizes.taps, hidden_size))
        with torch.no_grad():
            self.base_kernel[:, 0] = 1.0  # the identity
        self.kernel_projection = nn.Linear(hidden_size, 2 * sizes.taps * hidden_size // sizes.group, bias=False)
        nn.init.zeros_(self.kernel_projection.weight)  # likewise

    def kernels(self, x: torch.Tensor) -> torch.Tensor:
        """Normed rows [..., n, d] → coefficients [2 sides, taps, ..., n, d]."""
        *rows, d = x.shape
        change = self.kernel_projection(x).view(*rows, 2, self.taps, d // self.group).movedim((-3, -2), (0, 1))
        base = self.base_kernel.view(2, self.taps, *[1] * len(rows), d)
        return base + change.repeat_interleave(self.group, dim=-1)

    @staticmethod
    def mix(kernels: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """One side's coefficients [taps, ..., n, d] over the n rows of each block; before a block's first row is 0."""
        mixed = kernels[0] * rows
        for tap in range(1, min(len(kernels), rows.shape[-2])):
            mixed = mixed + kernels[tap] * F.pad(rows[..., :-tap, :], (0, 0, tap, 0))
        return mixed


class DFlash2Layer(DFlashLayer):
    """A DFlash layer whose sublayers are wrapped in local mixing. Context rows are not mixed."""

    def __init__(self, config: DFlashConfig, sizes: DFlash2Sizes) -> None:
        super().__init__(config)
        self.attention_conv = LocalMixing(config.hidden_size, sizes)
        self.mlp_conv = LocalMixing(config.hidden_size, sizes)

    def attention(self, x: torch.Tensor, positions: torch.Tensor, mask: Mask, cache: KVCache,
                  index: int) -> torch.Tensor:  # fmt: skip
        before, after = self.attention_conv.kernels(x)
        return LocalMixing.mix(after, super().attention(LocalMixing.mix(before, x), positions, mask, cache, index))

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        before, after = self.mlp_conv.kernels(x)
        return LocalMixing.mix(after, super().feed_forward(LocalMixing.mix(before, x)))


class PathSelector(nn.Module):
    """Scores a slot's likeliest tokens given the token before."""

    def __init__(self, config: DFlashConfig, sizes: DFlash2Sizes) -> None:
        super().__init__()
        self.top_k = min(sizes.top_k, config.vocabulary_size)
        self.hidden_projection = nn.Linear(config.hidden_size, sizes.rank, bias=False)
        self.predecessor_codebook = nn.Parameter(0.02 * torch.randn(config.vocabulary_size, sizes.rank))
        self.successor_codebook = nn.Parameter(0.02 * torch.randn(config.vocabulary_size, sizes.rank))

    def likeliest(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [..., m] → indices [..., k] of the candidates, the likeliest first."""
        return logits.topk(min(self.top_k, logits.shape[-1]), dim=-1).indices

    def gated(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Gated codes (H h) ⊙ B[b] of token ids [..., k] at slots with hidden [..., d], float32 [..., k, rank].

        S(a, b) is the logit of b plus the product of A[a], from ``codes``, with b's gated code.
        """
        return (self.hidden_projection(hidden)[..., None, :] * self.successor_codebook[ids]).float()

    def codes(self, ids: torch.Tensor) -> torch.Tensor:
        """A[a] of token ids [...], float32 [..., rank]."""
        return self.predecessor_codebook[ids].float()


class DFlash2Net(DFlashNet):
    """DFlash's network with local mixing in its layers, and the selector."""

    def __init__(self, config: DFlashConfig, sizes: DFlash2Sizes) -> None:
        super().__init__(config, partial(DFlash2Layer, config, sizes))
        self.candidate_selector = PathSelector(config, sizes)


def load_dflash2(source: Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> DFlash2Net:
    """A published DFlash 2 directory; the codebooks may carry ``.weight`` or not.

    Raises:
        CheckpointError: its config or tensors cannot be used.
    """
    config, sizes = read_dflash_config(source), read_dflash2_sizes(source)
    with torch.device("meta"):
        net = DFlash2Net(config, sizes).to(dtype)
    return fill(net, source, device)
