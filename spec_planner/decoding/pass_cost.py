"""What a pass over the weights costs here, learnt from the passes themselves."""

from __future__ import annotations

from collections import deque
from statistics import median

import numpy as np
from numpy.typing import NDArray

_REMEMBERED = 5


class PassCost:
    """Seconds of a pass by its number of rows: the least of the last few, and a guess for numbers never seen.

    The least, because a cost believed too high would end goals that had time. One object serves all runs on a target,
    so that a run knows its costs from the first pass on.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}

    def observe(self, rows: int, seconds: float) -> None:
        self._seconds.setdefault(rows, deque(maxlen=_REMEMBERED)).append(seconds)

    def of(self, rows: int) -> float:
        """Expected seconds of a pass over ``rows``; 0 while nothing is known.

        A width never seen costs what the next wider one did, and beyond the widest in proportion to its rows.
        """
        if not self._seconds:
            return 0.0
        wider = [known for known in self._seconds if known >= rows]
        nearest = min(wider) if wider else max(self._seconds)
        return min(self._seconds[nearest]) * (1.0 if wider else rows / nearest)

    def doubt(self) -> None:
        """Believe half of it: a pass was not begun because of its cost, and what is not run is not measured.

        Without this, one slow pass (a swapped-out page, a debugger) would end every later goal before it began.
        """
        for seconds in self._seconds.values():
            for index, value in enumerate(seconds):
                seconds[index] = value / 2


class CostCurve:
    """Seconds by size: the median of the last few measurements at each size, and straight lines in between.

    A smaller size costs at most what a larger one was measured to cost: a slow measurement that is never repeated,
    because it made its size unattractive, is overruled by faster ones at its larger neighbours.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._sizes = self._costs = np.zeros(0)

    def observe(self, size: int, seconds: float) -> None:
        self._seconds.setdefault(size, deque(maxlen=_REMEMBERED)).append(seconds)
        sizes = sorted(self._seconds)
        medians = [median(self._seconds[known]) for known in sizes]
        self._sizes = np.array(sizes, dtype=np.float64)
        self._costs = np.minimum.accumulate(medians[::-1])[::-1]

    def knows(self, size: int) -> bool:
        return size in self._seconds

    def at(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Expected seconds at ``sizes`` [n], 0 while nothing is known.

        Beyond the sizes measured it is what the nearest one costs: too little is found out by trying, too much never.
        """
        if not len(self._sizes):
            return np.zeros(len(sizes))
        seconds: NDArray[np.float64] = np.interp(sizes, self._sizes, self._costs)
        return seconds
