"""How long and how fast to learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .run_state import Progress


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to learn. The rate rises over ``warmup`` of the run, then falls as a cosine to 0.

    Attributes:
        steps: optimizer steps; None for no limit.
        minutes: of training time; None for no limit. A run with both ends with whichever comes first.
        packs_per_step: over all processes.
    """

    learning_rate: float
    packs_per_step: int
    steps: int | None = None
    minutes: float | None = None
    warmup: float = 0.03
    clip: float = 1.0

    def done(self, progress: Progress) -> float:
        """Share of the run that is behind it, 0..1."""
        by_steps = progress.step / self.steps if self.steps else 0.0
        by_time = progress.seconds / (60 * self.minutes) if self.minutes else 0.0
        return min(1.0, max(by_steps, by_time))

    def rate(self, done: float) -> float:
        if done < self.warmup:
            return self.learning_rate * max(done / self.warmup, 0.02)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (done - self.warmup) / (1 - self.warmup)))


def make_schedule(
    learning_rate: float,
    packs_per_step: int,
    processes: int,
    packs_in_epoch: int,
    steps: int | None,
    epochs: float | None,
    minutes: float | None,
    usual_epochs: float,
) -> Schedule:
    """From what the user chose; ``usual_epochs`` where no end is given."""
    per_step = -(-packs_per_step // processes) * processes  # every process has work in every step
    if steps is None and (epochs is not None or minutes is None):
        steps = max(1, math.ceil((epochs or usual_epochs) * packs_in_epoch / per_step))
    return Schedule(learning_rate, per_step, steps, minutes)


def lowered(rates: Sequence[Sequence[float]]) -> dict[str, float]:
    """For a card: the rates of the parts of a run that was continued with a lower one (``Progress.rates``)."""
    return {f"learning_rate before step {step + 1:.0f}": rate for step, rate in rates}
