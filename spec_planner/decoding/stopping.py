"""When a run ends, and where an accepted stretch of tokens is cut."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Finish = Literal["eos", "stop_sequence", "max_tokens", "context_full", "deadline", "cancelled"]


@dataclass(frozen=True)
class Stopping:
    """The stop conditions of one run.

    Attributes:
        max_tokens: emit at most this many tokens, at least 1.
        stop_ids: a token that ends the run; it is emitted as the last one.
        deadline: on ``clock``'s scale, in seconds; a pass that would not end before it is not begun.
        cancelled: asked before every pass.
        scan: given the newly emitted tokens, once and in order; how many of them to keep if a stop sequence of text
            ends within them, else None.
    """

    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    deadline: float | None = None
    cancelled: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic
    scan: Callable[[Sequence[int]], int | None] = lambda tokens: None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")

    def interrupted(self, needed: float = 0.0) -> Finish | None:
        """Why no pass of ``needed`` seconds may start, if so. A cancel outranks a deadline."""
        if self.cancelled():
            return "cancelled"
        return "deadline" if self.time_left() <= needed else None

    def time_left(self) -> float:
        """Seconds until the deadline; infinite without one."""
        return math.inf if self.deadline is None else self.deadline - self.clock()

    def cut(self, tokens: Sequence[int], already_emitted: int) -> tuple[tuple[int, ...], Finish | None]:
        """The part of ``tokens`` to emit after ``already_emitted`` others, and the reason if the run ends with it."""
        room = self.max_tokens - already_emitted
        finish: Finish | None = "max_tokens" if len(tokens) >= room else None
        kept = tuple(tokens[:room])
        for index, token in enumerate(kept):
            if token in self.stop_ids:
                kept, finish = kept[: index + 1], "eos"
                break
        found = self.scan(kept)
        return (kept, finish) if found is None else (kept[:found], "stop_sequence")
