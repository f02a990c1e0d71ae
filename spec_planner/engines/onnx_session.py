"""One ONNX Runtime session over an exported decoder, with its KV cache: buffers made once, bound by address.

What is copied per pass: nothing of the cache. ``past`` and ``present`` are one buffer, into which TensorScatter writes
the new rows only. The graph wants [g, S, e] without gaps for whatever S the pass looks at, so when S grows (every 64
tokens) the cache is laid out anew, which copies the committed part of it once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from .decoder_config import DecoderConfig, ModelError
from .onnx_graphs import GraphDirectory
from .passes import EXTENT_STEP, PassRows


class OnnxCache:
    """Keys and values of every layer, float32, laid out [2 · layers, g, S, e] for the current extent S."""

    def __init__(self, config: DecoderConfig, num_layers: int, capacity: int) -> None:
        self._shape = (config.num_kv_heads, config.head_dim)
        # Zeros, not empty: a masked slot still enters the matrix product, and NaN × 0 is NaN.
        self._buffers = np.zeros((2 * num_layers, config.num_kv_heads * capacity * config.head_dim), dtype=np.float32)
        self.extent = EXTENT_STEP

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
        old, new = self.view(), self.view(extent)
        heads = range(self._shape[0])
        for head in reversed(heads) if extent > self.extent else heads:
            new[:, head, :keep] = old[:, head, :keep]
        self.extent = extent

    def move(self, sources: Sequence[int], start: int) -> None:
        """Copy slots ``sources`` to slots start, start + 1, … in every layer (commit of a tree branch)."""
        view = self.view()
        view[:, :, start : start + len(sources)] = view[:, :, list(sources)]


class OnnxSession:
    """Runs passes of any number of rows."""

    def __init__(self, graphs: GraphDirectory, num_layers: int, capacity: int, threads: int) -> None:
        """Raises ``ModelError`` when ONNX Runtime will not load the graph."""
        self._num_layers = num_layers
        path = graphs.graph(num_layers)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads  # 0: one per core
        options.inter_op_num_threads = 1
        # A worker that waits sleeps: spinning would hold the core from the robot's other processes.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.use_deterministic_compute = True
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no common class of their own
            reason = str(error).strip().splitlines()[0]
            raise ModelError(
                f"ONNX Runtime cannot load {path} ({reason}): delete {path.parent}, and it will be exported again"
            ) from error
        self.cache = OnnxCache(graphs.config, num_layers, capacity)
        # By (rows, scored rows, tapped layers), for the current extent.
        self._bindings: dict[tuple[int, int, tuple[int, ...]], _Binding] = {}

    def run(self, rows: PassRows, scored: Sequence[int], hidden_layers: Sequence[int]) -> list[onnxruntime.OrtValue]:
        """One pass; [logits [len(scored), V], hidden states [n, d] of each of ``hidden_layers``].

        The results are their own memory: they stay as they are through later passes.
        """
        # An output once bound stays bound, so a binding serves one choice of tapped layers only.
        key = (len(rows.ids), len(scored), tuple(hidden_layers))
        if key not in self._bindings:
            self._bindings[key] = _Binding(self._session, self.cache, self._num_layers, *key)
        return self._bindings[key].run(rows, scored)

    def make_room(self, needed: int, keep: int) -> int:
        """The extent of a pass that needs ``needed`` slots, the cache and its first ``keep`` slots laid out for it.

        It follows the context upwards at once and downwards with a step's delay, so that passes of changing width do
        not move the cache to and fro.
        """
        if needed > self.cache.extent or needed < self.cache.extent - EXTENT_STEP:
            self.cache.resize(needed, keep)
            self._bindings.clear()
        return self.cache.extent


class _Binding:
    """Inputs and outputs of passes of one shape, bound once: per pass only numbers are written into them."""

    def __init__(self, session: onnxruntime.InferenceSession, cache: OnnxCache, num_layers: int,
                 width: int, scored: int, hidden_layers: tuple[int, ...]) -> None:  # fmt: skip
        self._hidden_layers = hidden_layers
        self._session, self._binding = session, session.io_binding()
        self._inputs = {
            "ids": np.zeros(width, dtype=np.int64),
            "positions": np.zeros(width, dtype=np.int64),
            "start": np.zeros(1, dtype=np.int64),
            "mask": np.zeros((width, cache.extent), dtype=np.bool_),
            "rows": np.zeros(scored, dtype=np.int64),
        }
        for name, array in self._inputs.items():
            self._binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        view = cache.view()
        self._kept = []  # the values that stand for parts of the cache
        for layer in range(num_layers):
            for part, kind in enumerate(("key", "value")):
                value = onnxruntime.OrtValue.ortvalue_from_numpy(view[2 * layer + part][None])
                self._binding.bind_ortvalue_input(f"past.{layer}.{kind}", value)
                self._binding.bind_ortvalue_output(f"present.{layer}.{kind}", value)
                self._kept.append(value)

    def run(self, rows: PassRows, scored: Sequence[int]) -> list[onnxruntime.OrtValue]:
        self._inputs["ids"][:] = rows.ids
        self._inputs["positions"][:] = rows.positions
        self._inputs["start"][0] = rows.start
        self._inputs["mask"][:] = rows.mask
        self._inputs["rows"][:] = scored
        self._binding.bind_output("logits")  # anew each time, or the last pass's results would be written over
        distinct = list(dict.fromkeys(self._hidden_layers))
        for layer in distinct:
            self._binding.bind_output(f"hidden.{layer}")
        self._session.run_with_iobinding(self._binding)
        outputs = self._binding.get_outputs()
        logits, *states = outputs[-1 - len(distinct) :]
        return [logits, *(states[distinct.index(layer)] for layer in self._hidden_layers)]
