"""Exact output laws by visiting every outcome of every random decision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from spec_planner.decoding.sampling import Law


class _Branching:
    """A ``RandomSource`` that replays a script of decisions, then takes the first outcome and notes the others."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self.script, self.weight = script, 1.0
        self.taken: list[int] = []
        self.unexplored: list[tuple[int, ...]] = []

    def draw(self, law: Law, purpose, position: int, slot: int = 0) -> int:
        return int(law.ids[self._choose(law.probabilities)])

    def accepts(self, probability: float, purpose, position: int, slot: int = 0) -> bool:
        kept = min(max(probability, 0.0), 1.0)
        return self._choose(np.array([kept, 1.0 - kept])) == 0

    def _choose(self, probabilities) -> int:
        possible = np.flatnonzero(np.asarray(probabilities) > 0).tolist()
        step = len(self.taken)
        if step < len(self.script):
            choice = self.script[step]
        else:
            choice = possible[0]
            self.unexplored += [(*self.taken, other) for other in possible[1:]]
        self.taken.append(choice)
        self.weight *= float(probabilities[choice])
        return choice


def outcome_law(run: Callable[[_Branching], tuple[int, ...]]) -> dict[tuple[int, ...], float]:
    """Probability of every result of ``run``, which takes all its randomness from the source it is given."""
    law: dict[tuple[int, ...], float] = defaultdict(float)
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        source = _Branching(scripts.pop())
        law[run(source)] += source.weight
        scripts += source.unexplored
    return dict(law)


def total_variation(a: dict, b: dict) -> float:
    return sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys()) / 2
