"""One ONNX Runtime session over an exported decoder, with its KV cache: buffers made once, bound by address.

What is copied per pass: nothing of the cache. ``past`` and ``present`` are one buffer, into which TensorScatter writes
the new rows only. When the extent grows (every 64 tokens) the cache is laid out anew (``host_cache.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import onnxruntime

from .decoder_config import EngineUnavailable, unloadable
from .exported_target import ExportedSession
from .host_cache import HostCache
from .host_output import HostOutput
from .onnx_graphs import GraphDirectory
from .pass_inputs import PassInputs
from .passes import PassRows
from .session_target import first_moved

_OLDEST = (1, 31)  # the first onnxruntime whose CPU kernels cover opset 24 as exported here


def check_version(what: str) -> None:
    """Raise ``EngineUnavailable`` when onnxruntime is too old for ``what``, as exported here."""
    if tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) < _OLDEST:
        raise EngineUnavailable(
            f"{what} needs onnxruntime {'.'.join(map(str, _OLDEST))} or newer and found {onnxruntime.__version__}: "
            f"pip install --upgrade onnxruntime"
        )


def open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """A session over the graph in ``path`` on the CPU; ``threads`` 0: one per core.

    Raises:
        ModelError: ONNX Runtime will not load it.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # A worker that waits sleeps: spinning would hold the core from the robot's other processes.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.use_deterministic_compute = True
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class of their own
        raise unloadable("ONNX Runtime", path, error) from error


def bind_cache(binding: onnxruntime.IOBinding, cache: HostCache, layers: Iterable[str]) -> list[onnxruntime.OrtValue]:
    """Bind ``past`` and ``present`` of ``layers`` to one buffer, ``cache`` as it is laid out.

    Returns: the values bound, to be kept as long as they are.
    """
    kept, view = [], cache.view()
    for index, layer in enumerate(layers):
        for part, kind in enumerate(("key", "value")):
            value = onnxruntime.OrtValue.ortvalue_from_numpy(view[2 * index + part][None])
            binding.bind_ortvalue_input(f"past.{layer}.{kind}", value)
            binding.bind_ortvalue_output(f"present.{layer}.{kind}", value)
            kept.append(value)
    return kept


class OnnxSession(ExportedSession):
    """A ``Session`` (see ``session_target.py``)."""

    library = "onnxruntime"

    def __init__(self, graphs: GraphDirectory, num_layers: int, capacity: int, threads: int) -> None:
        """Raises ``ModelError`` when ONNX Runtime will not load the graph."""
        super().__init__(graphs, num_layers, capacity, onnxruntime.__version__)
        self._session = open_session(graphs.graph(num_layers), threads)
        # By (rows, scored rows, tapped layers), for the current extent.
        self._bindings: dict[tuple[int, int, tuple[int, ...]], _Binding] = {}

    def run(self, rows: PassRows, scored: Sequence[int], hidden_layers: Sequence[int], wanted: int) -> HostOutput:
        """See ``session_target.Session``. The results lie in ONNX Runtime's own memory, which they keep alive."""
        # An output once bound stays bound, so a binding serves one choice of tapped layers only.
        key = (len(rows.ids), len(scored), tuple(hidden_layers))
        if key not in self._bindings:
            self._bindings[key] = _Binding(self._session, self.cache, self._num_layers, *key)
        logits, *hidden = [value.numpy() for value in self._bindings[key].run(rows, scored)]
        return HostOutput(logits[:wanted], hidden)

    def make_room(self, needed: int, keep: int) -> int:
        """See ``session_target.Session``."""
        if self.cache.follow(needed, keep):
            self._bindings.clear()
        return self.cache.extent

    def keep(self, start: int, path: Sequence[int]) -> None:
        """See ``session_target.Session``. Row i's keys are in slot start + i already, where most belong."""
        moved = first_moved(path)
        if moved < len(path):
            self.cache.move([start + row for row in path[moved:]], start + moved)


class _Binding:
    """Inputs and outputs of passes of one shape, bound once: per pass only numbers are written into them."""

    def __init__(self, session: onnxruntime.InferenceSession, cache: HostCache, num_layers: int,
                 width: int, scored: int, hidden_layers: tuple[int, ...]) -> None:  # fmt: skip
        self._hidden_layers = hidden_layers
        self._session, self._binding = session, session.io_binding()
        self._inputs = PassInputs(width, scored, cache.extent)
        for name, array in self._inputs.arrays.items():
            self._binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        self._kept = bind_cache(self._binding, cache, map(str, range(num_layers)))

    def run(self, rows: PassRows, scored: Sequence[int]) -> list[onnxruntime.OrtValue]:
        self._inputs.write(rows, scored)
        self._binding.bind_output("logits")  # anew each time, or the last pass's results would be written over
        distinct = list(dict.fromkeys(self._hidden_layers))
        for layer in distinct:
            self._binding.bind_output(f"hidden.{layer}")
        self._session.run_with_iobinding(self._binding)
        outputs = self._binding.get_outputs()
        logits, *states = outputs[-1 - len(distinct) :]
        return [logits, *(states[distinct.index(layer)] for layer in self._hidden_layers)]
