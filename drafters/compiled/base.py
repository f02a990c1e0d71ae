"""From rows as drafters hold them to the inputs of a graph, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from spec_planner.decoding.contracts import TargetInfo

from ..graphs.net_graphs import AHEAD, Compile, NetGraphs, Runner, SlotCache

_STEP = 1024  # so that contexts of about the same length share what is written


@dataclass(frozen=True)
class Compiling:
    """How a drafter's network is compiled: by ``compiler``, for drafts that reach ``positions``."""

    compiler: Compile
    positions: int

    @staticmethod
    def of(compiler: Compile | None, info: TargetInfo) -> Compiling | None:
        """None without a compiler."""
        if compiler is None:
            return None
        return Compiling(compiler, reach(info.context_length + info.max_nodes))


def reach(rows: int) -> int:
    """Positions that rotary tables are written for: those of a context with its widest draft, ``rows``, and more."""
    return -(-(rows + AHEAD) // _STEP) * _STEP


class Compiled:
    """A network behind a ``Runner``."""

    def __init__(self, graphs: NetGraphs, compiling: Compiling) -> None:
        self._runner: Runner = compiling.compiler(graphs)
        self.place = torch.empty(0)

    @property
    def engine(self) -> str:
        return self._runner.engine

    @property
    def precision(self) -> str:
        return self._runner.precision

    @property
    def num_bytes(self) -> int:
        return self._runner.num_bytes


def row_inputs(positions: Sequence[int], mask: torch.Tensor | None, cache: SlotCache) -> dict[str, NDArray]:
    """Of a pass over the cache, its place and what it sees; ``mask`` bool [n, cache.length + n], None: all."""
    seen = np.zeros((len(positions), cache.make_room(len(positions))), dtype=np.bool_)
    end = cache.length + len(positions)
    seen[:, :end] = True if mask is None else mask.numpy()
    start = np.array([cache.length], dtype=np.int64)
    return {"positions": np.asarray(positions, dtype=np.int64), "start": start, "mask": seen}


def causal_inputs(position: int, count: int, cache: SlotCache) -> dict[str, NDArray]:
    """Of ``count`` rows that follow each other from ``position`` on, each of which sees the cache and those before."""
    inputs = row_inputs(range(position, position + count), None, cache)
    if count > 1:
        end = cache.length + count
        inputs["mask"][:, :end] = np.tri(count, end, cache.length, dtype=np.bool_)
    return inputs
