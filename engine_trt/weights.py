"""How weights are stored for TensorRT: as they are in the compute type, or as codes with scales.

    int8      one scale per row             codes in −127 … 127
    int4      one scale per block of 64     codes in −7 … 7, two to a byte
    fp8       one scale per row             8-bit floats (E4M3)
    nvfp4     one scale per block of 16, itself an 8-bit float times one number per matrix; 4-bit floats (E2M1)

A matrix is [rows, columns], blocks lie along a row, and there are no zero points: TensorRT takes none. Codes are found
with the scales as they are stored, rounding included. A quantised embedding's rows stay in the compute type beside the
codes that a tied head multiplies with: TensorRT takes codes only where they are restored as a whole, and to restore a
whole table to look up a few rows is a pass over the head again.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from spec_planner.engines.decoder_config import ModelError
from spec_planner.graphs.weights import WeightWriter

from .precisions import Precision

COMPUTE_TYPES: dict[str, DTypeLike] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_CODES: dict[str, tuple[int, DTypeLike]] = {  # greatest code, type
    "int8": (127, np.int8),
    "int4": (7, ml_dtypes.int4),
    "fp8": (448, ml_dtypes.float8_e4m3fn),
    "nvfp4": (6, ml_dtypes.float4_e2m1fn),
}
BLOCKS = {"int4": 64, "float4_e2m1fn": 16}  # columns that share a scale, by the type of the codes; else a row does


class EngineWeights(WeightWriter):
    """Writes matrices as the precision says; what it is told of bits belongs to other engines.

    Args:
        lends: embedding and head are not of this graph: as they are, whatever the precision.
        tied_head: the head is the embedding.
    """

    def __init__(self, directory: Path, file: BinaryIO, precision: Precision, *, lends: bool = False,
                 tied_head: bool = False) -> None:  # fmt: skip
        super().__init__(directory, file)
        self._precision, self._lends, self._tied_head = precision, lends, tied_head
        self._compute = np.dtype(COMPUTE_TYPES[precision.compute])

    def add_matrix(self, name: str, weight: NDArray[np.float32], bits: int | None) -> None:
        """Raises ``ModelError`` where blocks do not divide the columns."""
        if name not in ("embedding", "head"):
            kind = self._precision.layers
        else:
            kind = None if self._lends else self._precision.head
        looked_up = name == "embedding"
        if kind is None or looked_up:
            self.add(name, weight.astype(self._compute))
        if kind is not None and (self._tied_head or not looked_up):
            self._add_codes(name, weight, kind)

    def _add_codes(self, name: str, weight: NDArray[np.float32], kind: str) -> None:
        block = BLOCKS.get(np.dtype(_CODES[kind][1]).name, 1)
        if weight.shape[1] % block:
            raise ModelError(
                f"{name} is {weight.shape[1]} wide, which the blocks of {block} of precision {kind} do not divide: use "
                f"precision int8 or float16"
            )
        codes, scales, scale = quantise(weight, kind, self._compute)
        if codes.dtype.name in BLOCKS:
            bits = codes.view(np.uint8) & 15  # NumPy holds one code to a byte
            self.add(f"{name}.codes", bits[:, 0::2] | (bits[:, 1::2] << 4))
            stored = self.table[f"{name}.codes"]
            self.table[f"{name}.codes"] = replace(stored, dtype=codes.dtype.name, shape=codes.shape)
        else:
            self.add(f"{name}.codes", codes)
        self.add(f"{name}.scales", scales)
        if scale is not None:
            self.add(f"{name}.scale", scale)


def quantise(weight: NDArray[np.float32], kind: str, compute: DTypeLike) -> tuple[NDArray, NDArray, NDArray | None]:
    """Codes [N, K], scales [N] or [N, K / block] and, for nvfp4, the number that its scales are multiplied with."""
    top, code = _CODES[kind]
    rows, columns = weight.shape
    block = BLOCKS.get(np.dtype(code).name)
    blocks = weight.reshape(rows, -1, block or columns)
    wanted = np.abs(blocks).max(axis=-1) / top
    scale = None
    if kind == "nvfp4":
        scale = np.asarray(_positive(wanted.max(keepdims=True)[0] / 448), compute)
        scales = (wanted / scale.astype(np.float32)).astype(ml_dtypes.float8_e4m3fn)
        used = scales.astype(np.float32) * scale.astype(np.float32)
    else:
        scales = _positive(wanted).astype(compute)
        used = scales.astype(np.float32)
    numbers = np.clip(blocks / np.where(used > 0, used, 1)[..., None], -top, top)
    codes = (np.rint(numbers) if kind in ("int8", "int4") else numbers).astype(code)
    return codes.reshape(rows, columns), scales if block else scales[:, 0], scale


def _positive(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """No scale may vanish in half precision, not even that of a row of zeros."""
    return np.maximum(scales, np.float32(2.0**-24))
