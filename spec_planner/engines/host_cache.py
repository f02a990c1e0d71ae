"""The KV cache of an exported decoder in main memory: one buffer, laid out as the graph's inputs want it.

A graph wants [g, S, e] without gaps for whatever extent S the pass looks at, so when S grows the cache is laid out
anew, in place, which copies the committed part of it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .passes import EXTENT_STEP


class KeyValueSizes(Protocol):
    """Of one layer, as ``DecoderConfig`` has them."""

    num_kv_heads: int  # g
    head_dim: int  # e


class HostCache:
    """Keys and values of every layer, float32, laid out [2 · layers, g, S, e] for the current extent S."""

    def __init__(self, config: KeyValueSizes, num_layers: int, capacity: int) -> None:
        self._shape = (config.num_kv_heads, config.head_dim)
        # Zeros, not empty: a masked slot still enters the matrix product, and NaN × 0 is NaN.
        self._buffers = np.zeros((2 * num_layers, config.num_kv_heads * capacity * config.head_dim), dtype=np.float32)
        self.extent = self._widest = EXTENT_STEP

    @property
    def num_bytes(self) -> int:
        return self._buffers.nbytes

    def view(self, extent: int | None = None) -> NDArray[np.float32]:
        """[2 · layers, g, S, e]; layer L's keys are row 2 L, its values row 2 L + 1."""
        g, e = self._shape
        extent = extent or self.extent
        return self._buffers[:, : g * extent * e].reshape(-1, g, extent, e)

    def resize(self, extent: int, keep: int) -> None:
        """Lay the first ``keep`` slots out for another extent, in place: heads move away from each other or together,
        and are taken in the order in which none is overwritten before it has moved."""
        heads = range(self._shape[0])
        order = list(reversed(heads) if extent > self.extent else heads)
        # One buffer at a time: where the two overlap NumPy copies through memory of its own, as much as it is given.
        for old, new in zip(self.view(), self.view(extent), strict=True):
            for head in order:
                new[head, :keep] = old[head, :keep]
        self.extent, self._widest = extent, max(extent, self._widest)

    def clear(self) -> None:
        """Zeros again, where anything was written."""
        self.view(self._widest)[:] = 0
        self._widest = self.extent

    def follow(self, needed: int, keep: int) -> bool:
        """``resize`` to the extent ``needed`` where it is due, and say whether it was: upwards at once, downwards with
        a step's delay, so that passes of changing width do not move the cache to and fro."""
        if self.extent - EXTENT_STEP <= needed <= self.extent:
            return False
        self.resize(needed, keep)
        return True

    def move(self, sources: Sequence[int], start: int) -> None:
        """Copy slots ``sources`` to slots start, start + 1, … in every layer (commit of a tree branch)."""
        view = self.view()
        view[:, :, start : start + len(sources)] = view[:, :, list(sources)]
