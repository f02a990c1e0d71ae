"""A draft length that pays: expected tokens against measured seconds, learnt from the cycles before.

With a stem of f forced tokens, n drafted tokens behind it are worth

    tokens(n)  = s · o · (a1 + a1 a2 + … + a1 … an)      s: the stem is kept   o: the drafter has an idea
                                                        ak: depth k is kept, the depths before it given
    seconds(n) = draft(n) + o · pass(1 + f + n) + (1 − o) · pass(1 + f)

and the n with the largest tokens(n) − rate · seconds(n) is taken, 0 for none, where ``rate`` is the tokens per second
of late. A ratio of tokens to seconds is largest exactly where this difference, at the best rate, is (Dinkelbach 1967);
and unlike the ratio, it stays right when cycles with long stems and cycles without take turns.

Acceptance changes with what is being said, so what has been ruled out is looked at again now and then: with a draft one
doubling longer than the present one, which goes on doubling while everything is accepted. Looks that change nothing
become rarer. Nothing here is random: the same measurements give the same choices.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .draft_budget import Cycle
from .pass_cost import CostCurve

_HOPE = 0.8  # acceptance believed before anything was measured: high enough to begin with drafting
_HOPE_WEIGHT = 4.0  # measurements that this belief counts for
_LIKENESS = 16.0  # measurements that count for what the depth before it says about a depth
_KEPT = 0.99  # of the weight of a measurement at the next: some 100 count
_STALE_WEIGHT = 8.0  # most that old measurements count for in a look
_RATE_KEPT = 0.99
_FIRST_LOOK, _RAREST_LOOK = 8, 1024  # cycles between looks
_LOOK_CYCLES = 3  # a look takes at least


class MeasuredBudget:
    """See the module's description. One object serves all runs of one drafter on one target.

    Args:
        most: longest draft, the stem included; at least 1.
        branching: drafts are trees. Then n counts nodes, few sizes are tried (one less than the powers of two), and
            each has acceptance figures of its own; a chain's longest draft tells about all shorter ones.
    """

    def __init__(self, most: int, branching: bool = False) -> None:
        if most < 1:
            raise ValueError(f"num_draft_tokens must be at least 1, got {most}; drafter 'none' turns drafting off")
        self._most = most
        doublings = {2**k - 1 for k in range(most.bit_length() + 1)}
        self._sizes = np.array(sorted(size for size in doublings | {most} if size <= most) if branching
                               else range(most + 1), dtype=np.int64)  # fmt: skip
        self._acceptance = [_Acceptance(most) for _ in self._sizes] if branching else [_Acceptance(most)]
        self._given = self._sizes.astype(np.float64)  # nodes that a draft of each size has, where it has any
        self._has_idea, self._stem_kept = _Share(), _Share()
        self._passes, self._drafts = CostCurve(), CostCurve()
        self._drafts.observe(0, 0.0)  # until measured
        self._tokens = self._seconds = 0.0
        # Indices of sizes: what pays best now, what is being looked at, and where the last look began.
        self._best, self._looked_at = 0, len(self._sizes)
        self._look: int | None = None
        self._looked = 0  # cycles of the look under way
        self._until_look = self._pause = _FIRST_LOOK

    @property
    def most(self) -> int:
        return self._most

    def choose(self, forced: int, limit: int) -> int:
        room = min(self._most, limit) - forced
        if room < 1:
            return min(self._most, limit, forced)
        if not self._passes.knows(1):
            return forced  # what plain decoding costs is what all is held against
        worth = self._worth(forced)
        self._settle_on(worth)
        possible = int(np.searchsorted(self._sizes, room, side="right"))
        index = int(np.argmax(worth[:possible])) if self._look is None else min(self._look, possible - 1)
        return forced + int(self._sizes[index])

    def learn(self, cycle: Cycle) -> None:
        self._tokens = _RATE_KEPT * self._tokens + cycle.accepted + 1
        self._seconds = _RATE_KEPT * self._seconds + cycle.draft_s + cycle.pass_s
        self._passes.observe(1 + cycle.forced + cycle.drafted, cycle.pass_s)
        self._drafts.observe(cycle.asked, cycle.draft_s)
        if cycle.forced:
            self._stem_kept.add(cycle.accepted >= cycle.forced)
        self._until_look -= 1
        if not cycle.asked:
            return
        self._has_idea.add(cycle.drafted > 0)
        if not cycle.drafted or cycle.accepted < cycle.forced:
            return  # it was not the draft that was judged
        index = int(np.searchsorted(self._sizes, cycle.asked))
        if index < len(self._sizes) and self._sizes[index] == cycle.asked:
            self._given[index] += (cycle.drafted - self._given[index]) / 4
        self._figures(min(index, len(self._sizes) - 1)).add(cycle.accepted - cycle.forced, cycle.asked)
        if self._look is not None:
            self._go_on_looking(cycle.whole)

    def time_pass(self, rows: int, seconds: float) -> None:
        self._passes.observe(rows, seconds)

    def describe(self) -> str:
        size = int(self._sizes[self._best])
        return f"{size} token{'' if size == 1 else 's'}" if size else "off"

    def _worth(self, forced: int) -> NDArray[np.float64]:
        """tokens − rate · seconds of every size."""
        idea = self._has_idea.value
        curves = [figures.expected() for figures in self._acceptance]
        kept = np.array([curves[min(index, len(curves) - 1)][size] for index, size in enumerate(self._sizes)])
        width = self._passes.at(1.0 + forced + np.append(0.0, self._given))
        seconds = self._drafts.at(self._sizes.astype(np.float64)) + idea * width[1:] + (1 - idea) * width[0]
        plain = float(self._passes.at(np.ones(1))[0])
        rate = (self._tokens + 1.0) / max(self._seconds + plain, 1e-12)
        worth: NDArray[np.float64] = self._stem_kept.value * idea * kept - rate * seconds
        return worth

    def _figures(self, index: int) -> _Acceptance:
        return self._acceptance[min(index, len(self._acceptance) - 1)]

    def _settle_on(self, worth: NDArray[np.float64]) -> None:
        """Note what pays best now; begin to look at a longer draft if that is due."""
        best = int(np.argmax(worth))  # the first, so the shortest, of equals
        if (best == 0) != (self._best == 0) or best >= self._looked_at:
            self._pause, self._looked_at = _FIRST_LOOK, len(self._sizes)
            self._until_look = min(self._until_look, self._pause)
        self._best = best
        if self._look is None and self._until_look <= 0 and best + 1 < len(self._sizes):
            self._pause = min(2 * self._pause, _RAREST_LOOK)
            self._look = self._looked_at = self._longer(best) if best else 1 + int(np.argmax(worth[1:]))
            self._figures(self._look).doubt(int(self._sizes[best]) if len(self._acceptance) == 1 else 0)

    def _go_on_looking(self, whole: bool) -> None:
        """Look at a longer draft yet after one that was accepted to its end; end the look when it has seen enough."""
        assert self._look is not None
        self._looked += 1
        if whole and self._look + 1 < len(self._sizes):
            self._look = self._longer(self._look)
        elif self._looked >= _LOOK_CYCLES:
            self._look, self._looked, self._until_look = None, 0, self._pause

    def _longer(self, index: int) -> int:
        """The size of a pass of twice the width."""
        return min(int(np.searchsorted(self._sizes, 2 * self._sizes[index] + 1)), len(self._sizes) - 1)


class _Share:
    """How often something is so, lately; believed to be always so at first."""

    def __init__(self) -> None:
        self._yes = self._all = 1.0

    def add(self, so: bool) -> None:
        self._yes, self._all = _KEPT * self._yes + so, _KEPT * self._all + 1.0

    @property
    def value(self) -> float:
        return self._yes / self._all


class _Acceptance:
    """How often each depth of a draft is kept where the depth before it is. Depths not seen are like the one before."""

    def __init__(self, depths: int) -> None:
        self._kept, self._seen = np.zeros(depths), np.zeros(depths)
        self._kept[0], self._seen[0] = _HOPE * _HOPE_WEIGHT, _HOPE_WEIGHT  # fades like measurements

    def add(self, accepted: int, asked: int) -> None:
        """Of a draft of ``asked`` tokens, ``accepted`` were kept. What is deeper than asked is not judged by it."""
        judged = min(accepted + 1, asked, len(self._seen))
        self._seen[:judged] = _KEPT * self._seen[:judged] + 1.0
        self._kept[:judged] = _KEPT * self._kept[:judged] + (np.arange(judged) < accepted)

    def doubt(self, depth: int) -> None:
        """Give new measurements beyond ``depth`` more weight than old ones."""
        share = np.minimum(_STALE_WEIGHT / np.maximum(self._seen[depth:], _STALE_WEIGHT), 1.0)
        self._seen[depth:] *= share
        self._kept[depth:] *= share

    def expected(self) -> list[float]:
        """Draft tokens kept of 0, 1, 2, … drafted ones, on average."""
        expected, alive, rate = [0.0], 1.0, float(self._kept[0] / self._seen[0])
        for kept, seen in zip(self._kept.tolist(), self._seen.tolist(), strict=True):
            rate = (kept + _LIKENESS * rate) / (seen + _LIKENESS)
            alive *= rate
            expected.append(expected[-1] + alive)
        return expected
