"""Weight-only quantisation in blocks, in the layout of ONNX Runtime's MatMulNBits and GatherBlockQuantized.

A row of a weight matrix [N, K] is cut into blocks of 32 along K; each block has its own scale and, at 4 bits, its own
zero point: weight ≈ (code − zero point) · scale. Codes are unsigned. At 8 bits the zero point is always 128, at 4 bits
it lets the 16 codes span the block's own range from least to greatest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
_ROWS_AT_ONCE = 4096
_PACKED_ROWS = 16  # ONNX Runtime packs float32 matrices this many outputs at a time
# Bits of (a layer's matrices, embedding and head); None for float32. Embedding and head decide most about quality and
# cost little, a lookup and one product per pass: they keep 8.
PRECISION_BITS: dict[str, tuple[int | None, int | None]] = {"float32": (None, None), "int8": (8, 8), "int4": (4, 8)}


def stored_precision(precision: str) -> str:
    """How the exported weights of a target of ``precision`` are stored; to bfloat16 they are rounded when loaded."""
    return "float32" if precision == "bfloat16" else precision


@dataclass(frozen=True)
class Blocks:
    """A quantised matrix [N, K] of ``bits`` 4 or 8.

    Attributes:
        codes: uint8 [N, blocks, BLOCK · bits / 8]; at 4 bits the even one of two neighbours is the low half.
        scales: float32 [N, blocks].
        zero_points: uint8 [N, ⌈blocks / 2⌉], packed like codes; None at 8 bits.
    """

    bits: int
    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zero_points: NDArray[np.uint8] | None


def quantise(weight: NDArray[np.float32], bits: int) -> Blocks:
    """Round ``weight`` [N, K] to the nearest codes; a last, shorter block is filled up with zeros."""
    # Rows are independent, and the work takes several times their size: an embedding's would be gigabytes at once.
    parts = [_quantise(weight[start : start + _ROWS_AT_ONCE], bits) for start in range(0, len(weight), _ROWS_AT_ONCE)]
    codes, scales = (np.concatenate([getattr(part, name) for part in parts]) for name in ("codes", "scales"))
    zero_points = [part.zero_points for part in parts if part.zero_points is not None]
    return Blocks(bits, codes, scales, np.concatenate(zero_points) if zero_points else None)


def _quantise(weight: NDArray[np.float32], bits: int) -> Blocks:
    rows, columns = weight.shape
    padded = np.pad(np.asarray(weight, np.float32), ((0, 0), (0, -columns % BLOCK)))
    blocks = padded.reshape(rows, -1, BLOCK)
    if bits == 8:
        scales = np.abs(blocks).max(axis=-1) / 127
        codes = np.rint(blocks / _divisor(scales)) + 128
        return Blocks(8, codes.astype(np.uint8), scales, None)
    low, high = np.minimum(blocks.min(axis=-1), 0), np.maximum(blocks.max(axis=-1), 0)  # so that 0 has a code
    scales = (high - low) / 15
    zero_points = np.clip(np.rint(-low / _divisor(scales)[..., 0]), 0, 15)
    codes = np.clip(np.rint(blocks / _divisor(scales)) + zero_points[..., None], 0, 15)
    return Blocks(4, _pack(codes), scales, _pack(zero_points))


def matrix_bytes(rows: int, columns: int, bits: int | None) -> int:
    """What a matrix takes: codes, scales and zero points, or plain float32 where ``bits`` is None."""
    if bits is None:
        return 4 * rows * columns
    blocks = -(-columns // BLOCK)
    zero_points = -(-blocks // 2) if bits == 4 else 0
    return rows * (blocks * (BLOCK * bits // 8 + 4) + zero_points)


def packed_bytes(rows: int, columns: int, bits: int | None) -> int:
    """The copy of it that ONNX Runtime's kernels multiply with."""
    if bits is None:
        return 4 * columns * -(-rows // _PACKED_ROWS) * _PACKED_ROWS
    # Codes, and for each block its scale and the product of scale and sum that its zero point is multiplied with.
    return rows * -(-columns // BLOCK) * (BLOCK * bits // 8 + 8)


def dequantise(blocks: Blocks, columns: int) -> NDArray[np.float32]:
    """The matrix [N, columns] that the codes stand for."""
    rows, count = blocks.scales.shape
    codes = blocks.codes if blocks.bits == 8 else _unpack(blocks.codes)
    zeros: NDArray[np.float32] | int = 128
    if blocks.zero_points is not None:
        zeros = _unpack(blocks.zero_points)[:, :count, None].astype(np.float32)
    weight = (codes.reshape(rows, count, BLOCK).astype(np.float32) - zeros) * blocks.scales[..., None]
    return np.ascontiguousarray(weight.reshape(rows, -1)[:, :columns])


def _divisor(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """``scales`` [N, blocks, 1], with 1 for those of blocks that are all zero."""
    return np.where(scales > 0, scales, np.float32(1))[..., None]


def _pack(codes: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Two 4-bit codes to a byte along the last axis, the first in the low half."""
    whole = np.pad(codes.astype(np.uint8), [(0, 0)] * (codes.ndim - 1) + [(0, codes.shape[-1] % 2)])
    return whole[..., 0::2] | (whole[..., 1::2] << 4)


def _unpack(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(*packed.shape[:-1], -1)
