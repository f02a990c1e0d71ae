"""Checkpoint directory → ONNX graph of the decoder in ``decoder.py``: Llama, Qwen2, Qwen3, one pass over a KV cache.

The graph is written out node by node in standard operators (opset 24), so that it is the same whatever torch's exporter
does; weight-only quantisation adds ONNX Runtime's MatMulNBits and GatherBlockQuantized. n rows of one pass, r of them
scored, S cached slots the pass looks at, g key/value heads of e numbers:

    ids, positions       int64 [n]
    start                int64 [1]          row i's keys and values go to slot start + i
    mask                 bool [n, S]        True where row i may look
    rows                 int64 [r]          the rows whose logits are wanted
    past.L.key, .value   float32 [1, g, S, e] for every layer L; keys stand in slot order, whoever computed them
    → logits             float32 [r, V]
    → present.L.key, …   the same with the new rows in place; bound to past's own buffer, nothing else is copied
    → hidden.L           float32 [n, d], Hugging Face's hidden_states[L]: ask for them or not
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from .block_quant import BLOCK, PRECISION_BITS
from .checkpoint import load_weights
from .decoder_config import DecoderConfig, ModelError, read_decoder_config
from .onnx_weights import WEIGHTS_FILE, Stored, WeightFile, WeightWriter
from .rope import rope_tables

_OPSET, _IR_VERSION = 24, 11
_LANES = 16  # columns of ones: a product with a single column would be a dot product, summed in lanes again
_CONTRIB = "com.microsoft"
_TYPES = {"float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8}


def write_weights(model: Path, precision: str, directory: Path) -> None:
    """Fill ``directory`` with the weights of the checkpoint in ``model``, in the layout ``build_graph`` expects.

    Raises:
        ModelError: the checkpoint cannot be used, or not in this precision.
    """
    config = read_decoder_config(model)
    layer_bits, outer_bits = PRECISION_BITS[precision]
    if outer_bits and config.hidden_size % BLOCK:
        raise ModelError(
            f"{model} has a hidden size of {config.hidden_size}, which blocks of {BLOCK} do not divide: use precision "
            f"float32"
        )
    weights = load_weights(model, config)

    def take(*names: str) -> NDArray[np.float32]:
        array: NDArray[np.float32] = torch.cat([weights[name].to(torch.float32) for name in names]).numpy()
        return array

    with (directory / WEIGHTS_FILE).open("wb") as file:
        writer = WeightWriter(directory, file)
        cos, sin = (table[:, : config.head_dim // 2].numpy() for table in rope_tables(config, config.context_length))
        writer.add("rope.cos", cos)
        writer.add("rope.sin", sin)
        writer.add_matrix("embedding", take("model.embed_tokens.weight"), outer_bits)
        if not config.tied_head:
            writer.add_matrix("head", take("lm_head.weight"), outer_bits)
        writer.add("final_norm", take("model.norm.weight"))
        for layer in range(config.num_layers):
            for name, parts in _layer_tensors(config):
                array = take(*(f"model.layers.{layer}.{part}" for part in parts))
                if array.ndim == 2:
                    writer.add_matrix(f"{layer}.{name}", array, layer_bits)
                else:
                    writer.add(f"{layer}.{name}", array)
        writer.finish()


def _layer_tensors(config: DecoderConfig) -> Iterator[tuple[str, list[str]]]:
    """Names in the graph and what each is made of: q|k|v and gate|up lie in one matrix each, as in ``decoder.py``."""
    yield "input_norm", ["input_layernorm.weight"]
    yield "post_norm", ["post_attention_layernorm.weight"]
    for name, parts, bias in (
        ("qkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), config.attention_bias),
        ("out", ("self_attn.o_proj",), config.output_bias),
        ("gate_up", ("mlp.gate_proj", "mlp.up_proj"), config.mlp_bias),
        ("down", ("mlp.down_proj",), config.mlp_bias),
    ):
        yield name, [f"{part}.weight" for part in parts]
        if bias:
            yield f"{name}.bias", [f"{part}.bias" for part in parts]
    if config.qk_norm:
        yield "q_norm", ["self_attn.q_norm.weight"]
        yield "k_norm", ["self_attn.k_norm.weight"]


def build_graph(config: DecoderConfig, weights: WeightFile, num_layers: int | None = None) -> onnx.ModelProto:
    """The graph over ``weights``, of all layers or only the first ``num_layers``; the weights stay in their file."""
    builder = _Builder(config, weights.table)
    graph = builder.build(config.num_layers if num_layers is None else num_layers)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="spec_planner")


class _Builder:
    """Nodes and initialisers of one graph; each method adds an operator and returns the name of its result."""

    def __init__(self, config: DecoderConfig, table: Mapping[str, Stored]) -> None:
        self._config, self._table = config, table
        self._nodes: list[onnx.NodeProto] = []
        self._initialisers: dict[str, TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def build(self, num_layers: int) -> onnx.GraphProto:
        config = self._config
        d, group = config.hidden_size, config.num_heads // config.num_kv_heads
        ids, positions = self._input("ids", TensorProto.INT64, "n"), self._input("positions", TensorProto.INT64, "n")
        start, mask = self._input("start", TensorProto.INT64, 1), self._input("mask", TensorProto.BOOL, "n", "S")
        rows = self._input("rows", TensorProto.INT64, "r")
        # Once for all layers: the additive mask [group · n, S] in the row order of the folded queries.
        hidden_slots = self._add("Where", mask, self._constant(0.0), self._constant(-np.inf))
        bias = self._add("Concat", *[hidden_slots] * group, axis=0)
        slots = self._add("Shape", mask, start=1)
        ones = self._add("Expand", self._constant(1.0), self._add("Concat", slots, self._constant([_LANES]), axis=0))
        places = self._add("Unsqueeze", positions, self._constant([0]))
        hidden = self._embed(ids)
        for layer in range(num_layers):
            hidden = self._output(hidden, f"hidden.{layer}", "n", d)
            hidden = self._layer(layer, hidden, places, start, bias, ones)
        hidden = self._output(self._norm(hidden, "final_norm"), f"hidden.{num_layers}", "n", d)
        scored = self._add("Gather", hidden, rows, axis=0)
        logits = self._linear(scored, "embedding" if config.tied_head else "head", config.vocabulary_size, d)
        self._output(logits, "logits", "r", config.vocabulary_size)
        return helper.make_graph(self._nodes, "decoder", self._inputs, self._outputs, list(self._initialisers.values()))

    def _layer(self, layer: int, hidden: str, places: str, start: str, bias: str, ones: str) -> str:
        config = self._config
        d, inner = config.hidden_size, config.intermediate_size
        h, g, e = config.num_heads, config.num_kv_heads, config.head_dim
        x = self._norm(hidden, f"{layer}.input_norm")
        qkv = self._linear(x, f"{layer}.qkv", (h + 2 * g) * e, d)
        query, key, value = self._split(qkv, h * e, g * e, g * e)
        query = self._heads(query, h, places, f"{layer}.q_norm")
        key = self._heads(key, g, places, f"{layer}.k_norm")
        value = self._add("Transpose", self._reshape(value, 1, -1, g, e), perm=[0, 2, 1, 3])
        keys = self._cached(f"{layer}.key", key, start)
        values = self._cached(f"{layer}.value", value, start)
        # Query head j·group + r reads key head j: [1, h, n, e] is [1, g, group · n, e] as it lies.
        folded = self._add("Mul", self._reshape(query, 1, g, -1, e), self._constant(e**-0.5))
        scores = self._add("MatMul", folded, self._add("Transpose", keys, perm=[0, 1, 3, 2]))
        mixed = self._reshape(self._attend(self._add("Add", scores, bias), values, ones), h, -1, e)
        mixed = self._reshape(self._add("Transpose", mixed, perm=[1, 0, 2]), -1, h * e)
        hidden = self._add("Add", hidden, self._linear(mixed, f"{layer}.out", d, h * e))
        x = self._norm(hidden, f"{layer}.post_norm")
        gate, up = self._split(self._linear(x, f"{layer}.gate_up", 2 * inner, d), inner, inner)
        gate = self._add("Mul", gate, self._add("Sigmoid", gate))
        return self._add("Add", hidden, self._linear(self._add("Mul", gate, up), f"{layer}.down", d, inner))

    def _attend(self, scores: str, values: str, ones: str) -> str:
        """Softmax of ``scores`` [1, g, m, S] times ``values`` [1, g, S, e].

        Written out, with the sum as a matrix product, because a Softmax kernel sums slots in the lanes of a vector: the
        order then depends on where a token stands, which is another slot in a tree than once committed. A matrix
        product goes from slot to slot, and the masked ones in between add exact zeros. Same speed, and a tree's logits
        agree in bits too, but where a tree straddles two of the product's blocks of 256 slots.
        """
        largest = self._add("ReduceMax", scores, self._constant([-1]), keepdims=1)
        weights = self._add("Exp", self._add("Sub", scores, largest))
        total = self._add("Gather", self._add("MatMul", weights, ones), self._constant([0]), axis=-1)
        return self._add("Div", self._add("MatMul", weights, values), total)

    def _heads(self, x: str, count: int, places: str, norm: str) -> str:
        """[n, count · e] → rotated heads [1, count, n, e], normalised first in the family that does."""
        x = self._reshape(x, 1, -1, count, self._config.head_dim)
        if self._config.qk_norm:
            x = self._norm(x, norm)
        x = self._add("Transpose", x, perm=[0, 2, 1, 3])
        return self._add("RotaryEmbedding", x, self._weight("rope.cos"), self._weight("rope.sin"), places)

    def _cached(self, name: str, new: str, start: str) -> str:
        """``new`` [1, g, n, e] put into the cache at ``start``; the whole of what the pass sees, [1, g, S, e]."""
        shape = (1, self._config.num_kv_heads, "S", self._config.head_dim)
        past = self._input(f"past.{name}", TensorProto.FLOAT, *shape)
        present = self._add("TensorScatter", past, new, start, axis=-2)
        return self._output(present, f"present.{name}", *shape)

    def _embed(self, ids: str) -> str:
        if "embedding" in self._table:
            return self._add("Gather", self._weight("embedding"), ids, axis=0)
        shape = (self._config.vocabulary_size, self._config.hidden_size)
        codes = self._weight("embedding.codes", shape, "embedding.rows")  # the bytes of the head, seen as rows
        return self._add(
            "GatherBlockQuantized", codes, ids, self._weight("embedding.scales"), domain=_CONTRIB,
            bits=8, block_size=BLOCK, gather_axis=0, quantize_axis=1,
        )  # fmt: skip

    def _linear(self, x: str, name: str, rows: int, columns: int) -> str:
        """x [n, columns] times the transpose of weight ``name`` [rows, columns], and its bias if it has one."""
        bias = self._weight(f"{name}.bias") if f"{name}.bias" in self._table else ""
        if name in self._table:
            return self._add("Gemm", x, self._weight(name), *filter(None, [bias]), transB=1)
        four = f"{name}.zero_points" in self._table
        inputs = [x, self._weight(f"{name}.codes"), self._weight(f"{name}.scales")]
        inputs += [self._weight(f"{name}.zero_points") if four else "", "", bias]  # the empty one: no reordering
        while not inputs[-1]:
            inputs.pop()
        return self._add(
            "MatMulNBits", *inputs, domain=_CONTRIB,
            N=rows, K=columns, bits=4 if four else 8, block_size=BLOCK, accuracy_level=4,
        )  # fmt: skip

    def _norm(self, x: str, name: str) -> str:
        return self._add("RMSNormalization", x, self._weight(name), axis=-1, epsilon=self._config.norm_epsilon)

    def _split(self, x: str, *sizes: int) -> list[str]:
        outputs = [self._name("Split") + f".{part}" for part in range(len(sizes))]
        self._nodes.append(helper.make_node("Split", [x, self._constant(list(sizes))], outputs, outputs[0], axis=-1))
        return outputs

    def _reshape(self, x: str, *shape: int) -> str:
        return self._add("Reshape", x, self._constant(list(shape)))

    def _add(self, operator: str, *inputs: str, domain: str = "", **attributes) -> str:
        output = self._name(operator)
        self._nodes.append(helper.make_node(operator, inputs, [output], output, domain=domain, **attributes))
        return output

    def _name(self, operator: str) -> str:
        return f"{operator}.{len(self._nodes)}"

    def _input(self, name: str, kind: int, *shape: int | str) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def _output(self, value: str, name: str, *shape: int | str) -> str:
        """Make ``value`` a graph output under ``name``, which is also what later nodes read."""
        for node in reversed(self._nodes):
            if value in node.output:
                node.output[list(node.output).index(value)] = name
                break
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def _constant(self, value: float | list[int]) -> str:
        array = np.array(value, dtype=np.int64 if isinstance(value, list) else np.float32)
        name = f"constant.{value}"
        self._initialisers.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def _weight(self, stored_name: str, shape: tuple[int, ...] | None = None, name: str | None = None) -> str:
        """A tensor of the weights file as an initialiser, perhaps seen in another shape under another name."""
        stored, name = self._table[stored_name], name or stored_name
        if name not in self._initialisers:
            tensor = TensorProto(name=name, data_type=_TYPES[stored.dtype], dims=shape or stored.shape)
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": WEIGHTS_FILE, "offset": stored.offset, "length": stored.length}
            for key, content in place.items():
                tensor.external_data.add(key=key, value=str(content))
            self._initialisers[name] = tensor
        return name
