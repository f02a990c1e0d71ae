"""The graphs of a draft network on ONNX Runtime: small passes, of a few rows, many of them a second.

Inputs are copied into arrays that stay bound, one set per shape. ``past`` and ``present`` are one buffer
(``host_cache.py``): new rows are written in place, nothing else of it moves. What the target lends is bound where it
lies. Outputs are ONNX Runtime's memory, handed out as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ..graphs.weights import DamagedGraph, WeightFile
from .cache import cache_directory, make_once
from .decoder_config import ModelError
from .host_cache import HostCache
from .onnx_session import bind_cache, check_version, open_session
from .passes import EXTENT_STEP

_MOST_BINDINGS = 64  # of the shapes that prompts come in there are many
_FIRST_SLOTS = 512  # of a cache
# Bytes, a head that the target lends included, below which a network runs on one thread. Those measured have 3 to 20
# MB and reduced heads: on two threads they drafted 0.72 to 1.01 times as fast as on one, once 1.14 times. What reads a
# whole head, 113 MB and more, was not measured.
_SMALL = 64 << 20
_Key = tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]


def open_runner(key: str, write: Callable[[Path], None], lent: Mapping[str, NDArray[np.float32]],
                threads: int) -> OnnxRunner:  # fmt: skip
    """The network called ``key``, written by ``write(directory)`` if it is not in the cache yet.

    Args:
        lent: inputs that are the same in every run, by name.
        threads: of networks that are not small; 0: one per core.

    Raises:
        ModelError: the cache cannot be written, a package is missing, ONNX Runtime is too old, or it will not load a
            graph.
    """
    check_version("a draft network's graph")

    def make(scratch: Path) -> None:
        try:
            write(scratch)
        except ImportError as error:
            raise ModelError(f"exporting a draft network needs the package {error.name}: pip install it") from error

    directory = make_once(cache_directory() / "drafters" / key, make, "the draft network's graph")
    return OnnxRunner(directory, lent, threads)


@dataclass(frozen=True)
class _Heads:
    num_kv_heads: int
    head_dim: int


class RowCache:
    """Keys and values of ``layers``, and how many of their rows count; grows by doubling.

    Attributes:
        bindings: of passes over ``slots`` as they are laid out; none outlives that.
    """

    def __init__(self, layers: Sequence[str], num_kv_heads: int, head_dim: int) -> None:
        self.layers, self.length = tuple(layers), 0
        self._sizes, self._capacity = _Heads(num_kv_heads, head_dim), _FIRST_SLOTS
        self.slots = HostCache(self._sizes, len(layers), self._capacity)
        self.bindings: dict[_Key, _Binding] = {}

    @property
    def num_bytes(self) -> int:
        """Of the slots in view; the rest of the buffer is not touched yet, and takes no memory."""
        return self.slots.view().nbytes

    def make_room(self, count: int) -> int:
        """The slots S that a pass of ``count`` more rows looks at."""
        needed = -(-(self.length + count) // EXTENT_STEP) * EXTENT_STEP
        if needed > self._capacity:
            self._capacity, old = max(needed, 2 * self._capacity), self.slots
            self.slots = HostCache(self._sizes, len(self.layers), self._capacity)
            self.slots.resize(old.extent, keep=0)
            self.slots.view()[:] = old.view()
        if self.slots.follow(needed, self.length):
            self.bindings.clear()
        return self.slots.extent

    def advance(self, count: int) -> None:
        self.length += count

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)


class OnnxRunner:
    """The steps of one written network, each a session."""

    engine = "onnx"

    def __init__(self, directory: Path, lent: Mapping[str, NDArray[np.float32]], threads: int) -> None:
        weights, self._directory = WeightFile(directory), directory
        self.num_bytes, self.precision = weights.num_bytes, weights.precision
        read = self.num_bytes + sum(array.nbytes for array in lent.values())
        threads = 1 if read < _SMALL else threads
        self._sessions = {path.stem: open_session(path, threads) for path in directory.glob("*.onnx")}
        self._lent = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in lent.items()}
        self._arrays = dict(lent)  # which the values point into
        self._bindings: dict[_Key, _Binding] = {}  # of steps without a cache

    def new_cache(self, layers: Sequence[str], num_kv_heads: int, head_dim: int) -> RowCache:
        return RowCache(layers, num_kv_heads, head_dim)

    def _session(self, step: str) -> onnxruntime.InferenceSession:
        if step not in self._sessions:
            raise DamagedGraph(
                f"{self._directory} has no {step}.onnx: delete it, and the draft network will be exported again"
            )
        return self._sessions[step]

    def run(self, step: str, inputs: Mapping[str, NDArray], wanted: Sequence[str],
            cache: RowCache | None = None) -> list[NDArray[np.float32]]:  # fmt: skip
        """See ``drafters.graphs.net_graphs.Runner``."""
        bindings = self._bindings if cache is None else cache.bindings
        key = (step, tuple(array.shape for array in inputs.values()), tuple(wanted))
        binding = bindings.get(key)
        if binding is None:
            if len(bindings) >= _MOST_BINDINGS:
                bindings.clear()
            binding = bindings[key] = _Binding(self._session(step), inputs, self._lent, cache)
        return binding.run(inputs, wanted)


class _Binding:
    """Inputs of one shape, and a cache as it is laid out, bound once."""

    def __init__(self, session: onnxruntime.InferenceSession, inputs: Mapping[str, NDArray],
                 lent: Mapping[str, onnxruntime.OrtValue], cache: RowCache | None) -> None:  # fmt: skip
        self._session, self._binding = session, session.io_binding()
        self._inputs = {name: np.ascontiguousarray(array).copy() for name, array in inputs.items()}
        names = {each.name for each in session.get_inputs()}
        self._kept = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in self._inputs.values()]
        for name, value in [*zip(self._inputs, self._kept, strict=True), *lent.items()]:
            if name in names:
                self._binding.bind_ortvalue_input(name, value)
        if cache is not None:
            self._kept += bind_cache(self._binding, cache.slots, cache.layers)

    def run(self, inputs: Mapping[str, NDArray], wanted: Sequence[str]) -> list[NDArray[np.float32]]:
        for name, array in inputs.items():
            self._inputs[name][...] = array
        for name in wanted:
            self._binding.bind_output(name)  # anew each time, or the last pass's results would be written over
        self._session.run_with_iobinding(self._binding)
        outputs = self._binding.get_outputs()
        return [value.numpy() for value in outputs[len(outputs) - len(wanted) :]]
