"""How drafters draw under each kind of rule. One object per run; the proposal label is set here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .accept import Rule
from .contracts import Constraint
from .draft_tree import DraftTree, Proposal
from .random_stream import Purpose, RandomSource
from .sampling import Law, SamplingParams


class RunDraftSampler:
    """The ``DraftSampler`` of one run.

    Greedy runs take the likeliest token. At temperature > 0 the rule decides: coupled drafts use the target's own
    position-keyed noise, which makes agreement likely wherever q resembles p; sampled drafts use noise of their own,
    keyed by the cycle's anchor, because a rule that reads q needs draws independent of everything it decides.
    """

    def __init__(
        self, rule: Rule, sampling: SamplingParams, random: RandomSource, constraint: Constraint | None = None
    ) -> None:
        self._sampling, self._random, self._constraint = sampling, random, constraint
        self.proposal = Proposal.POINT_MASS if sampling.greedy else rule.drafting
        self.anchor_position = 0  # set by the loop at the start of each cycle
        self.said: Sequence[int] = ()  # the answer up to the anchor, anchor excluded; likewise

    def law(self, logits: NDArray[np.float32], branch: Sequence[int]) -> Law:
        allowed = self._constraint.allowed([*self.said, *branch]) if self._constraint else None
        return Law.from_logits(logits, _RANKING if self._sampling.greedy else self._sampling, allowed)

    def pick(self, law: Law, position: int, slot: int) -> int:
        if self.proposal is Proposal.POINT_MASS:
            return int(law.ids[np.argmax(law.probabilities)])
        if self.proposal is Proposal.COUPLED:
            return self._random.draw(law, Purpose.TARGET, position)
        return self._random.draw(law, Purpose.DRAFT, self.anchor_position, slot)

    def pick_siblings(self, law: Law, count: int, position: int, slot: int) -> list[int]:
        """The likeliest tokens, or draws with or without replacement, or, coupled, those likeliest to be the target's.

        Striking the best of one noise vector leaves the next best (Gumbel-max list sampling).
        """
        tokens: list[int] = []
        rest: Law | None = law
        while rest is not None and len(tokens) < count:
            tokens.append(self.pick(rest, position, slot + len(tokens)))
            if self.proposal is not Proposal.SAMPLED_IID:
                rest = rest.without(tokens[-1])
        return tokens

    def tree(self, tokens: Sequence[int], parents: Sequence[int], laws: Sequence[Law | None]) -> DraftTree:
        recorded = tuple(laws) if self.proposal.needs_laws else ()
        return DraftTree(
            np.asarray(tokens, dtype=np.int64), np.asarray(parents, dtype=np.int64), self.proposal, recorded
        )


# A greedy run's draft law only ranks tokens; more siblings than this no tree gives one node.
_RANKING = SamplingParams(temperature=1.0, top_k=32)
