"""How many tokens to draft in the next cycle. Decided before drafting and from past cycles only.

``FixedBudget`` always says the same; ``measured_budget.py`` says what has paid on this machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Cycle:
    """A cycle that is over, as a budget may learn from it."""

    forced: int  # tokens of the stem behind the anchor: a grammar's, drafted at no cost
    asked: int  # what the drafter was asked for beyond them; 0: it was not asked
    drafted: int  # what it gave
    accepted: int  # draft tokens kept, forced ones included
    whole: bool  # a branch was kept to its end
    draft_s: float  # drafting, and following the commit
    pass_s: float  # verify, accept and commit


class DraftBudget(Protocol):
    """Decides the length of drafts. What it says may depend on all that is past, and on nothing drawn or drafted since:
    an answer that depended on the draft it governs would bias the output.
    """

    @property
    def most(self) -> int:
        """Draft tokens it will ever say, the forced ones included."""

    def choose(self, forced: int, limit: int) -> int:
        """Draft tokens for the next cycle, 0 to ``limit``, the ``forced`` first ones among them."""

    def learn(self, cycle: Cycle) -> None:
        """The cycle last chosen for is over."""

    def time_pass(self, rows: int, seconds: float) -> None:
        """A pass over ``rows`` outside of any cycle, such as a warm-up's, took this long."""

    def describe(self) -> str:
        """What it lets a drafter do now, for people."""


@dataclass(frozen=True)
class FixedBudget:
    """Always the same number of draft tokens."""

    most: int

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"num_draft_tokens must be at least 1, got {self.most}; drafter 'none' turns drafting off")

    def choose(self, forced: int, limit: int) -> int:
        return min(self.most, limit)

    def learn(self, cycle: Cycle) -> None:
        pass  # it does not change its mind

    def time_pass(self, rows: int, seconds: float) -> None:
        pass  # likewise

    def describe(self) -> str:
        return f"up to {self.most} tokens"
