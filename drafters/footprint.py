"""What a drafter's checkpoint will take in memory, from the headers of its files, before anything is loaded.

weights   what the loader of its kind takes; a copy of the target's is not kept, but where the drafter reads few tokens
          of the head, a copy of their rows is (``draft_head.py``). In torch they are in the target's compute type; as a
          graph (``graphs/``) matrices are in 8 bits, the rest in float32, rotary tables among it
cache     keys and values of every attention layer; it grows by doubling, to at most twice what the context needs
states    a hidden state per token, where the kind keeps them

A graph is written from the network in torch, in float32, which is given up before the first pass: a planner's peak
comes later and is higher.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from spec_planner.graphs.block_quant import BLOCK, matrix_bytes, packed_bytes

from .checkpoint import CheckpointError, detect, read_config, read_tensors, weight_files
from .draft_head import read_draft_tokens
from .nets.layers import is_copy
from .nets.mtp_layouts import text_config

_KEYS = re.compile(r"(?:.*\.)?(?:k_proj|attention\.wk)\.weight")  # a row for every value of a key
_LATENT = re.compile(r"(?:.*\.)?kv_a_proj_with_mqa\.weight")  # which stands for key and value
_QUERIES = re.compile(r"(?:.*\.)?(?:q_proj|attention\.wq)\.weight")
_EAGLE = ("eagle1", "eagle3")
_STATES = {"medusa": 1, "mtp": 1, "mtp-parallel": 1, "eagle1": 2, "eagle3": 2}  # per token; 2: they grow by doubling
# No loader keeps these: tables, maps, and copies of the target's embedding and head.
_LEFT_ASIDE = ("*.inv_freq", "d2t", "t2d", "verifier_*")
_LENT = ("*embed_tokens.weight", "*lm_head.weight", "*shared_head.head.weight")
_STAYS_IN_TORCH = ("*embed_tokens.weight", "candidate_selector.*")  # where the rest is a graph
_BITS = 8  # of a graph's matrices
_FEWEST_SLOTS = 64  # of a graph's cache
_MOST_BOUND = 64 * 64  # rows of inputs: 64 shapes are kept at most (``onnx_runner.py``), each of a chunk of a prompt
_LOOKING = ("eagle1", "eagle3", "mtp", "draft-model")  # while they follow; others store keys, or have none
# A whole target's checkpoint may hold the drafter: of such a one, what is named so.
_PARTS = {
    "medusa": r"(?:(?:model\.)?medusa_heads?\.)?\d+\.\d+\..*|(?:blocks|lm_heads)\.\d+\..*",
    "mtp": r"(?:model\.)?(?:mtp|mtp_layers\.\d+)\..*|(?:model\.)?(?:language_model\.)?layers\.(?P<layer>\d+)\..*",
    "mtp-parallel": r"(?:model\.)?extra_heads\..*",
}


def checkpoint_bytes(directory: Path, target: Path, precision: str, rows: int) -> int:
    """Most that the drafter in ``directory`` will report as ``own_bytes``; with ``rows`` 0, what it reports at first.

    Args:
        target: the target's directory; what of its weights the drafter has a copy of is borrowed.
        precision: the target's.
        rows: tokens of context, those of a draft among them.

    Raises:
        CheckpointError: it is no drafter checkpoint, or one of the files cannot be read.
    """
    net = _read(directory, target, precision)
    values = sum(map(math.prod, net.shapes.values())) + math.prod(net.rows_of_head)
    return (values + rows * (2 * net.cached + net.states)) * net.dtype.itemsize


@dataclass(frozen=True)
class GraphBytes:
    """Of a network that ONNX Runtime runs as a graph with 8-bit matrices.

    Attributes:
        own: as ``checkpoint_bytes``.
        copies: of its matrices, which ONNX Runtime packs.
        inputs: bound for every extent that the context has had, and kept.
        num_heads: of a layer whose rows look at the cache while they follow a prompt; 0 where they do not.
    """

    own: int
    copies: int
    inputs: int
    num_heads: int


def compiled_bytes(directory: Path, target: Path, precision: str, rows: int, positions: int) -> GraphBytes | None:
    """What ``checkpoint_bytes`` says of a network in torch, of a graph; None where the network has none.

    Args:
        positions: rotary tables reach so far.

    Raises:
        CheckpointError: as ``checkpoint_bytes``.
    """
    net = _read(directory, target, precision)
    if not net.has_graph:
        return None
    written = {name: shape for name, shape in net.shapes.items() if not _matches(name, _STAYS_IN_TORCH)}
    matrices = [shape for shape in (*written.values(), net.rows_of_head) if len(shape) == 2]
    others = [shape for name, shape in net.shapes.items() if name not in written or len(shape) != 2]
    kind, hidden_size, head_dim = detect(directory), net.rows_of_head[1], _head_dim(directory)
    values = sum(map(math.prod, others)) + positions * head_dim + rows * net.states
    values += max(2 * rows, _FEWEST_SLOTS) * net.cached
    values += hidden_size if kind == "mtp-parallel" else 0  # the target's final norm
    return GraphBytes(
        own=sum(matrix_bytes(*shape, _bits(shape)) for shape in matrices) + 4 * values,
        copies=sum(packed_bytes(*shape, _bits(shape)) for shape in matrices),
        inputs=4 * 2 * hidden_size * min(rows, _MOST_BOUND) if net.cached else 0,
        num_heads=net.query_width // head_dim if kind in _LOOKING else 0,
    )


@dataclass(frozen=True)
class _Network:
    """What a checkpoint says of a network.

    Attributes:
        shapes: of the tensors that are kept.
        rows_of_head: [V_d, d], a copy of the target's; [0, d] where it is read whole or not at all.
        cached: numbers per token in its caches; ``states``: in states, room to grow included.
        dtype: of the network in torch.
    """

    shapes: dict[str, tuple[int, ...]]
    rows_of_head: tuple[int, int]
    cached: int
    states: int
    dtype: torch.dtype

    @property
    def query_width(self) -> int:
        """Of a layer's queries, all heads side by side; 0 without attention."""
        return max((shape[0] for name, shape in self.shapes.items() if _QUERIES.fullmatch(name)), default=0)

    @property
    def has_graph(self) -> bool:
        """Plain attention and feed-forward blocks have one; latent or gated attention and experts have none."""
        queries = [shape for name, shape in self.shapes.items() if _QUERIES.fullmatch(name)]
        outputs = [
            shape for name, shape in self.shapes.items() if name.endswith(("o_proj.weight", "attention.wo.weight"))
        ]
        gated = any(query[0] != output[1] for query, output in zip(queries, outputs, strict=False))
        return not gated and not any(_LATENT.fullmatch(name) or ".experts." in name for name in self.shapes)


def _read(directory: Path, target: Path, precision: str) -> _Network:
    kind = detect(directory)
    config = read_config(directory) if (directory / "config.json").is_file() else {}
    shapes = {name: shape for name, shape in _shapes(directory) if _is_own(name, kind, config)}
    size = int(read_config(target)["vocab_size"])
    kept = read_draft_tokens(directory, size) or range(size)
    if len(kept) < size:  # their rows, and no copy of the head that EAGLE-1 may bring
        shapes = {name: shape for name, shape in shapes.items() if not name.endswith("lm_head.weight")}
    named = getattr(torch, precision, None)
    dtype = named if isinstance(named, torch.dtype) and named.is_floating_point else torch.float32
    quantized = dtype is not named
    if kind in _EAGLE and not quantized:  # rounded to integers, the target's weights are not what was copied
        for name in [name for name in shapes if _is_copy(name, kind, directory, target, dtype)]:
            del shapes[name]
    hidden_size = int(config.get("hidden_size") or read_config(target)["hidden_size"])
    cached = sum((2 if _KEYS.fullmatch(name) else bool(_LATENT.fullmatch(name))) * shapes[name][0] for name in shapes)
    rows_of_head = (len(kept) if len(kept) < size else 0, hidden_size)
    states = _STATES.get(kind, 0) * hidden_size
    return _Network(shapes, rows_of_head, cached, states, dtype)


def lent_names(directory: Path) -> tuple[str, ...]:
    """Which of the target's embedding and head the drafter in ``directory`` asks for, all of it or a few rows.

    Raises:
        CheckpointError: as ``checkpoint_bytes``.
    """
    kind = detect(directory)
    if kind == "medusa":
        return ("head",)
    own_head = kind == "eagle3" and any(name.endswith("lm_head.weight") for name, _ in _shapes(directory))
    return ("embedding",) if own_head else ("embedding", "head")


def _is_own(name: str, kind: str, config: Mapping[str, Any]) -> bool:
    if _matches(name, _LEFT_ASIDE if kind in _EAGLE else (*_LEFT_ASIDE, *_LENT)):
        return False
    part = re.fullmatch(_PARTS.get(kind, ".*"), name)
    layer = part and part.groupdict().get("layer")
    return bool(part) and (layer is None or int(layer) >= _num_layers(config))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _bits(shape: tuple[int, ...]) -> int | None:
    """Of a matrix in a graph: one whose rows do not fill whole blocks stays as it is."""
    return _BITS if shape[1] % BLOCK == 0 else None


def _head_dim(directory: Path) -> int:
    """Of the heads whose positions are tables in a graph; 0 where there are none."""
    kind = detect(directory)
    if kind == "medusa":
        return 0
    config = text_config(directory)
    otherwise = 128 if kind.startswith("dflash") else config["hidden_size"] // config["num_attention_heads"]
    return int(config.get("head_dim") or otherwise)


def _num_layers(config: Mapping[str, Any]) -> int:
    """Layers of the target that a checkpoint holds; the modules are numbered on from there."""
    return int((config.get("text_config") or config).get("num_hidden_layers", 0))


def _is_copy(name: str, kind: str, directory: Path, target: Path, dtype: torch.dtype) -> bool:
    """Whether a tensor is the target's embedding or head, rounded as it is."""
    if name.endswith("embed_tokens.weight"):
        sources = ["model.embed_tokens.weight"]
    elif kind == "eagle1" and name.endswith("lm_head.weight"):
        sources = ["lm_head.weight", "model.embed_tokens.weight"]  # the latter where they are tied
    else:
        return False
    there = read_tensors(target, sources.__contains__)
    theirs = next((there[source] for source in sources if source in there), torch.empty(0))
    ours = read_tensors(directory, name.__eq__)[name]
    return is_copy(ours, theirs, dtype)


def _shapes(directory: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    for path in weight_files(directory):
        if path.suffix != ".safetensors":  # has no header
            yield from ((name, tuple(tensor.shape)) for name, tensor in read_tensors(path).items())
            continue
        try:
            with safe_open(path, framework="pt") as file:
                yield from [(name, tuple(file.get_slice(name).get_shape())) for name in file.keys()]  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}): copy the file again") from error
