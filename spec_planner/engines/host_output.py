"""What a pass of an exported decoder puts out, in main memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..decoding.sampling import NumericError


class HostOutput:
    """A ``TargetOutput``: logits [n, V] and tapped states, each [width, d]."""

    def __init__(self, logits: NDArray[np.float32], hidden: Sequence[NDArray[np.float32]]) -> None:
        self._logits, self._hidden = logits, hidden

    def argmax(self) -> NDArray[np.int64]:
        best = self._logits.argmax(axis=-1)  # the first of equal maxima, and a NaN above all
        if not np.isfinite(self._logits[np.arange(len(best)), best]).all():
            raise NumericError("the target's logits are not finite: use float32, or another checkpoint")
        return best

    def logits_row(self, node: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self._logits[node].copy()
        return row

    def features(self, path: Sequence[int]) -> NDArray[np.float32] | None:
        """[len(path), layers, d] in the order tapped; None where nothing was."""
        if not self._hidden:
            return None
        rows = list(path)
        return np.stack([state[rows] for state in self._hidden], axis=1)
