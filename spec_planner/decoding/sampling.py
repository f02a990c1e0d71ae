"""The one definition of p: how logits become the law a token is drawn from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_BLOCK = 64  # logits whose peak is taken first, where few of many are wanted


@dataclass(frozen=True)
class SamplingParams:
    """How to sample. The order is fixed: allowed tokens, temperature, top-k, top-p.

    Raises:
        ValueError: a value is out of range.
    """

    temperature: float = 0.0  # 0: greedy, ties to the lowest id
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # keep the fewest most likely tokens whose mass reaches top_p
    seed: int = 0  # with (seed, position) fixed, the target's draw is fixed

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be a finite number of at least 0, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0 (0 turns it off), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be between 0 and 2^63 − 1, got {self.seed}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


class NumericError(ArithmeticError):
    """A model produced logits that define no law."""


@dataclass(frozen=True)
class Law:
    """A probability law over token ids, stored on its support only.

    Attributes:
        ids: int64 [m], strictly ascending.
        probabilities: float64 [m], each above 0, summing to 1.
    """

    ids: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    @staticmethod
    def point(token: int) -> Law:
        return Law(np.array([token], dtype=np.int64), np.ones(1))

    @staticmethod
    def of(weights: ArrayLike) -> Law:
        """From non-negative weights over the whole vocabulary [V], not all zero."""
        dense = np.asarray(weights, dtype=np.float64)
        ids = np.flatnonzero(dense)
        total = dense[ids].sum()
        if np.any(dense < 0) or not (np.isfinite(total) and total > 0):
            raise NumericError("weights of a law must be finite, non-negative and not all zero")
        return Law(ids, dense[ids] / total)

    @staticmethod
    def from_logits(
        logits: NDArray[np.float32], sampling: SamplingParams, allowed: NDArray[np.bool_] | None = None
    ) -> Law:
        """p from logits [V] under ``sampling``; ``allowed`` [V] restricts the vocabulary first.

        Raises:
            NumericError: a logit is NaN or +inf, or no token is allowed.
        """
        # Arithmetic is in float64, on the tokens that can come out only: comparing needs no wider type.
        values = np.asarray(logits)
        allowed_ids = None if allowed is None else np.flatnonzero(allowed)
        if allowed_ids is not None:
            values = values[allowed_ids]
        best = int(values.argmax()) if len(values) else -1
        highest = float(values[best]) if len(values) else -math.inf
        if not math.isfinite(highest):  # the first NaN counts as the highest
            reason = "no token is allowed" if highest == -math.inf else "a logit is NaN or +inf"
            raise NumericError(f"the logits define no law: {reason}")
        if sampling.greedy:
            return Law.point(best if allowed_ids is None else int(allowed_ids[best]))
        ids: NDArray[np.int64]
        if 0 < sampling.top_k < len(values):
            kept = _top_k(values, sampling.top_k)
            values, ids = values[kept], kept if allowed_ids is None else allowed_ids[kept]
        else:
            ids = np.arange(len(values)) if allowed_ids is None else allowed_ids
        weights = values.astype(np.float64)
        # (x − max) / T, not x / T − max / T: no overflow however small the temperature.
        weights -= highest
        if sampling.temperature != 1.0:
            weights /= sampling.temperature
        np.exp(weights, out=weights)
        if sampling.top_p < 1.0:
            kept = _top_p(values, weights, sampling.top_p)
            ids, weights = ids[kept], weights[kept]
        support = weights > 0
        if not support.all():
            ids, weights = ids[support], weights[support]
        weights /= weights.sum()
        return Law(ids, weights)

    def probability(self, token: int) -> float:
        index = int(np.searchsorted(self.ids, token))
        return float(self.probabilities[index]) if index < len(self.ids) and self.ids[index] == token else 0.0

    def probabilities_of(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Probabilities of ascending ``ids``, 0 off the support."""
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[places] == ids, self.probabilities[places], 0.0)

    def dense(self, vocabulary_size: int) -> NDArray[np.float64]:
        full = np.zeros(vocabulary_size)
        full[self.ids] = self.probabilities
        return full

    def excess(self, other: Law, scale: float = 1.0) -> NDArray[np.float64]:
        """max(scale · self − other, 0) on this law's support: the mass the other law does not cover."""
        result: NDArray[np.float64] = np.maximum(scale * self.probabilities - other.probabilities_of(self.ids), 0.0)
        return result

    def reweighted(self, weights: NDArray[np.float64]) -> Law:
        """The law proportional to ``weights`` [m] on this support; this law itself where rounding left no weight."""
        support = weights > 0
        total = weights.sum()
        return Law(self.ids[support], weights[support] / total) if total > 0 else self

    def without(self, token: int) -> Law | None:
        """This law given that the draw is not ``token``; None if nothing else is possible."""
        kept = self.ids != token
        total = self.probabilities[kept].sum()
        return Law(self.ids[kept], self.probabilities[kept] / total) if total > 0 else None


def _top_k(values: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Ids of the k < m highest of ``values`` [m], ascending; a tie at the edge goes to the lowest ids."""
    blocks = values[: len(values) // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
    if k < len(blocks):
        # The k blocks with the highest peaks hold k values of at least the lowest of these peaks: look no lower.
        candidates = np.flatnonzero(values >= np.partition(blocks.max(axis=1), -k)[-k])
    else:
        candidates = np.arange(len(values))
    high = values[candidates]
    threshold = np.partition(high, -k)[-k]
    above = candidates[high > threshold]
    ties = candidates[high == threshold][: k - len(above)]
    return np.sort(np.concatenate((above, ties)))


def _top_p(values: NDArray[Any], weights: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Indices, ascending, of the fewest heaviest entries whose share reaches ``top_p``; ties by lowest index.

    Ordered by the logits, since two that differ by next to nothing may have the same weight.
    """
    order = np.argsort(-values, kind="stable")
    shares = np.cumsum(weights[order])
    count = int(np.searchsorted(shares, top_p * shares[-1])) + 1
    return np.sort(order[:count])
