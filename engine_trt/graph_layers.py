"""The two ways in which a decoder is written for TensorRT. The layers themselves are those of ``spec_planner/graphs``.

    NativeLayers    TensorRT 10.15 or newer, TensorRT-RTX: opset 24; new keys and values are written into the cache
    ScatterLayers   TensorRT 10.3 and newer (JetPack 6, 7.0, 7.1): opset 20; they are written into a copy of the slots
                    that the pass looks at, and handed out; whoever runs it puts them into the cache

Networks are strongly typed: what a tensor is here, it is on the GPU. Values between layers, norms, rotation and softmax
are float32; matrix products and the cache are in the compute type; logits are float32 again:

    x f32 ─ Cast ─▶ Gemm(x, weights or DequantizeLinear(codes)) ─ Cast ─▶ f32 ─ bias, norm, SwiGLU, …

The cache always has its whole capacity C, [1, g, C, e]; a pass looks at its first S slots, S being the mask's width.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from spec_planner.graphs.layers import GraphLayers, Heads, PassValues
from spec_planner.graphs.weights import Stored

from .bindings import NATIVE, SCATTER
from .weights import BLOCKS, COMPUTE_TYPES

# Added to scores of slots that a row may not see: exp of it is 0. Finite, because a kernel that goes block by block may
# meet one of which a row sees nothing, and −∞ less −∞ is no number; and within half precision.
_HIDDEN = -30_000.0


@dataclass(frozen=True)
class SlotValues(PassValues):
    """Also ``extent`` int64 [1]: slots the pass looks at. In ``ScatterLayers`` ``start`` is int64 [n]: rows' slots."""

    extent: str


class TensorRtLayers(GraphLayers):
    """What both have in common.

    Args:
        compute: "float32", "float16" or "bfloat16", of products and cache.
        capacity: C.
        lent: weights that are inputs of the network, for other engines to use as well.
        taps: hidden states to put out; None: all. Each is memory for as many rows as a part of a prompt has.
    """

    def __init__(self, table: Mapping[str, Stored], compute: str, capacity: int, lent: Collection[str] = (),
                 taps: Collection[int] | None = None) -> None:  # fmt: skip
        super().__init__(table, np.float32)
        self._tapped = None if taps is None else {f"hidden.{layer}" for layer in taps}
        self.compute = helper.np_dtype_to_tensor_dtype(np.dtype(COMPUTE_TYPES[compute]))
        self._capacity, self._lent = capacity, lent

    def mix(self, query: str, keys: str, cached_values: str, heads: Heads, values: PassValues) -> str:
        """In single operators, of which TensorRT-RTX makes one kernel in half precision. The operator Attention, tried
        with it, took a kernel that reads every key head's slots once per query head, from copies of them.
        """
        folded = self.add(
            "Mul", self.reshape(query, 1, heads.kv_count, -1, heads.size), self.constant(heads.size**-0.5)
        )
        scores = self._product(folded, self.add("Transpose", keys, perm=[0, 1, 3, 2]))
        weights = self.add("Softmax", self.add("Add", scores, values.bias), axis=-1)
        return self._product(weights, cached_values)

    def output(self, value: str, name: str, *shape: int | str, kind: int | None = None) -> str:
        if self._tapped is not None and name.startswith("hidden.") and name not in self._tapped:
            return value
        return super().output(value, name, *shape, kind=kind)

    def linear(self, x: str, name: str, rows: int, columns: int) -> str:
        y = self._gemm(x, self._matrix(name, rows, columns))
        return self.add("Add", y, self.weight(f"{name}.bias")) if f"{name}.bias" in self.table else y

    def linear_lent(self, x: str, name: str, rows: int, columns: int) -> str:
        return self._gemm(x, self._input_once(name, rows, columns))

    def embed(self, ids: str, vocabulary_size: int, size: int) -> str:
        lent = "embedding" in self._lent
        rows = self._input_once("embedding", vocabulary_size, size) if lent else self.weight("embedding")
        return self._from_compute(self.add("Gather", rows, ids, axis=0))

    def _product(self, x: str, y: str) -> str:
        """x [.., m, k] float32 times y [.., k, l] of the compute type."""
        return self._from_compute(self.add("MatMul", self._to_compute(x), y))

    def _gemm(self, x: str, matrix: str) -> str:
        return self._from_compute(self.add("Gemm", self._to_compute(x), matrix, transB=1))

    def _matrix(self, name: str, rows: int, columns: int) -> str:
        """``name`` [rows, columns] in the compute type; its codes are kept, and restored where they are multiplied."""
        if name in self._lent:
            return self._input_once(name, rows, columns)
        if f"{name}.codes" not in self.table:
            return self.weight(name)
        codes, scales = self.weight(f"{name}.codes"), self.weight(f"{name}.scales")
        block = BLOCKS.get(self.table[f"{name}.codes"].dtype)
        if f"{name}.scale" in self.table:  # the blocks' scales are codes themselves
            scales = self.add("DequantizeLinear", scales, self.weight(f"{name}.scale"))
        attributes = {"axis": 0} if block is None else {"axis": 1, "block_size": block}
        return self.add("DequantizeLinear", codes, scales, **attributes)

    def _input_once(self, name: str, *shape: int) -> str:
        if all(tensor.name != name for tensor in self._inputs):
            self.input(name, self.compute, *shape)
        return name

    def _to_compute(self, x: str) -> str:
        return x if self.compute == self.kind else self.add("Cast", x, to=self.compute)

    def _from_compute(self, x: str) -> str:
        return x if self.compute == self.kind else self.add("Cast", x, to=self.kind)

    def _first_slots(self, cache: str, values: PassValues) -> str:
        return self.add("Slice", cache, self.constant([0]), values.extent, self.constant([2]))

    def _bias(self, mask: str, group: int) -> str:
        hidden_slots = self.add("Where", mask, self.constant(0.0), self.constant(_HIDDEN))
        return self.add("Concat", *[hidden_slots] * group, axis=0)


class NativeLayers(TensorRtLayers):
    """See the module."""

    def pass_values(self, group: int, asking: str = "n") -> SlotValues:
        values, mask = self.stored_values(), self.input("mask", TensorProto.BOOL, asking, "S")
        bias = self._bias(mask, group)
        return SlotValues(values.start, values.places, bias, "", self.add("Shape", mask, start=1))

    def stored_values(self) -> SlotValues:
        return SlotValues(**vars(super().stored_values()), extent="")

    def cached(self, name: str, new: str, heads: Heads, values: PassValues) -> str:
        shape = (1, heads.kv_count, self._capacity, heads.size)
        past = self.input(f"past.{name}", self.compute, *shape)
        present = self.add("TensorScatter", past, self._to_compute(new), values.start, axis=-2)
        present = self.output(present, f"present.{name}", *shape, kind=self.compute)
        return self._first_slots(present, values) if values.extent else present


class ScatterLayers(TensorRtLayers):
    """See the module; norms and rotation are written out too. Input ``slots`` int64 [n] stands for ``start``."""

    def __init__(self, table: Mapping[str, Stored], compute: str, capacity: int, lent: Collection[str] = (),
                 taps: Collection[int] | None = None) -> None:  # fmt: skip
        super().__init__(table, compute, capacity, lent, taps)
        blocks = any(stored.dtype in BLOCKS for stored in table.values())
        self.opset, self.ir_version = (21 if blocks else 20), 10  # block_size is of opset 21
        self._turns: dict[str, tuple[str, str]] = {}  # by positions
        self._indices: dict[tuple[int, str], str] = {}  # by key/value heads and slots

    def pass_values(self, group: int, asking: str = "n") -> SlotValues:
        values, mask = self.stored_values(), self.input("mask", TensorProto.BOOL, asking, "S")
        return SlotValues(values.start, values.places, self._bias(mask, group), "", self.add("Shape", mask, start=1))

    def stored_values(self) -> SlotValues:
        positions, slots = self.input("positions", TensorProto.INT64, "n"), self.input("slots", TensorProto.INT64, "n")
        return SlotValues(slots, self.add("Unsqueeze", positions, self.constant([0])), "", "", "")

    def cached(self, name: str, new: str, heads: Heads, values: PassValues) -> str:
        new = self.output(
            self._to_compute(new), f"new.{name}", 1, heads.kv_count, "n", heads.size, kind=self.compute
        )  # fmt: skip
        if not values.extent:  # rows that are stored only
            return new
        past = self.input(f"past.{name}", self.compute, 1, heads.kv_count, self._capacity, heads.size)
        return self.add("ScatterND", self._first_slots(past, values), self._places(heads.kv_count, values), new)

    def norm(self, x: str, name: str, epsilon: float) -> str:
        mean = self.add("ReduceMean", self.add("Mul", x, x), self.constant([-1]), keepdims=1)
        root = self.add("Sqrt", self.add("Add", mean, self.constant(epsilon)))
        return self.add("Mul", self.add("Div", x, root), self.weight(name))

    def rotate(self, x: str, values: PassValues) -> str:
        if values.places not in self._turns:
            tables = (self.weight("rope.cos"), self.weight("rope.sin"))
            cos, sin = (self.add("Gather", table, values.places, axis=0) for table in tables)  # [1, n, e / 2]
            self._turns[values.places] = cos, sin
        cos, sin = self._turns[values.places]
        half = self.table["rope.cos"].shape[1]
        left, right = self.split(x, half, half)
        turned = self.add("Sub", self.add("Mul", left, cos), self.add("Mul", right, sin))
        return self.concat(turned, self.add("Add", self.add("Mul", right, cos), self.add("Mul", left, sin)))

    def _places(self, kv_count: int, values: PassValues) -> str:
        """int64 [1, g, n, 3]: where in [1, g, S, e] each new row goes."""
        key = kv_count, values.start
        if key not in self._indices:
            heads = self.reshape(self.constant(list(range(kv_count))), 1, kv_count, 1, 1)
            zeros = self.add("Sub", heads, heads)
            slots = self.add("Add", zeros, self.reshape(values.start, 1, 1, -1, 1))
            first = self.add("Sub", slots, slots)
            self._indices[key] = self.concat(first, self.add("Add", first, heads), slots)
        return self._indices[key]


DIALECTS: dict[str, type[TensorRtLayers]] = {NATIVE: NativeLayers, SCATTER: ScatterLayers}
