"""The precisions there are for TensorRT, by name. Apart from ``weights.py``: a robot that only runs needs no codes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """How a precision stores a layer's matrices and the head, None: in the compute type; on which GPUs it runs."""

    compute: str
    layers: str | None = None
    head: str | None = None
    compute_capability: int = 75  # the lowest that TensorRT-RTX compiles it for


PRECISIONS = {
    "float32": Precision("float32"),
    "float16": Precision("float16"),
    "bfloat16": Precision("bfloat16", compute_capability=80),
    "int8": Precision("float16", "int8", "int8"),
    "int4": Precision("float16", "int4", "int8", compute_capability=80),
    "fp8": Precision("float16", "fp8", "fp8", compute_capability=89),
    "nvfp4": Precision("float16", "nvfp4", "fp8", compute_capability=100),
}
