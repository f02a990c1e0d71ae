"""What goes into an engine and comes out of it: the one table that export, build, readback and run time share.

``manifest.json`` lies beside a graph and beside every engine built from it. Sizes that change from pass to pass are
letters, and each optimisation profile of a network says from where to where they go:

    n   rows of a pass          r   rows whose logits are wanted        S   cached slots the rows look at
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from spec_planner.engines.decoder_config import ModelError

LAYOUT = 2  # raise when graphs, tensors or this file change, so that old exports and engines are refused
MANIFEST_FILE = "manifest.json"
NATIVE, SCATTER = "10.15", "10.3"  # the dialects, by the oldest TensorRT that parses them: ``graph_layers.py``
PREFILL_ROWS = 512  # of one pass; a longer prompt takes several, so that activations stay small
DECODE, PREFILL = 0, 1  # optimisation profiles, in this order
Range = tuple[int, int, int]  # least, best, most


@dataclass(frozen=True)
class Tensor:
    """One input or output; ``shape`` holds letters where a size changes."""

    name: str
    output: bool
    dtype: str  # NumPy's name, or that of ml_dtypes
    shape: tuple[int | str, ...]

    def at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape with the letters' sizes put in."""
        return tuple(sizes[extent] if isinstance(extent, str) else extent for extent in self.shape)


@dataclass(frozen=True)
class Network:
    """One graph and, once built, one engine: ``NAME.onnx`` and ``NAME.plan``.

    Attributes:
        profiles: sizes of the letters, one mapping per optimisation profile.
    """

    tensors: tuple[Tensor, ...]
    profiles: tuple[dict[str, Range], ...]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors if not tensor.output)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.output)

    @property
    def cache(self) -> tuple[Tensor, ...]:
        """The inputs that hold keys and values, in the graph's order."""
        return tuple(tensor for tensor in self.inputs if tensor.name.startswith("past."))

    @property
    def aliases(self) -> dict[str, str]:
        """Outputs that must lie where an input lies: present.L.key → past.L.key."""
        present = (tensor.name for tensor in self.outputs if tensor.name.startswith("present."))
        return {name: name.replace("present.", "past.", 1) for name in present}

    @property
    def io_bytes(self) -> int:
        """Of the buffers that inputs and outputs need at their largest, the cache and what is lent left out."""
        largest = {letter: max(ranges[letter][2] for ranges in self.profiles) for letter in self.profiles[0]}
        return sum(
            num_bytes(tensor.dtype, tensor.at(largest))
            for tensor in self.tensors
            if any(isinstance(extent, str) for extent in tensor.shape)
        )

    def shapes(self, profile: int, tensor: Tensor) -> tuple[tuple[int, ...], ...]:
        """Least, best and greatest shape of ``tensor`` in a profile."""
        ranges = self.profiles[profile]
        return tuple(tensor.at({letter: sizes[which] for letter, sizes in ranges.items()}) for which in range(3))


@dataclass(frozen=True)
class Manifest:
    """What a directory of graphs, or of engines, holds.

    Attributes:
        kind: "target", or a kind of drafter.
        name: of the model's directory.
        target: identity of the target's weights, a drafter's of the one it was made for.
        dialect: oldest TensorRT that reads the graphs, see ``graph_layers.py``.
        capacity: slots of the cache; every engine of one session has the same.
        sizes: vocabulary_size, hidden_size, … as far as the kind has them.
        networks: by name; a target has one, ``decoder``, a drafter one per step.
        lent: inputs that hold weights, to be bound to one buffer by all engines that use them.
        weight_bytes: of the weights file.
        graph_hash: SHA-256 over graphs and weights.
        tied_head: the target's head is its embedding.
    """

    kind: str
    name: str
    target: str
    dialect: str
    precision: str
    context_length: int
    capacity: int
    sizes: dict[str, int]
    networks: dict[str, Network]
    lent: tuple[str, ...]
    weight_bytes: int
    graph_hash: str
    exporter: str
    tied_head: bool = False
    layout: int = LAYOUT

    @property
    def key(self) -> str:
        return f"{self.kind}-{self.precision}-{self.graph_hash[:16]}"

    @property
    def kv_bytes(self) -> int:
        cache = {tensor.name: tensor for network in self.networks.values() for tensor in network.cache}
        return sum(num_bytes(tensor.dtype, tensor.shape) for tensor in cache.values())

    @property
    def lent_bytes(self) -> int:
        """Of the buffers that hold what is lent, which target and drafters share."""
        inputs = (tensor for network in self.networks.values() for tensor in network.inputs)
        lent = {tensor.name: tensor for tensor in inputs if tensor.name in self.lent}
        return sum(num_bytes(tensor.dtype, tensor.shape) for tensor in lent.values())

    def write(self, directory: Path) -> None:
        (directory / MANIFEST_FILE).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> Manifest:
    """The manifest in ``directory``.

    Raises:
        ModelError: there is none, it cannot be read, or another version of spec_planner wrote it.
    """
    path = directory / MANIFEST_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        layout = content["layout"]
        if layout == LAYOUT:
            networks = {name: _network(entry) for name, entry in content["networks"].items()}
            return Manifest(**{**content, "networks": networks, "lent": tuple(content["lent"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{path} cannot be read ({error}): write the directory again with `spec-planner export` or `build`"
        ) from error
    raise ModelError(
        f"{directory} has layout {layout} and this spec_planner reads {LAYOUT}: `spec-planner export` and `build` it "
        f"again"
    )


def _network(entry: dict) -> Network:
    tensors = tuple(Tensor(**{**tensor, "shape": tuple(tensor["shape"])}) for tensor in entry["tensors"])
    return Network(
        tensors, tuple({name: tuple(sizes) for name, sizes in ranges.items()} for ranges in entry["profiles"])
    )


def target_profiles(context_length: int, capacity: int, max_rows: int) -> tuple[dict[str, Range], ...]:
    """Sizes of the letters when decoding and when reading a prompt, of which the last row alone is scored.

    Two profiles and not one per width: a CUDA graph freezes a width's shapes anyway, every profile takes as long to
    build as the first, and a pass of a given width always runs the same kernels, which is what bits need.
    """
    prefill = min(PREFILL_ROWS, context_length)
    slots = _slots(capacity)
    rows = (1, min(16, max_rows), max_rows)
    return {"n": rows, "r": rows, "S": slots}, {"n": (1, max(1, prefill // 2), prefill), "r": (1, 1, 1), "S": slots}


def drafter_profiles(letters: set[str], context_length: int, capacity: int) -> tuple[dict[str, Range], ...]:
    """One profile: a drafter's pass is a few rows, or as many as a prompt has, and too small for the difference."""
    prefill = min(PREFILL_ROWS, context_length)
    few: Range = (1, min(8, prefill), prefill)
    return ({letter: _slots(capacity) if letter == "S" else few for letter in sorted(letters)},)


def _slots(capacity: int) -> Range:
    return min(64, capacity), min(1024, capacity), capacity


def num_bytes(dtype: str, shape: tuple[int | str, ...]) -> int:
    size = {"int64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "bool": 1}[dtype]
    return size * math.prod(int(extent) for extent in shape)
