"""What the planner will need in memory, from files that say so before anything is loaded.

Weights are counted from the headers of the safetensors files, which list every tensor's shape. Only a drafter's
checkpoint needs torch, as it does to run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..config import PlannerConfig
    from ..engines.decoder_config import DecoderConfig

# Of keys, values and activations on torch; the engines that run an exported decoder keep float32.
BYTES_PER_VALUE = {"float32": 4, "bfloat16": 2, "float16": 2}
PASS_ROOM = 64  # slots the target's cache holds beyond the context, so that its widest pass always fits
HEADER_LIMIT = 100_000_000  # of a safetensors header, by the format's own definition


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes. ``activations`` is an upper estimate for one pass over a prompt as long as the context."""

    weights: int
    kv: int
    drafter: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.drafter + self.activations


def budget(directory: Path, config: PlannerConfig, drafter: int = 0) -> MemoryBudget:
    """What ``config`` needs with the target in ``directory``; ``drafter``: what ``drafter_bytes`` came to.

    Raises:
        ValueError: the model directory cannot be used; one sentence.
    """
    from ..engines.decoder_config import read_decoder_config

    size, exported = value_bytes(config), config.engine_name != "torch"
    weight_bytes = exported_weight_bytes if exported else torch_weight_bytes
    target = read_decoder_config(directory)
    return MemoryBudget(
        weights=weight_bytes(directory, target, config.precision),
        kv=kv_bytes(target, config.context_length, size),
        drafter=drafter,
        activations=activation_bytes(target, config.context_length, config.num_draft_tokens + 1, size),
    )


def drafter_bytes(directory: Path, config: PlannerConfig) -> int:
    """What the drafter of ``config`` takes of its own with a full context, an upper estimate.

    Raises:
        ValueError: it cannot be used, or not with the target in ``directory``; one sentence.
        ImportError: torch is missing, and it is a checkpoint.
    """
    from ..drafter_choice import GRAFT, drafter_bytes, drafter_checkpoint
    from ..engines.decoder_config import read_decoder_config
    from ..engines.default_model import model_directory

    size, exported = value_bytes(config), config.engine_name != "torch"
    found = drafter_bytes(config, directory, config.context_length + PASS_ROOM)
    if config.drafter.removeprefix(GRAFT) != "draft-model" or drafter_checkpoint(config, directory) is not None:
        return found
    if config.draft_model:
        own = model_directory(config.draft_model)
        net = read_decoder_config(own)
        weight_bytes = exported_weight_bytes if exported else torch_weight_bytes
        return found + weight_bytes(own, net, config.precision) + kv_bytes(net, config.context_length, size)
    # The target's first layers: torch shares their weights, but not the cache.
    target = read_decoder_config(directory)
    layers = config.draft_layers_of(target.num_layers)
    copied = exported_weight_bytes(directory, target, config.precision, layers) if exported else 0
    return found + copied + kv_bytes(target, config.context_length, size, num_layers=layers)


def value_bytes(config: PlannerConfig) -> int:
    """Of one key, value or activation."""
    return BYTES_PER_VALUE[config.precision] if config.engine_name == "torch" else 4


def kv_bytes(config: DecoderConfig, context_length: int, size: int, num_layers: int | None = None) -> int:
    """Keys and values of every layer, for the context and the widest pass beyond it."""
    layers = config.num_layers if num_layers is None else num_layers
    return 2 * layers * config.num_kv_heads * config.head_dim * (context_length + PASS_ROOM) * size


def activation_bytes(config: DecoderConfig, rows: int, scored_rows: int, size: int) -> int:
    """Most that lives at once in a pass: a layer's states, its MLP or its attention scores, and the logits."""
    states = 4 * rows * config.hidden_size
    mlp = 3 * rows * config.intermediate_size
    attention = 2 * config.num_heads * rows * rows + 3 * rows * config.num_heads * config.head_dim
    logits = scored_rows * config.vocabulary_size
    return (states + max(mlp, attention) + logits) * size


def torch_weight_bytes(directory: Path, config: DecoderConfig, precision: str) -> int:
    """All tensors in the compute type."""
    return sum(math.prod(shape) for shape in tensor_shapes(directory, config).values()) * BYTES_PER_VALUE[precision]


def exported_weight_bytes(directory: Path, config: DecoderConfig, precision: str, num_layers: int | None = None) -> int:
    """The exported weights: matrices in blocks, vectors and the rotary tables in float32; all or some layers."""
    from ..graphs.block_quant import PRECISION_BITS, matrix_bytes, stored_precision

    layer_bits, outer_bits = PRECISION_BITS[stored_precision(precision)]
    total = 2 * config.context_length * (config.head_dim // 2) * 4
    for name, shape in tensor_shapes(directory, config).items():
        if name.startswith("model.layers."):
            if num_layers is None or int(name.split(".")[2]) < num_layers:
                total += matrix_bytes(*shape, layer_bits) if len(shape) == 2 else 4 * math.prod(shape)
        else:
            total += matrix_bytes(*shape, outer_bits) if len(shape) == 2 else 4 * math.prod(shape)
    return total


def tensor_shapes(directory: Path, config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor, from the files' headers; without a tied head that was stored a second time.

    Raises:
        ValueError: there is no safetensors file, or one has no readable header.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in weight_files(directory):
        for name, entry in _header(path).items():
            if name != "__metadata__" and not (config.tied_head and name == "lm_head.weight"):
                shapes[name] = tuple(entry["shape"])
    return shapes


def weight_files(directory: Path) -> Iterator[Path]:
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise ValueError(f"no .safetensors file in {directory}: give a complete Hugging Face model directory")
    yield from paths


def _header(path: Path) -> dict[str, Any]:
    """The JSON at a safetensors file's start: 8 bytes of length, then the table of tensors."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        data = file.read(length) if length <= HEADER_LIMIT else b""
    try:
        header = json.loads(data)
        shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
        if not all(isinstance(extent, int) and extent >= 0 for shape in shapes for extent in shape):
            raise ValueError("a shape is not a list of sizes")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: copy the file again") from error
    return dict(header)


def available_bytes() -> tuple[int, int]:
    """(available, total) main memory, a container's limit included; 0, 0 where the system won't say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0, 0
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if len(line.split()) > 1}
    available, total = kilobytes.get("MemAvailable", 0) * 1024, kilobytes.get("MemTotal", 0) * 1024
    limit, used = (_cgroup(name) for name in ("memory.max", "memory.current"))
    if limit is not None and limit < total:
        available, total = min(available, limit - (used or 0)), limit
    return available, total


def _cgroup(name: str) -> int | None:
    """A number of this process's control group (version 2), None where there is none or no limit."""
    try:
        group = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        return int(Path("/sys/fs/cgroup", group[3:].lstrip("/"), name).read_text())
    except (OSError, StopIteration, ValueError):
        return None
