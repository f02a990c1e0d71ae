"""A drafter for tasks whose expert answer is known: the target mostly says the same, so a pass writes most of it.

    expert   1. go_to(fridge) ⏎ 2. open(fridge) …
    said     1. go_to(      the rest of the expert's answer is the draft, while what was said agrees with it;
    said     1. go_to(table    and prompt lookup from where it does not

The tokens stay the target's own: the rule takes a draft only where the target says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spec_planner.decoding.contracts import Drafter, DrafterRequirements, DraftSampler
from spec_planner.decoding.draft_tree import DraftTree

ASTRAY = 7  # most draft tokens of the fallback: its guesses are seldom right that far


class ExpertDrafter:
    """Proposes what ``expect`` was given last."""

    name = "expert"
    requirements = DrafterRequirements()

    def __init__(self, fallback: Drafter) -> None:
        self._fallback = fallback
        self._ids: list[int] = []
        self._begin, self._answer = 0, tuple[int, ...]()

    def expect(self, prompt_length: int, answer: Sequence[int]) -> None:
        """The next answer begins at position ``prompt_length`` and should be ``answer``."""
        self._begin, self._answer = prompt_length, tuple(answer)

    def truncate(self, length: int) -> None:
        del self._ids[length:]
        self._fallback.truncate(length)

    def observe(self, committed_ids: Sequence[int], features: Any) -> None:
        self._ids += committed_ids
        self._fallback.observe(committed_ids, features)

    def draft(self, stem: Sequence[int], budget: int, sampler: DraftSampler) -> DraftTree:
        said = (*self._ids[self._begin :], *stem)
        rest = self._answer[len(said) :][:budget]
        if rest and self._answer[: len(said)] == said:
            return DraftTree.chain((*stem, *rest))
        return self._fallback.draft(stem, min(budget, ASTRAY), sampler)

    def close(self) -> None:
        self._ids = []
        self._fallback.close()
