"""One draft network as graphs over one weights file, ready to be written for whichever engine runs it.

    torch network ──▶ NetGraphs ──▶ weights.bin, weights.json, one STEP.onnx per step ──▶ Runner ──▶ compiled network

A network that is asked in different ways has a step for each: fusing features is no part of drafting a row. Written is
the network as loaded, so it does not matter in which layout it was published.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..draft_net import Cache

if TYPE_CHECKING:
    from spec_planner.graphs.layers import GraphLayers
    from spec_planner.graphs.weights import WeightWriter

LAYOUT = 1  # raise when a graph or its weights change, so that those written before are left behind
AHEAD = 64  # positions that rotary tables reach beyond the context and the widest draft: a block's masks


class TorchOnly(ValueError):
    """A network that has no graph, or none that runs here; the message says what of it, or why."""


class Weight(NamedTuple):
    """A tensor by its name in the graph; a ``matrix`` [N, K] may be quantised."""

    name: str
    array: NDArray[np.float32]
    matrix: bool = False


@dataclass(frozen=True)
class NetGraphs:
    """What there is to write.

    Attributes:
        kind: as in ``checkpoint.KINDS``.
        form: sizes and switches; with the weights, all that the graphs depend on.
        weights: every tensor of the weights file, made one after another.
        steps: by name, what writes the step's graph into any ``GraphLayers``, an engine's dialect of it included.
        lent: inputs of the graphs that are the same in every run, by name: the target's own arrays, not copies.
    """

    kind: str
    form: Any
    weights: Callable[[], Iterator[Weight]]
    steps: Mapping[str, Callable[[GraphLayers], None]]
    lent: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def key(self, bits: int | None = None) -> str:
        """Names what is written: it changes when a weight does, a size, the precision, or the way it is written."""
        from spec_planner.graphs.weights import LAYOUT as COMMON

        digest = hashlib.sha256(json.dumps([self.kind, repr(self.form), bits, LAYOUT, COMMON]).encode())
        for name, array, _ in self.weights():
            digest.update(f"{name} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return f"{self.kind}-{'float32' if bits is None else f'int{bits}'}-{digest.hexdigest()[:16]}"

    def write(self, directory: Path, bits: int | None = None) -> None:
        """Fill ``directory`` for ONNX Runtime: the weights and the graph of every step.

        Args:
            bits: of matrices, 8 or 4; None for float32.
        """
        from spec_planner.graphs.layers import GraphLayers
        from spec_planner.graphs.weights import WEIGHTS_FILE, WeightFile, WeightWriter

        with (directory / WEIGHTS_FILE).open("wb") as file:
            writer = WeightWriter(directory, file)
            self.write_weights(writer, bits)
            writer.finish()
        table = WeightFile(directory).table
        for step, add in self.steps.items():
            graph = GraphLayers(table)
            add(graph)
            (directory / f"{step}.onnx").write_bytes(graph.model(f"{self.kind} {step}").SerializeToString())

    def write_weights(self, writer: WeightWriter, bits: int | None = None) -> None:
        """All tensors; a matrix whose rows do not fill whole blocks stays as it is."""
        from spec_planner.graphs.block_quant import BLOCK

        for name, array, matrix in self.weights():
            if matrix and array.shape[1] % BLOCK == 0:
                writer.add_matrix(name, array, bits)
            else:
                writer.add(name, array)


class SlotCache(Cache, Protocol):
    """A cache in the runner's memory."""

    def make_room(self, count: int) -> int:
        """Slots S that a pass of ``count`` more rows looks at, the cache laid out for as many."""

    def advance(self, count: int) -> None:
        """Keep ``count`` more rows."""


class Runner(Protocol):
    """Runs the steps of one written network.

    Attributes:
        engine: its name among the target's; ``precision``: of the matrices as written.
    """

    @property
    def engine(self) -> str: ...

    @property
    def precision(self) -> str: ...

    @property
    def num_bytes(self) -> int:
        """Of the weights file."""

    def new_cache(self, layers: Sequence[str], num_kv_heads: int, head_dim: int) -> SlotCache:
        """An empty cache for ``past.LAYER.key`` and ``.value``, and ``present.…`` likewise."""

    def run(
        self, step: str, inputs: Mapping[str, NDArray], wanted: Sequence[str], cache: SlotCache | None = None
    ) -> list[NDArray[np.float32]]:
        """The ``wanted`` outputs, each its own memory; new keys and values are written into ``cache`` in place.

        Args:
            inputs: by name, without the cache's and what was lent.
        """


Compile = Callable[[NetGraphs], Runner]  # writes what is not written yet, and opens it
