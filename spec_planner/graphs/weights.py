"""The weights of an exported decoder: one binary file and a table of what lies where in it.

Graphs name tensors; the file is mapped into memory by whoever runs them. Several graphs (all layers, the first few)
and several views of one tensor (the head as rows to multiply with, the embedding as rows to look up) share its bytes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from .block_quant import Blocks, quantise

LAYOUT = 2  # raise when the exported graph or its weights change, so that old ones are left behind
WEIGHTS_FILE, TABLE_FILE = "weights.bin", "weights.json"
_ALIGNMENT = 4096  # a page, so that the file can be mapped


class DamagedGraph(ValueError):
    """An exported network's files are not what was written; the message says which, and what to do."""


@dataclass(frozen=True)
class Stored:
    """Where one tensor lies: ``dtype`` is NumPy's name, or that of ml_dtypes; offset and length in bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int

    @property
    def numpy_dtype(self) -> np.dtype:
        try:
            return np.dtype(self.dtype)
        except TypeError:  # bfloat16, 8-bit floats, 4-bit numbers
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, self.dtype))


class WeightWriter:
    """Writes tensors one after another, so that a model larger than memory can be exported."""

    def __init__(self, directory: Path, file: BinaryIO) -> None:
        self._directory, self._file = directory, file
        self.table: dict[str, Stored] = {}

    def add(self, name: str, array: NDArray) -> None:
        self._file.write(b"\0" * (-self._file.tell() % _ALIGNMENT))
        array = np.ascontiguousarray(array)
        self.table[name] = Stored(array.dtype.name, array.shape, self._file.tell(), array.nbytes)
        self._file.write(array.reshape(-1).view(np.uint8).data)  # not all types can be written as they are

    def add_matrix(self, name: str, weight: NDArray[np.float32], bits: int | None) -> None:
        """A weight [N, K] as it is, or as ``name.codes``, ``name.scales`` and, at 4 bits, ``name.zero_points``."""
        if bits is None:
            self.add(name, weight)
            return
        blocks = quantise(weight, bits)
        self.add(f"{name}.codes", blocks.codes)
        self.add(f"{name}.scales", blocks.scales)
        if blocks.zero_points is not None:
            self.add(f"{name}.zero_points", blocks.zero_points)

    def finish(self) -> None:
        entries = {name: asdict(stored) for name, stored in self.table.items()}
        (self._directory / TABLE_FILE).write_text(json.dumps(entries, indent=0) + "\n", encoding="utf-8")


class WeightFile:
    """The weights of an exported network, read back."""

    def __init__(self, directory: Path) -> None:
        """Raises ``DamagedGraph`` when their table cannot be used."""
        self._path, table = directory / WEIGHTS_FILE, directory / TABLE_FILE
        try:
            entries = json.loads(table.read_text(encoding="utf-8"))
            self.table = {name: Stored(**{**entry, "shape": tuple(entry["shape"])}) for name, entry in entries.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedGraph(
                f"{table} cannot be used ({error}): delete {directory}, and it will be exported again"
            ) from error

    def read(self, name: str) -> NDArray:
        """A tensor, mapped read-only rather than copied."""
        stored = self.table[name]
        return np.memmap(self._path, stored.numpy_dtype, "r", stored.offset, stored.shape)

    def read_blocks(self, name: str) -> Blocks:
        """A matrix that was written with ``bits``."""
        codes, scales = self.read(f"{name}.codes"), self.read(f"{name}.scales")
        zero_points = self.read(f"{name}.zero_points") if f"{name}.zero_points" in self.table else None
        return Blocks(4 if zero_points is not None else 8, codes, scales, zero_points)

    @property
    def precision(self) -> str:
        """Of the matrices: "float32", or where they are quantised "int8" or "int4"."""
        if not any(name.endswith(".codes") for name in self.table):
            return "float32"
        return "int4" if any(name.endswith(".zero_points") for name in self.table) else "int8"

    @property
    def num_bytes(self) -> int:
        return sum(stored.length for stored in self.table.values())
