"""A sequential test that emitted tokens follow the target's law, for rules that promise the law and not the tokens.

Each emitted token becomes one number: its place in the cumulative law p of the target at that position, spread
uniformly over its own probability (Rosenblatt's transform). Tokens are ranked by q / p, the drafter's law over the
target's, because that is the direction in which a wrong rule or a wrong q errs; both laws are functions of the text so
far, so the ranking is fixed before the token is drawn. If the output follows p, the numbers are independent and
uniform, whatever the prompts. The evidence against that is a Bayes factor: equal bins against a mixture of unequal
ones, from far off to barely off. It is a test martingale, so one may stop whenever one likes: the chance that it ever
exceeds 1 / α under the true law is at most α (Ville's inequality).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..decoding.sampling import Law

BINS = 16
_PRIORS = (1.0, 10.0, 100.0, 1000.0)  # Dirichlet weight per bin: the larger, the closer to equal
ALPHA = 1e-6  # chance that a true law is ever called false


class LawTest:
    """Feed ``add`` with every emitted token; ``rejected`` once the evidence is overwhelming."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = np.random.default_rng(seed)
        self.counts: NDArray[np.int64] = np.zeros(BINS, dtype=np.int64)
        self.largest = 0.0  # log Bayes factor, its highest so far

    def add(self, law: Law, token: int, draft_law: Law | None = None) -> None:
        """``token`` was emitted where the target's law is ``law``; without a draft law, likelier tokens rank first."""
        drafted = draft_law.probabilities_of(law.ids) / law.probabilities if draft_law else law.probabilities
        order = np.lexsort((law.ids, -law.probabilities, -drafted))
        place = int(np.flatnonzero(law.ids[order] == token)[0]) if token in law.ids else -1
        if place < 0:
            self.largest = math.inf  # an impossible token needs no statistics
            return
        ranked = law.probabilities[order]
        at = float(ranked[:place].sum()) + float(self._generator.random()) * float(ranked[place])
        self.counts[min(int(at * BINS), BINS - 1)] += 1
        self.largest = max(self.largest, log_bayes_factor(self.counts))

    @property
    def tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def rejected(self) -> bool:
        return self.largest >= -math.log(ALPHA)


def log_bayes_factor(counts: NDArray[np.int64]) -> float:
    """Unequal bins, averaged over symmetric Dirichlet priors, against equal bins; in nats."""
    total = int(counts.sum())
    factors = []
    for weight in _PRIORS:
        factor = math.lgamma(BINS * weight) - math.lgamma(total + BINS * weight) + total * math.log(BINS)
        factors.append(factor + sum(math.lgamma(count + weight) - math.lgamma(weight) for count in counts.tolist()))
    highest = max(factors)
    return highest + math.log(sum(math.exp(factor - highest) for factor in factors) / len(factors))


def detectable_shift(tokens: int, power: float = 0.99, trials: int = 200) -> float | None:
    """Smallest share of probability moved between bins that ``tokens`` tokens reveal with ``power``; None if none.

    By simulation: the share is taken evenly from half of the bins and given to the other half.
    """
    generator = np.random.default_rng(1)
    for shift in (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3):
        law = np.full(BINS, 1 / BINS)
        law[: BINS // 2] += shift / (BINS // 2)
        law[BINS // 2 :] -= shift / (BINS // 2)
        found = sum(log_bayes_factor(generator.multinomial(tokens, law)) >= -math.log(ALPHA) for _ in range(trials))
        if found >= power * trials:
            return shift
    return None
