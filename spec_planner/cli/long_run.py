"""What verbs that run for hours share: one line of progress, and a Ctrl-C that saves first."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator


@contextlib.contextmanager
def interrupts() -> Iterator[list[bool]]:
    """The first Ctrl-C (or SIGTERM) asks the run to save and end; the second one ends it at once."""
    asked = [False]

    def ask(number: int, frame: object) -> None:
        if asked[0]:
            raise KeyboardInterrupt
        asked[0] = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Progress:
    """One line on standard error that is rewritten on a terminal, and said every quarter minute elsewhere.

    What is said at a share of 0, the begin of something, stays.
    """

    def __init__(self, speaks: bool) -> None:
        self._started = time.monotonic()
        self._said, self._from = float("-inf"), 0.0
        self._speaks, self._rewrites = speaks, sys.stderr.isatty()
        self._waiting = ""

    def say(self, line: str) -> None:
        if self._speaks:
            print(line, file=sys.stderr, flush=True)

    def update(self, share: float, line: str) -> None:
        if not self._speaks:
            return
        now = time.monotonic()
        if share == 0 or line.startswith("continuing"):
            self._started, self._from = now, share  # a rate is taken from this sitting's training only
        gained = share - self._from
        left = f", {_duration((now - self._started) * (1 - share) / gained)} left" if gained > 0 and share < 1 else ""
        text = f"{share:4.0%}  {line}{left}"
        if self._rewrites:
            print(f"\r\x1b[K{text}", end="" if share else "\n", file=sys.stderr, flush=True)
        elif share in (0, 1) or now - self._said >= 15:
            self.say(text)
            self._said = now

    def end(self) -> None:
        if self._rewrites and self._speaks:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
