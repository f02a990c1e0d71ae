"""Checkpoint directory → ONNX graph of the decoder in ``decoder.py``: Llama, Qwen2, Qwen3, one pass over a KV cache.

n rows of one pass, r of them scored, S cached slots the pass looks at, g key/value heads of e numbers:

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

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto

from ..graphs.block_quant import BLOCK, PRECISION_BITS
from ..graphs.layers import GraphLayers, Heads
from ..graphs.weights import WEIGHTS_FILE, WeightFile, WeightWriter
from .checkpoint import load_weights
from .decoder_config import DecoderConfig, ModelError, read_decoder_config
from .rope import rope_tables


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
    with (directory / WEIGHTS_FILE).open("wb") as file:
        writer = WeightWriter(directory, file)
        write_decoder(writer, model, config, layer_bits, outer_bits, config.context_length)
        writer.finish()


def write_decoder(writer: WeightWriter, model: Path, config: DecoderConfig, layer_bits: int | None,
                  outer_bits: int | None, num_positions: int) -> None:  # fmt: skip
    """Write all that ``add_decoder`` reads: matrices as the writer's ``add_matrix`` does, vectors and the rotary tables
    of ``num_positions`` in float32.

    Raises:
        ModelError: the checkpoint in ``model`` cannot be used.
    """
    weights = load_weights(model, config)

    def take(*names: str) -> NDArray[np.float32]:
        parts = [weights[name].to(torch.float32) for name in names]
        array: NDArray[np.float32] = (parts[0] if len(parts) == 1 else torch.cat(parts)).numpy()
        return array

    cos, sin = (table[:, : config.head_dim // 2].numpy() for table in rope_tables(config, num_positions))
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
    graph = GraphLayers(weights.table)
    add_decoder(graph, config, config.num_layers if num_layers is None else num_layers)
    return graph.model("decoder")


def add_decoder(graph: GraphLayers, config: DecoderConfig, num_layers: int) -> None:
    """Write the decoder's first ``num_layers`` layers and its head into ``graph``."""
    d, epsilon = config.hidden_size, config.norm_epsilon
    heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim, epsilon)
    ids, rows = graph.input("ids", TensorProto.INT64, "n"), graph.input("rows", TensorProto.INT64, "r")
    values = graph.pass_values(config.num_heads // config.num_kv_heads)
    hidden = graph.embed(ids, config.vocabulary_size, d)
    for layer in range(num_layers):
        hidden = graph.output(hidden, f"hidden.{layer}", "n", d)
        x = graph.norm(hidden, f"{layer}.input_norm", epsilon)
        hidden = graph.add("Add", hidden, graph.attention(x, str(layer), d, heads, values, d))
        x = graph.norm(hidden, f"{layer}.post_norm", epsilon)
        hidden = graph.add("Add", hidden, graph.swiglu(x, str(layer), d, config.intermediate_size))
    hidden = graph.output(graph.norm(hidden, "final_norm", epsilon), f"hidden.{num_layers}", "n", d)
    scored = graph.add("Gather", hidden, rows, axis=0)
    logits = graph.linear(scored, "embedding" if config.tied_head else "head", config.vocabulary_size, d)
    graph.output(logits, "logits", "r", config.vocabulary_size)
