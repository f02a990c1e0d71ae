"""How large a checkpoint's weights are in every form in which an engine keeps them, from its files' headers.

safetensors files begin with a table of every tensor's shape, so nothing is loaded.

    stored    what the engine's weights file or tensors take: what ``TargetInfo.weight_bytes`` will say
    packed    the copies of matrices that ONNX Runtime's kernels multiply with
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engines.decoder_config import DecoderConfig, ModelError
from ..graphs.block_quant import PRECISION_BITS, matrix_bytes, packed_bytes, stored_precision

BYTES_PER_VALUE = {"float32": 4, "bfloat16": 2, "float16": 2}
_HEADER_LIMIT = 100_000_000  # of a safetensors header, by the format's own definition
# Bits of a layer's weight and of the head's on TensorRT, scales included, where they are quantised.
_TENSORRT_BITS = {"int8": (8, 8), "int4": (4.25, 8), "fp8": (8, 8), "nvfp4": (4.5, 8)}


@dataclass(frozen=True)
class Weights:
    """Shapes of a checkpoint's tensors, without a tied head that was stored a second time.

    Attributes:
        layers: of the layers' tensors; ``outer``: of the others, by name.
    """

    config: DecoderConfig
    layers: tuple[tuple[int, ...], ...]
    outer: dict[str, tuple[int, ...]]

    def in_torch(self, precision: str) -> int:
        """All tensors in the compute type; what is fused is fused instead of kept, what is not may stay mapped."""
        values = sum(map(math.prod, (*self.layers, *self.outer.values())))
        return values * BYTES_PER_VALUE[precision]

    def in_tensorrt(self, precision: str) -> int:
        """An estimate. Quantised, a tied head is stored beside the embedding's rows, which stay in the compute type."""
        if precision not in _TENSORRT_BITS:
            return self.in_torch(precision)
        layer_bits, head_bits = _TENSORRT_BITS[precision]
        bits = sum(map(math.prod, self.layers)) * layer_bits + math.prod(self._head) * head_bits
        return int(bits / 8) + 2 * math.prod(self.outer["model.embed_tokens.weight"])

    def exported(self, precision: str) -> int:
        """The exported file: matrices in blocks, vectors and the rotary tables in float32."""
        layer_bits, outer_bits = PRECISION_BITS[stored_precision(precision)]
        tables = 2 * self.config.context_length * (self.config.head_dim // 2) * 4
        layers = sum(_stored(shape, layer_bits) for shape in self.layers)
        return tables + layers + sum(_stored(shape, outer_bits) for shape in self.outer.values())

    def embedding(self, precision: str) -> int:
        """The exported embedding, whose rows are looked up where they lie."""
        return _stored(self.outer["model.embed_tokens.weight"], PRECISION_BITS[stored_precision(precision)][1])

    def multiplied(self, precision: str) -> int:
        """The exported matrices that rows are multiplied with, a tied head among them, as they are stored."""
        layer_bits, outer_bits = PRECISION_BITS[stored_precision(precision)]
        matrices = sum(matrix_bytes(*shape, layer_bits) for shape in self.layers if len(shape) == 2)
        return matrices + matrix_bytes(*self._head, outer_bits)

    def packed(self, precision: str) -> int:
        """The same as ONNX Runtime packs them for its kernels."""
        layer_bits, outer_bits = PRECISION_BITS[stored_precision(precision)]
        matrices = sum(packed_bytes(*shape, layer_bits) for shape in self.layers if len(shape) == 2)
        return matrices + packed_bytes(*self._head, outer_bits)

    @property
    def _head(self) -> tuple[int, int]:
        rows, columns = self.outer["model.embed_tokens.weight" if self.config.tied_head else "lm_head.weight"]
        return rows, columns


def read_weights(directory: Path, config: DecoderConfig, num_layers: int | None = None) -> Weights:
    """What the headers of the safetensors files in ``directory`` say; of all layers or the first ``num_layers``.

    Raises:
        ModelError: there is no safetensors file, one has no readable header, or an embedding or head is missing.
    """
    layers, outer = [], {}
    for path in weight_files(directory):
        for name, shape in _shapes(path):
            if not name.startswith("model.layers."):
                outer[name] = shape
            elif num_layers is None or int(name.split(".")[2]) < num_layers:
                layers.append(shape)
    if config.tied_head:
        outer.pop("lm_head.weight", None)
    needed = ("model.embed_tokens.weight", *(() if config.tied_head else ("lm_head.weight",)))
    missing = [name for name in needed if len(outer.get(name, ())) != 2]
    if missing:
        raise ModelError(f"{directory} lacks {' and '.join(missing)}: copy the whole model directory again")
    return Weights(config, tuple(layers), outer)


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files; ``ModelError`` where there is none, or one that the shard index names is missing."""
    index = directory / "model.safetensors.index.json"
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.is_file() else set()
        paths = [directory / name for name in sorted(names)] or sorted(directory.glob("*.safetensors"))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{index} is not a shard index ({error!r}): copy the model directory again") from error
    missing = [path.name for path in paths if not path.is_file()]
    if missing or not paths:
        what = f"lacks {', '.join(missing)}" if missing else "holds no *.safetensors file"
        raise ModelError(f"{directory} {what}: give a complete Hugging Face model directory")
    return paths


def _stored(shape: tuple[int, ...], bits: int | None) -> int:
    return matrix_bytes(*shape, bits) if len(shape) == 2 else 4 * math.prod(shape)


def _shapes(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes in a safetensors file: 8 bytes of length, then the table of tensors in JSON."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            data = file.read(length) if length <= _HEADER_LIMIT else b""
        header: dict[str, Any] = json.loads(data)
        shapes = {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
        if not all(isinstance(extent, int) and extent >= 0 for shape in shapes.values() for extent in shape):
            raise ValueError("a shape is not a list of sizes")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is not a readable safetensors file: copy the file again") from error
    yield from shapes.items()
