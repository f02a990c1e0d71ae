"""Nodes, initialisers, inputs and outputs of one ONNX graph, in the order in which they are computed.

The graph is written out in standard operators (opset 24), so that it is the same whatever torch's exporter does. Large
tensors stay in their file (``weights.py``); the graph only says where in it they lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import TensorProto, helper, numpy_helper

from .weights import WEIGHTS_FILE, Stored

CONTRIB = "com.microsoft"


class GraphBuilder:
    """Each method that adds an operator returns the name of its result.

    Args:
        table: the weights there are, by name.
        dtype: of constants, and of inputs and outputs that hold activations.
    """

    opset, ir_version = 24, 11

    def __init__(self, table: Mapping[str, Stored], dtype: DTypeLike = np.float32) -> None:
        self.table, self.dtype = table, np.dtype(dtype)
        self.kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        self._nodes: list[onnx.NodeProto] = []
        self._initialisers: dict[str, TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def model(self, name: str) -> onnx.ModelProto:
        """The finished graph, to be saved in the directory of its weights."""
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, list(self._initialisers.values()))
        opsets = [helper.make_opsetid("", self.opset)]
        if any(node.domain == CONTRIB for node in self._nodes):
            opsets.append(helper.make_opsetid(CONTRIB, 1))
        return helper.make_model(graph, opset_imports=opsets, ir_version=self.ir_version, producer_name="spec_planner")

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes) -> str:
        output = self.new_name(operator)
        self._nodes.append(helper.make_node(operator, inputs, [output], output, domain=domain, **attributes))
        return output

    def split(self, x: str, *sizes: int) -> list[str]:
        """Pieces of ``x`` along its last axis."""
        outputs = [self.new_name("Split") + f".{part}" for part in range(len(sizes))]
        self._nodes.append(helper.make_node("Split", [x, self.constant(list(sizes))], outputs, outputs[0], axis=-1))
        return outputs

    def reshape(self, x: str, *shape: int) -> str:
        return self.add("Reshape", x, self.constant(list(shape)))

    def new_name(self, operator: str) -> str:
        return f"{operator}.{len(self._nodes)}"

    def input(self, name: str, kind: int, *shape: int | str) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, value: str, name: str, *shape: int | str, kind: int | None = None) -> str:
        """Make ``value`` a graph output under ``name``, which is also what later nodes read."""
        for node in reversed(self._nodes):
            if value in node.output:
                node.output[list(node.output).index(value)] = name
                break
        self._outputs.append(helper.make_tensor_value_info(name, kind or self.kind, shape))
        return name

    def constant(self, value: float | Sequence[int]) -> str:
        """A number in the graph's own type, or a list of int64."""
        array = np.array(value, dtype=np.int64 if isinstance(value, Sequence) else self.dtype)
        name = f"constant.{value}"
        self._initialisers.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def weight(self, stored_name: str, shape: tuple[int, ...] | None = None, name: str | None = None) -> str:
        """A tensor of the weights file as an initialiser, perhaps seen in another shape under another name."""
        stored, name = self.table[stored_name], name or stored_name
        if name not in self._initialisers:
            kind = helper.np_dtype_to_tensor_dtype(stored.numpy_dtype)
            tensor = TensorProto(name=name, data_type=kind, dims=shape or stored.shape)
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": WEIGHTS_FILE, "offset": stored.offset, "length": stored.length}
            for key, content in place.items():
                tensor.external_data.add(key=key, value=str(content))
            self._initialisers[name] = tensor
        return name
