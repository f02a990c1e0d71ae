"""Inexact acceptance rules: no longer the target's own words. Opt-in by name, marked ``exact = False`` everywhere.

Nothing imports this module but the factory, and only when such a rule is asked for.
"""

from __future__ import annotations

import math

import numpy as np

from .accept import Acceptance, Rule, TargetLaws
from .draft_tree import DraftTree, Proposal
from .random_stream import Purpose, RandomSource
from .sampling import Law


def typical_acceptance(epsilon: float = 0.09, alpha: float = 0.3) -> Rule:
    """Medusa's typical acceptance (2401.10774): keep x if p(x) > min(ε, α · exp(−H(p))), H the entropy of p.

    Of the accepted branches the longest wins, then the likeliest. The output favours likely tokens: it does **not**
    follow the target's law.

    Raises:
        ValueError: ε or α is outside (0, 1].
    """
    if not (0 < epsilon <= 1 and 0 < alpha <= 1):
        raise ValueError(f"typical acceptance needs 0 < epsilon, alpha ≤ 1, got {epsilon} and {alpha}")

    def threshold(p: Law) -> float:
        entropy = -float(np.sum(p.probabilities * np.log(p.probabilities)))
        return min(epsilon, alpha * math.exp(-entropy))

    def judge(tree: DraftTree, laws: TargetLaws, random: RandomSource, position: int) -> Acceptance:
        best: tuple[int, ...] = (0,)
        best_score = 0.0
        waiting = [(best, best_score)]
        while waiting:
            path, score = waiting.pop()
            if (len(path), score) > (len(best), best_score):
                best, best_score = path, score
            if not tree.children[path[-1]]:
                continue
            p = laws(path[-1])
            least = threshold(p)
            for child in tree.children[path[-1]]:
                probability = p.probability(int(tree.tokens[child]))
                if probability > least:
                    waiting.append(((*path, child), score + math.log(probability)))
        token = random.draw(laws(best[-1]), Purpose.TARGET, position + len(best))
        return Acceptance(best, token, "correction" if tree.children[best[-1]] else "bonus")

    return Rule("relaxed-typical", judge, frozenset(Proposal), Proposal.POINT_MASS, exact=False)


RELAXED_RULES = {"relaxed-typical": typical_acceptance}
