"""What a pass over the weights costs here, learnt from the passes themselves."""

from __future__ import annotations

from collections import deque

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
