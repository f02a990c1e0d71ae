"""Randomness keyed by what it decides, never by how often it was asked.

The target's draw at a position is y = argmax(log p + Gumbel(seed, position, token id)), so it depends on the law at
that position and on nothing else: not on the drafter, the tree or the number of passes ("Coupling without
communication and drafter-invariant speculative decoding", Daliri, Musco and Suresh, 2408.07978). The noise is
counter-based per token id, so it is computed on the support alone and by any device.

Draws that only one cycle may use (a drafter's own guesses, accept or reject coins, residuals) are keyed by that
cycle's anchor position and a slot. Anchors never repeat within a run, so no noise is used twice.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .sampling import Law

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Purpose(IntEnum):
    """What a number decides; part of its key, so that no two decisions share noise by accident."""

    TARGET = 1  # the target's own token at a position
    DRAFT = 2  # an independent drafter's token
    ACCEPT = 3  # a coin that keeps or rejects a draft token
    RESIDUAL = 4  # the token that replaces a rejected one


class RandomSource(Protocol):
    """What a rule may ask for. The real stream answers by hashing; a test may answer by enumerating every outcome."""

    def draw(self, law: Law, purpose: Purpose, position: int, slot: int = 0) -> int:
        """A token from ``law``."""

    def accepts(self, probability: float, purpose: Purpose, position: int, slot: int = 0) -> bool:
        """True with ``probability`` (values outside 0 … 1 count as the nearest end)."""


class RandomStream:
    """The run's stream: a pure function of (seed, purpose, position, slot, token id)."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def uniforms(self, ids: NDArray[np.int64], purpose: Purpose, position: int, slot: int = 0) -> NDArray[np.float64]:
        """One number in the open interval (0, 1) per token id, float64 [m], each of 53 random bits."""
        key = np.array([self._seed], dtype=np.uint64)
        for part in (purpose, position, slot):
            key = _mix(key + _GOLDEN * np.array([part + 1], dtype=np.uint64))  # arrays wrap silently, as hashing wants
        bits = _mix(key + _GOLDEN * (ids.astype(np.uint64) + np.uint64(1)))
        uniforms: NDArray[np.float64] = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        return uniforms

    def draw(self, law: Law, purpose: Purpose, position: int, slot: int = 0) -> int:
        return int(law.ids[np.argmax(self.scores(law, purpose, position, slot))])

    def scores(self, law: Law, purpose: Purpose, position: int, slot: int = 0) -> NDArray[np.float64]:
        """Gumbel-max in its exponential form: p / E with E ~ Exp(1) has the same argmax as log p + Gumbel."""
        if len(law.ids) == 1:
            return np.ones(1)
        uniforms = self.uniforms(law.ids, purpose, position, slot)
        scores: NDArray[np.float64] = law.probabilities / -np.log(uniforms)
        return scores

    def accepts(self, probability: float, purpose: Purpose, position: int, slot: int = 0) -> bool:
        return bool(self.uniforms(np.zeros(1, dtype=np.int64), purpose, position, slot)[0] < probability)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
