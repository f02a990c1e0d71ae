"""A drafter's engines, one per step of its network, on a GPU. They have **never run on a GPU**: see ``trt_session.py``.

What the target lends is bound, not copied: ``head`` of every step has the address of the target's own buffer. Inputs
come from main memory and results go there, which on a Jetson is the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spec_planner.decoding.contracts import Incompatible
from spec_planner.engines.passes import EXTENT_STEP

from .bindings import Manifest, Network, Tensor
from .trt_buffers import Buffers, TrtCache
from .trt_engine import TrtEngine
from .trt_module import TensorRt

Arrays = dict[str, NDArray[Any]]
Bound = dict[str, tuple[Buffers, Any]]  # a step's buffers, and the context that has their addresses


class DraftCache(TrtCache):
    """A ``SlotCache`` (see ``drafters/graphs/net_graphs.py``)."""

    def __init__(self, layers: Sequence[str], like: Tensor, device: torch.device) -> None:
        super().__init__(layers, like, device)
        self.length = 0
        self.bound: Bound = {}  # lives as long as the cache does

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes

    def make_room(self, count: int) -> int:
        """Raises ``Incompatible`` where the cache was exported for shorter contexts."""
        capacity = self.rows.shape[2]
        if self.length + count > capacity:
            raise Incompatible(f"the drafter's engine holds {capacity} rows: export it with a longer --context-length")
        return min(-(-(self.length + count) // EXTENT_STEP) * EXTENT_STEP, capacity)

    def advance(self, count: int) -> None:
        self.length += count

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)


class TrtRunner:
    """A ``Runner`` (see ``drafters/graphs/net_graphs.py``).

    Args:
        directory: what ``spec-planner build`` wrote of the drafter.
        lend: gives the target's weights by name, on the device and in the engine's type.
    """

    engine = "tensorrt"

    def __init__(self, trt: TensorRt, directory: Path, manifest: Manifest, lend: Callable[[str], torch.Tensor],
                 device: torch.device) -> None:  # fmt: skip
        """Raises ``ModelError`` when a plan cannot be opened, or is not what the manifest says."""
        self._manifest, self._device = manifest, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._lent = {name: lend(name) for name in manifest.lent}
        self._engines = {
            name: TrtEngine(trt, directory / f"{name}.plan", network, device, self._stream)
            for name, network in manifest.networks.items()
        }
        self._bound: Bound = {}  # of steps that have no cache

    @property
    def precision(self) -> str:
        return self._manifest.precision

    @property
    def num_bytes(self) -> int:
        return self._manifest.weight_bytes

    def new_cache(self, layers: Sequence[str], num_kv_heads: int, head_dim: int) -> DraftCache:
        """Of the capacity that the engines were exported with; ``make_room`` says when that is too little."""
        inputs = (tensor for network in self._manifest.networks.values() for tensor in network.cache)
        like = next(tensor for tensor in inputs if tensor.name == f"past.{layers[0]}.key")
        return DraftCache(layers, like, self._device)

    @torch.inference_mode()
    def run(self, step: str, inputs: Mapping[str, NDArray[Any]], wanted: Sequence[str],
            cache: DraftCache | None = None) -> list[NDArray[np.float32]]:  # fmt: skip
        """See ``Runner``. More rows than a pass takes are read in parts."""
        network = self._engines[step].network
        parts = [self._part(step, part, wanted, cache) for part in _parts(network, inputs)]
        return [np.concatenate(each) for each in zip(*parts, strict=True)]

    def _part(self, step: str, inputs: Arrays, wanted: Sequence[str], cache: DraftCache | None) -> list[NDArray]:
        engine = self._engines[step]
        buffers, context = self._binding(step, cache)
        asked = len(inputs.get("rows", (0,)))
        if not asked:  # an engine scores one row at least
            inputs = {**inputs, "rows": np.zeros(1, dtype=np.int64)}
        if "slots" in buffers:
            inputs = {**inputs, "slots": inputs["start"][0] + np.arange(len(inputs["positions"]))}
        sizes = _sizes(engine.network, inputs)
        with torch.cuda.stream(self._stream):
            for name, array in inputs.items():
                if name in buffers:
                    buffers.view(name, sizes).copy_(torch.from_numpy(np.ascontiguousarray(array)))
            engine.set_sizes(context, sizes)
            engine.execute(context)
            buffers.store_new_rows(sizes)
            shapes = {tensor.name: tensor.shape for tensor in engine.network.outputs}
            results = [buffers.view(name, sizes).to("cpu", copy=True).numpy() for name in wanted]
        return [
            result[:asked] if shapes[name][0] == "r" else result for name, result in zip(wanted, results, strict=True)
        ]

    def _binding(self, step: str, cache: DraftCache | None) -> tuple[Buffers, Any]:
        bound = self._bound if cache is None else cache.bound
        if step not in bound:
            engine = self._engines[step]
            buffers = Buffers(engine.network, cache, self._lent, self._device)
            bound[step] = buffers, engine.new_context(0, buffers)
        return bound[step]


def _sizes(network: Network, inputs: Arrays) -> dict[str, int]:
    """The letters' sizes, from arrays."""
    sizes: dict[str, int] = {}
    for tensor in network.inputs:
        for letter, extent in zip(tensor.shape, inputs[tensor.name].shape if tensor.name in inputs else ()):  # noqa: B905
            if isinstance(letter, str):
                sizes[letter] = extent
    return sizes


def _parts(network: Network, inputs: Mapping[str, NDArray[Any]]) -> Iterator[Arrays]:
    """``inputs`` cut into passes of as many rows as the profile takes, rows to score with those that they are.

    Raises:
        Incompatible: rows are to be scored in another order than they are read in, or the step looks from one row only.
    """
    leading = {tensor.name: tensor.shape[0] for tensor in network.inputs if tensor.name in inputs and tensor.shape}
    count = max((len(inputs[name]) for name, letter in leading.items() if letter == "n"), default=1)
    most = network.profiles[0]["n"][2] if "n" in network.profiles[0] else count
    if count <= most:
        yield dict(inputs)
        return
    rows = inputs.get("rows", np.zeros(0, dtype=np.int64))
    if "asked" in inputs or (np.diff(rows) < 0).any():
        raise Incompatible(f"a pass of {count} rows is read in parts of {most}, and this one cannot be: draft less")
    for first in range(0, count, most):
        part = {
            name: array[first : first + most] if leading.get(name) == "n" else array for name, array in inputs.items()
        }
        part["rows"] = rows[(rows >= first) & (rows < first + most)] - first
        if "start" in part:
            part["start"] = part["start"] + first
        yield {name: array for name, array in part.items() if name in inputs}
