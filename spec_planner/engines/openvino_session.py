"""One OpenVINO infer request over an exported decoder, with its KV cache: buffers made once, bound by address.

OpenVINO reads the very file that ONNX Runtime runs; ``_SlotWriter`` teaches it the one operator it does not know. It
never writes into an input, so a pass works on OpenVINO's own copy of the slots it looks at, and hands out the new rows
only. Ours stays as it is until ``keep``.

    past [g, S, e] ─ copied ─▶ rows written in ─▶ attention        S a multiple of 512: it changes rarely, and a new
    new rows [g, n, e] ──────────┴─▶ output, put into our cache    shape costs OpenVINO time
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
import openvino.opset15 as operators
from openvino.frontend import NodeContext
from openvino.frontend.onnx import ConversionExtension

from .decoder_config import unloadable
from .exported_target import ExportedSession
from .host_output import HostOutput
from .onnx_graphs import GraphDirectory
from .pass_inputs import PassInputs
from .passes import PassRows

# Activations of weights in 8 bits are rounded to 8 bits in groups of this many, as MatMulNBits of level 4 does.
_ACTIVATION_GROUP = 32


class OpenVinoSession(ExportedSession):
    """A ``Session`` (see ``session_target.py``)."""

    library = "openvino"

    def __init__(self, graphs: GraphDirectory, num_layers: int, capacity: int, precision: str, threads: int) -> None:
        """Raises ``ModelError`` when OpenVINO will not load the graph."""
        super().__init__(graphs, num_layers, capacity, ov.__version__)
        path = graphs.graph(num_layers)
        try:
            core = ov.Core()
            core.add_extension(ConversionExtension("TensorScatter", _SlotWriter()))
            model = _with_new_rows_only(core.read_model(path), num_layers)
            self._compiled = core.compile_model(model, "CPU", _properties(precision, threads))
        except RuntimeError as error:
            raise unloadable("OpenVINO", path, error) from error
        self._request = self._compiled.create_infer_request()
        self._bound: tuple[int, int, int] | None = None  # rows, scored rows, extent of the arrays the request has

    def make_room(self, needed: int, keep: int) -> int:
        """See ``session_target.Session``. The extent depends on the pass only, not on those before it."""
        if needed != self.cache.extent:
            self.cache.resize(needed, keep)
        return needed

    def run(self, rows: PassRows, scored: Sequence[int], hidden_layers: Sequence[int], wanted: int) -> HostOutput:
        """See ``session_target.Session``."""
        shape = (len(rows.ids), len(scored), self.cache.extent)
        if shape != self._bound:
            self._bind(*shape)
        self._inputs.write(rows, scored)
        logits = np.empty((len(scored), self._graphs.config.vocabulary_size), dtype=np.float32)
        self._request.set_output_tensor(0, ov.Tensor(logits, shared_memory=True))
        self._request.infer()
        first = 1 + 2 * self._num_layers
        hidden = [self._request.get_output_tensor(first + layer).data.copy() for layer in hidden_layers]
        return HostOutput(logits[:wanted], hidden)

    def keep(self, start: int, path: Sequence[int]) -> None:
        """See ``session_target.Session``."""
        self.cache.view()[:, :, start : start + len(path)] = self._new_rows[:, :, list(path)]

    def _bind(self, width: int, scored: int, extent: int) -> None:
        """Make the arrays of passes of one shape, and give them to the request."""
        self._inputs = PassInputs(width, scored, extent)
        for name, array in self._inputs.arrays.items():
            self._request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        past = self.cache.view()
        self._new_rows = np.empty((*past.shape[:2], width, past.shape[3]), dtype=np.float32)
        for index in range(2 * self._num_layers):
            name = f"past.{index // 2}.{('key', 'value')[index % 2]}"
            self._request.set_tensor(name, ov.Tensor(past[index][None], shared_memory=True))
            self._request.set_output_tensor(1 + index, ov.Tensor(self._new_rows[index][None], shared_memory=True))
        self._bound = (width, scored, extent)


class _SlotWriter:
    """TensorScatter in operators of OpenVINO, for nodes that all write as many rows to the same place."""

    def __init__(self) -> None:
        self._slots: ov.Node | None = None  # int64 [n]: start, start + 1, …

    def __call__(self, node: NodeContext) -> list[ov.Output]:
        past, new, start = (node.get_input(index) for index in range(3))
        if self._slots is None:
            count = operators.gather(operators.shape_of(new), _integer(2), _integer(0))
            offsets = operators.range(_integer(0), count, _integer(1), "i64")
            self._slots = operators.add(offsets, start)
        return operators.scatter_update(past, self._slots, new, _integer(2)).outputs()


def _integer(value: int) -> ov.Node:
    return operators.constant(np.int64(value))


def _with_new_rows_only(model: ov.Model, num_layers: int) -> ov.Model:
    """The same model with outputs logits, the new rows of each layer's key and value, and the hidden states."""

    def source(name: str) -> ov.Output:
        return model.output(name).get_node().input_value(0)

    names = [f"present.{layer}.{kind}" for layer in range(num_layers) for kind in ("key", "value")]
    new_rows = [source(name).get_node().input_value(2) for name in names]  # what ScatterUpdate writes
    hidden = [source(f"hidden.{layer}") for layer in range(num_layers + 1)]
    outputs = [source("logits"), *new_rows, *hidden]
    return ov.Model([operators.result(output) for output in outputs], model.get_parameters(), "decoder")


def _properties(precision: str, threads: int) -> dict[str, object]:
    """Said out loud, because on a processor with bfloat16 OpenVINO takes it unasked."""
    return {
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _ACTIVATION_GROUP if precision == "int8" else 0,
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,  # 0: as many as there are cores
        "ENABLE_CPU_PINNING": False,  # a robot's other processes have a right to every core
    }
