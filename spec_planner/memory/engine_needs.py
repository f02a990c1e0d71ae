"""What each engine takes in memory for one network: its weights, the copies it makes of them, cache and passes.

Weights and cache follow from the checkpoint and are exact. The rest is how the libraries behave; `benchmarks/memory.py`
measures it (x86-64, ONNX Runtime 1.32, OpenVINO 2026.4, torch 2.13; two models and three context lengths):

    torch      Keeps each weight once: fused ones in memory of its own, others mapped where the file has their type.
               Its attention works in blocks and never holds all scores.
    onnx       Packs every matrix for its kernels and reads the file's no more (a mapped page that is not read costs
               nothing: the system takes it back). Scores are written out, and the arena it takes them from grows by
               regions of 1, 2, 4, … MiB.
    openvino   Copies constants when it compiles; bfloat16 and 8 bits are packed at the first pass, in 8 bits beside the
               copy. A pass works on a copy of every layer's cache (``openvino_session.py``).

A prompt is fed in chunks (``decoding/prefix_cache.py``), so the widest pass has a chunk's rows, however long it is.

Shapes: n rows of the widest pass, S slots of the cache, h / g query / key-value heads of e numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..config import PlannerConfig
from ..decoding.prefix_cache import CHUNK
from ..engines.decoder_config import DecoderConfig, read_decoder_config
from ..engines.passes import BITWISE_EXTENT_STEP, DECODE_WIDTHS, Extents
from .available import torch_sees_a_gpu
from .sizes import BYTES_PER_VALUE, Weights, read_weights

_MIB = 1 << 20
_ONNX_SCORES = 3.5  # arrays like the scores [h, n, S] that live at once
_ONNX_SLACK = 1.5  # regions of the arena hold this many times what lives at once, for it is never without gaps
_ONNX_LAYER = 250_000  # bytes of a layer's nodes
_OPENVINO_SCORES = {"float32": 9, "int8": 9, "bfloat16": 1}  # float32 arrays, by precision
_OPENVINO_LAYER = 2_000_000
_OPENVINO_GAPS = 0.55  # of the cache's size: holes that arrays leave in the heap when larger ones take their place


@dataclass(frozen=True)
class Needs:
    """Bytes.

    Attributes:
        stored: all weights, as ``TargetInfo.weight_bytes`` will say.
        weights: of these, what passes read; the rest is read while loading only.
        copies: of weights, which the library makes for its kernels.
        kv: the cache at capacity, as ``TargetInfo.kv_bytes`` will say.
        activations: most that lives at once in a pass.
        workspace: what the library takes besides.
    """

    stored: int
    weights: int
    copies: int
    kv: int
    activations: int
    workspace: int

    @property
    def total(self) -> int:
        """All but what is stored and not read."""
        return self.weights + self.copies + self.kv + self.activations + self.workspace


def engine_needs(config: PlannerConfig, directory: Path, num_layers: int | None = None) -> Needs:
    """For the checkpoint in ``directory`` on the engine and in the precision of ``config``; of all or some layers.

    On a GPU all but ``stored``, ``weights`` and ``kv`` are estimates that were never measured. Torch keeps the results
    of every pass it has recorded there: counted are, for each extent, a draft at its full width and a prompt's chunk.
    A measured draft budget records more widths, and a library's own workspaces are not counted.

    Raises:
        ModelError: the directory cannot be used.
    """
    decoder = read_decoder_config(directory)
    weights = read_weights(directory, decoder, num_layers)
    if num_layers is not None:
        decoder = decoder.first_layers(num_layers)
    shape = _PassShape.of(config, decoder)
    if config.engine_name == "onnx":
        return _onnx(weights, config.precision, shape)
    if config.engine_name == "openvino":
        return _openvino(weights, config.precision, shape)
    on_torch = config.engine_name == "torch"
    value = BYTES_PER_VALUE.get(config.precision, 2)  # a quantised TensorRT engine computes in half precision
    stored = weights.in_torch(config.precision) if on_torch else weights.in_tensorrt(config.precision)
    tables = 2 * shape.slots * decoder.head_dim * value
    recorded = shape.recorded(value) if on_torch and config.device != "cpu" and torch_sees_a_gpu() else 0
    scores = 0 if on_torch else shape.scores(value)
    activations = shape.layer(value) + shape.mask(value) + shape.logits(value) + scores
    return Needs(stored, stored, 0, shape.cache(value), activations, tables + recorded)


@dataclass(frozen=True)
class _PassShape:
    """The largest pass: its arrays' sizes in bytes, of values of ``size`` bytes."""

    decoder: DecoderConfig
    rows: int
    scored: int
    slots: int

    @staticmethod
    def of(config: PlannerConfig, decoder: DecoderConfig) -> _PassShape:
        widths = DECODE_WIDTHS if config.pass_width is None else (config.pass_width,)
        scored = next(width for width in widths if width > config.num_draft_tokens)
        return _PassShape(decoder, max(CHUNK, scored), scored, Extents(widths, config.context_length).capacity)

    def cache(self, size: int) -> int:
        """Keys and values of every layer."""
        return 2 * self.decoder.num_layers * self.decoder.num_kv_heads * self.slots * self.decoder.head_dim * size

    def scores(self, size: int) -> int:
        """[h, n, S]"""
        return self.decoder.num_heads * self.rows * self.slots * size

    def mask(self, size: int) -> int:
        """Additive, in the row order of the folded queries: [h / g · n, S]."""
        return self.decoder.num_heads // self.decoder.num_kv_heads * self.rows * self.slots * size

    def layer(self, size: int) -> int:
        """A layer's states and its MLP."""
        return self.rows * (4 * self.decoder.hidden_size + 3 * self.decoder.intermediate_size) * size

    def logits(self, size: int) -> int:
        """Of the scored rows, and as float32 for the sampler."""
        return self.scored * self.decoder.vocabulary_size * (size + 4)

    def recorded(self, size: int) -> int:
        """Logits that recorded passes keep (``engines/torch_graphs.py``): all of a draft's, one of a chunk's."""
        extents = -(-self.slots // BITWISE_EXTENT_STEP)
        return extents * (self.scored + 1) * self.decoder.vocabulary_size * size


def _onnx(weights: Weights, precision: str, shape: _PassShape) -> Needs:
    stored, packed, embedding = (weights.exported(precision), weights.packed(precision), weights.embedding(precision))
    live = int(_ONNX_SCORES * shape.scores(4)) + shape.layer(4)
    workspace = _arena(live) - live + _ONNX_LAYER * shape.decoder.num_layers
    return Needs(stored, embedding + _vectors(weights, precision), packed, shape.cache(4), live, workspace)


def onnx_arena(num_heads: int, slots: int) -> int:
    """Of a draft network, whose passes are a chunk of a prompt wide at most; ``num_heads`` 0: none of it looks back."""
    return _arena(int(_ONNX_SCORES * num_heads * CHUNK * slots * 4))


def _arena(live: int) -> int:
    """Regions of 1, 2, 4, … MiB that hold ``live`` bytes."""
    arena = _MIB
    while arena < _ONNX_SLACK * live:
        arena = 2 * arena + _MIB
    return arena


def _openvino(weights: Weights, precision: str, shape: _PassShape) -> Needs:
    stored, matrices = weights.exported(precision), weights.multiplied(precision)
    copies = {"float32": matrices, "int8": 2 * matrices, "bfloat16": matrices // 2}[precision]
    cache_copy = shape.cache(2 if precision == "bfloat16" else 4)
    activations = _OPENVINO_SCORES[precision] * shape.scores(4) + shape.layer(4) + shape.logits(0)
    workspace = cache_copy + int(_OPENVINO_GAPS * shape.cache(4)) + _OPENVINO_LAYER * shape.decoder.num_layers
    read = weights.embedding(precision) + _vectors(weights, precision)
    return Needs(stored, read, copies, shape.cache(4), activations, workspace)


def _vectors(weights: Weights, precision: str) -> int:
    """Norms, biases and rotary tables: stored and not a matrix."""
    untied = 0 if weights.config.tied_head else weights.embedding(precision)
    return weights.exported(precision) - weights.multiplied(precision) - untied
