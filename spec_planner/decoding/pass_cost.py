"""What a pass over the weights costs here, learnt from the passes themselves."""

from __future__ import annotations

_SHARE = 0.2  # weight of the newest pass in the running mean


class PassCost:
    """Seconds of a pass by its number of rows: a running mean per number seen, and a guess in between.

    One object serves all runs on a target, so that a run knows its costs from the first pass on.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def observe(self, rows: int, seconds: float) -> None:
        before = self._seconds.get(rows, seconds)
        self._seconds[rows] = before + _SHARE * (seconds - before)

    def of(self, rows: int) -> float:
        """Expected seconds of a pass over ``rows``; 0 while nothing is known.

        A width never seen costs what the next wider one did, and beyond the widest in proportion to its rows.
        """
        if not self._seconds:
            return 0.0
        wider = [known for known in self._seconds if known >= rows]
        if wider:
            return self._seconds[min(wider)]
        widest = max(self._seconds)
        return self._seconds[widest] * rows / widest
