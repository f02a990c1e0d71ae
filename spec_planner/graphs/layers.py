"""The layers of Llama-like networks as operators that ONNX Runtime's CPU kernels run well; OpenVINO reads the same.

n rows of one pass, S cached slots it looks at, h query and g key/value heads of e numbers. Weight-only quantisation is
ONNX Runtime's MatMulNBits and GatherBlockQuantized; which weights are quantised is seen in the weights file. An engine
with other kernels overrides the methods that name them (``engine_trt/graph_layers.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from .block_quant import BLOCK
from .builder import CONTRIB, GraphBuilder

_LANES = 16  # columns of ones: a product with a single column would be a dot product, summed in lanes again


@dataclass(frozen=True)
class Heads:
    """Sizes of one attention layer."""

    count: int  # h
    kv_count: int  # g
    size: int  # e
    epsilon: float = 1e-6  # of the norms over single heads, where there are any

    @property
    def columns(self) -> tuple[int, int, int]:
        """Of queries, keys and values in a row of the joint projection."""
        return self.count * self.size, self.kv_count * self.size, self.kv_count * self.size


@dataclass(frozen=True)
class PassValues:
    """What every attention layer of a pass reads; names of values.

    Attributes:
        start: int64 [1]; row i's keys and values go to slot start + i.
        places: int64 [1, n], the rows' positions.
        bias: [h / g · n, S], 0 where a row may look and −∞ elsewhere, in the row order of folded queries.
        ones: [S, lanes].
    """

    start: str
    places: str
    bias: str
    ones: str


class GraphLayers(GraphBuilder):
    """See the module. Rows are [n, width]."""

    def pass_values(self, group: int, asking: str = "n") -> PassValues:
        """Inputs ``positions`` int64 [n], ``start`` int64 [1] and ``mask`` bool [n, S], made ready once for all layers.

        ``group``: query heads per key/value head; ``asking``: number of the rows that look, if it is not n.
        """
        positions, start = self.input("positions", TensorProto.INT64, "n"), self.input("start", TensorProto.INT64, 1)
        mask = self.input("mask", TensorProto.BOOL, asking, "S")
        bias = self._bias(mask, group)
        slots = self.add("Shape", mask, start=1)
        ones = self.add("Expand", self.constant(1.0), self.add("Concat", slots, self.constant([_LANES]), axis=0))
        return PassValues(start, self.add("Unsqueeze", positions, self.constant([0])), bias, ones)

    def masked(self, values: PassValues, name: str, group: int) -> PassValues:
        """``values`` for layers that see something else: input ``name`` bool [n, S]."""
        return replace(values, bias=self._bias(self.input(name, TensorProto.BOOL, "n", "S"), group))

    def stored_values(self) -> PassValues:
        """Inputs ``positions`` and ``start`` alone, of a pass whose rows are stored and do not look."""
        positions, start = self.input("positions", TensorProto.INT64, "n"), self.input("start", TensorProto.INT64, 1)
        return PassValues(start, self.add("Unsqueeze", positions, self.constant([0])), "", "")

    def attention(self, x: str, name: str, columns: int, heads: Heads, values: PassValues, out_columns: int) -> str:
        """x [n, columns] → [n, out_columns]. Weights ``name.qkv`` (q|k|v in one matrix), ``.out``, biases, head norms.

        The new keys and values become part of the cache ``past.name.key`` and ``.value``.
        """
        query, key, value = self.split(self.linear(x, f"{name}.qkv", sum(heads.columns), columns), *heads.columns)
        query = self.queries(query, name, heads, values)
        keys, cached_values = self.store(key, value, name, heads, values)
        return self.look(query, keys, cached_values, name, heads, values, out_columns)

    def queries(self, query: str, name: str, heads: Heads, values: PassValues) -> str:
        """[n, h · e] → turned heads [1, h, n, e]."""
        return self._heads(query, heads.count, f"{name}.q_norm", heads, values)

    def store(self, key: str, value: str, name: str, heads: Heads, values: PassValues) -> tuple[str, str]:
        """Projected keys and values, each [n, g · e], into the cache; all that the pass sees, each [1, g, S, e]."""
        g, e = heads.kv_count, heads.size
        key = self._heads(key, g, f"{name}.k_norm", heads, values)
        value = self.add("Transpose", self.reshape(value, 1, -1, g, e), perm=[0, 2, 1, 3])
        return self.cached(f"{name}.key", key, heads, values), self.cached(f"{name}.value", value, heads, values)

    def look(self, query: str, keys: str, cached_values: str, name: str, heads: Heads, values: PassValues,
             out_columns: int) -> str:  # fmt: skip
        """Turned queries [1, h, n, e] over keys and values [1, g, S, e], and the last projection: [n, out_columns]."""
        h, e = heads.count, heads.size
        mixed = self.mix(query, keys, cached_values, heads, values)
        mixed = self.add("Transpose", self.reshape(mixed, h, -1, e), perm=[1, 0, 2])
        return self.linear(self.reshape(mixed, -1, h * e), f"{name}.out", out_columns, h * e)

    def mix(self, query: str, keys: str, cached_values: str, heads: Heads, values: PassValues) -> str:
        """Turned queries [1, h, n, e] over keys and values [1, g, S, e] → [1, g, h / g · n, e]."""
        # Query head j·group + r reads key head j: [1, h, n, e] is [1, g, group · n, e] as it lies.
        query = self.reshape(query, 1, heads.kv_count, -1, heads.size)
        folded = self.add("Mul", query, self.constant(heads.size**-0.5))
        scores = self.add("MatMul", folded, self.add("Transpose", keys, perm=[0, 1, 3, 2]))
        return self.attend(scores, cached_values, values)

    def attend(self, scores: str, cached_values: str, values: PassValues) -> str:
        """Softmax of ``scores`` [1, g, m, S] plus bias, times ``cached_values`` [1, g, S, e].

        Written out, with the sum as a matrix product, because a Softmax kernel sums slots in the lanes of a vector: the
        order then depends on where a token stands, which is another slot in a tree than once committed. A matrix
        product goes from slot to slot, and the masked ones in between add exact zeros. Same speed, and a tree's logits
        agree in bits too, but where a tree straddles two of the product's blocks of 256 slots.
        """
        scores = self.add("Add", scores, values.bias)
        largest = self.add("ReduceMax", scores, self.constant([-1]), keepdims=1)
        weights = self.add("Exp", self.add("Sub", scores, largest))
        total = self.add("Gather", self.add("MatMul", weights, values.ones), self.constant([0]), axis=-1)
        return self.add("Div", self.add("MatMul", weights, cached_values), total)

    def cached(self, name: str, new: str, heads: Heads, values: PassValues) -> str:
        """``new`` [1, g, n, e] put into the cache at ``start``; the whole of what the pass sees, [1, g, S, e]."""
        shape = (1, heads.kv_count, "S", heads.size)
        past = self.input(f"past.{name}", self.kind, *shape)
        present = self.add("TensorScatter", past, new, values.start, axis=-2)
        return self.output(present, f"present.{name}", *shape)

    def rotate(self, x: str, values: PassValues) -> str:
        """Heads [1, count, n, e] turned by their positions; weights ``rope.cos``, ``rope.sin`` [positions, e / 2]."""
        return self.add("RotaryEmbedding", x, self.weight("rope.cos"), self.weight("rope.sin"), values.places)

    def embed(self, ids: str, vocabulary_size: int, size: int) -> str:
        """Rows of ``embedding`` [V, d]."""
        if "embedding" in self.table:
            return self.add("Gather", self.weight("embedding"), ids, axis=0)
        codes = self.weight("embedding.codes", (vocabulary_size, size), "embedding.rows")  # the head's bytes, as rows
        return self.add(
            "GatherBlockQuantized", codes, ids, self.weight("embedding.scales"), domain=CONTRIB,
            bits=8, block_size=BLOCK, gather_axis=0, quantize_axis=1,
        )  # fmt: skip

    def linear(self, x: str, name: str, rows: int, columns: int) -> str:
        """x [n, columns] times the transpose of weight ``name`` [rows, columns], and its bias if it has one."""
        bias = self.weight(f"{name}.bias") if f"{name}.bias" in self.table else ""
        if name in self.table:
            return self.add("Gemm", x, self.weight(name), *filter(None, [bias]), transB=1)
        four = f"{name}.zero_points" in self.table
        inputs = [x, self.weight(f"{name}.codes"), self.weight(f"{name}.scales")]
        inputs += [self.weight(f"{name}.zero_points") if four else "", "", bias]  # the empty one: no reordering
        while not inputs[-1]:
            inputs.pop()
        return self.add(
            "MatMulNBits", *inputs, domain=CONTRIB,
            N=rows, K=columns, bits=4 if four else 8, block_size=BLOCK, accuracy_level=4,
        )  # fmt: skip

    def linear_lent(self, x: str, name: str, rows: int, columns: int) -> str:
        """As ``linear``, with weights that whoever runs the graph lends: input ``name`` [rows, columns]."""
        return self.add("Gemm", x, self.input(name, self.kind, rows, columns), transB=1)

    def norm(self, x: str, name: str, epsilon: float) -> str:
        return self.add("RMSNormalization", x, self.weight(name), axis=-1, epsilon=epsilon)

    def indices(self, name: str, count: int | str) -> str:
        """Input ``name`` int64 [count]: rows to take, to be given to ``take``."""
        return self.input(name, TensorProto.INT64, count)

    def take(self, x: str, indices: str, axis: int = 0) -> str:
        return self.add("Gather", x, indices, axis=axis)

    def concat(self, *xs: str) -> str:
        """Side by side: along the last axis."""
        return self.add("Concat", *xs, axis=-1)

    def silu(self, x: str) -> str:
        return self.add("Mul", x, self.add("Sigmoid", x))

    def swiglu(self, x: str, name: str, size: int, inner: int) -> str:
        """x [n, size] → [n, size]; weights ``name.gate_up`` (gate|up in one matrix) and ``name.down``."""
        gate, up = self.split(self.linear(x, f"{name}.gate_up", 2 * inner, size), inner, inner)
        return self.linear(self.add("Mul", self.silu(gate), up), f"{name}.down", size, inner)

    def _bias(self, mask: str, group: int) -> str:
        hidden_slots = self.add("Where", mask, self.constant(0.0), self.constant(-np.inf))
        return self.add("Concat", *[hidden_slots] * group, axis=0)

    def _heads(self, x: str, count: int, norm: str, heads: Heads, values: PassValues) -> str:
        """[n, count · e] → turned heads [1, count, n, e], normalised first where there is a norm."""
        x = self.reshape(x, 1, -1, count, heads.size)
        if norm in self.table:
            x = self.norm(x, norm, heads.epsilon)
        return self.rotate(self.add("Transpose", x, perm=[0, 2, 1, 3]), values)
