"""How many tokens to draft in the next cycle. Decided before drafting and from past cycles only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FixedBudget:
    """Always the same number of draft tokens."""

    num_draft_tokens: int

    def __post_init__(self) -> None:
        if self.num_draft_tokens < 1:
            raise ValueError(
                f"num_draft_tokens must be at least 1, got {self.num_draft_tokens}; drafter 'none' turns drafting off"
            )

    def __call__(self) -> int:
        return self.num_draft_tokens
