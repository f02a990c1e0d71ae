"""The small inputs of one pass of an exported decoder, as arrays made once per shape and written anew each time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .passes import PassRows


class PassInputs:
    """``arrays`` by their names in the graph: ``width`` rows, ``scored`` of them scored, that see ``extent`` slots."""

    def __init__(self, width: int, scored: int, extent: int) -> None:
        self.arrays = {
            "ids": np.zeros(width, dtype=np.int64),
            "positions": np.zeros(width, dtype=np.int64),
            "start": np.zeros(1, dtype=np.int64),
            "mask": np.zeros((width, extent), dtype=np.bool_),
            "rows": np.zeros(scored, dtype=np.int64),
        }

    def write(self, rows: PassRows, scored: Sequence[int]) -> None:
        self.arrays["ids"][:] = rows.ids
        self.arrays["positions"][:] = rows.positions
        self.arrays["start"][0] = rows.start
        self.arrays["mask"][:] = rows.mask
        self.arrays["rows"][:] = scored
