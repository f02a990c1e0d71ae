"""Reasoning models think aloud first: ``<think> … </think>``, then the answer. Budgeted here, and never read as a plan.

Only checkpoints that have ``</think>`` as one token of their vocabulary (Qwen3, DeepSeek-R1, …) are known to think.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

CLOSE = "</think>"


class AnswerConstraint(Protocol):
    """The constraint on what follows the thought; ``decoding.contracts.Constraint`` by shape."""

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_] | None: ...
    def forced(self, tokens: Sequence[int]) -> tuple[int, ...]: ...


class ThinkingConstraint:
    """Free thought of at most ``budget`` tokens, then ``</think>``, then ``lead``, then what ``answer`` allows.

    The budget is kept by the law itself: where it is used up nothing but the closing token has probability, so
    speculative and plain decoding stop thinking at the same token.
    """

    def __init__(
        self,
        answer: AnswerConstraint | None,
        lead: Sequence[int],
        close: int,
        budget: int,
        stop_ids: frozenset[int],
        vocabulary_size: int,
    ) -> None:
        """``lead``: ids with which the answer begins, which a prompt without thought ends with."""
        self._answer, self._lead, self._close, self._budget = answer, tuple(lead), close, budget
        self._size = vocabulary_size
        self._thinking = np.ones(vocabulary_size, dtype=np.bool_)
        self._thinking[list(stop_ids)] = False  # a thought that ends the turn would leave no answer

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_] | None:
        start = answer_start(tokens, self._close)
        if start is None:
            return self._only(self._close) if len(tokens) >= self._budget else self._thinking
        said = len(tokens) - start
        if said < len(self._lead):
            return self._only(self._lead[said])
        return self._answer.allowed(tokens[start + len(self._lead) :]) if self._answer else None

    def forced(self, tokens: Sequence[int]) -> tuple[int, ...]:
        start = answer_start(tokens, self._close)
        if start is None:
            return (self._close, *self._lead) if len(tokens) >= self._budget else ()
        said = len(tokens) - start
        if said < len(self._lead):
            return self._lead[said:]
        return self._answer.forced(tokens[start + len(self._lead) :]) if self._answer else ()

    def _only(self, token: int) -> NDArray[np.bool_]:
        mask = np.zeros(self._size, dtype=np.bool_)
        mask[token] = True
        return mask


def answer_start(tokens: Sequence[int], close: int) -> int | None:
    """Index of the first token after the thought; None while it lasts."""
    return next((i + 1 for i, token in enumerate(tokens) if token == close), None)
