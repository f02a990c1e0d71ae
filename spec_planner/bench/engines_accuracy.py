"""What a precision costs in accuracy: the reference's answers read again, teacher forced.

    prompt … │ a0 a1 a2 a3 …           logits after the prompt and after each token but the last
             a0 a1 a2 a3 …             must give: the token that the reference said next

Perplexity is of those tokens; agreement is how often the likeliest token is the likeliest of the reference's own logits
at the same position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..decoding.contracts import PromptInput
from ..decoding.draft_tree import DraftTree
from ..decoding.prefix_cache import CHUNK
from .engines import Question

_ROWS = 16  # per pass


@dataclass(frozen=True)
class Reading:
    """Of every token of every answer: minus its log-probability in nats, and the likeliest token in its place."""

    surprise: tuple[float, ...]
    likeliest: tuple[int, ...]

    @property
    def perplexity(self) -> float:
        return math.exp(sum(self.surprise) / len(self.surprise))

    def agreement(self, reference: Reading) -> float:
        """Share of positions at which both find the same token likeliest."""
        return float(np.mean(np.equal(self.likeliest, reference.likeliest)))


def read_answers(target: Any, questions: Sequence[Question]) -> Reading:
    """Feed every prompt and its answer to ``target``, which is as much of ``Target`` as chains need."""
    surprise: list[float] = []
    likeliest: list[int] = []

    def note(logits: np.ndarray, token: int) -> None:
        row = logits.astype(np.float64)
        most = row.max()
        surprise.append(float(most + np.log(np.exp(row - most).sum()) - row[token]))
        likeliest.append(int(row.argmax()))

    for question in questions:
        target.truncate(0)
        for start in range(0, len(question.ids), CHUNK):
            output = target.extend(PromptInput(question.ids[start : start + CHUNK]))
        note(output.logits_row(0), question.answer[0])
        width = min(_ROWS, target.info.max_nodes)
        for start in range(0, len(question.answer) - 1, width):
            fed = question.answer[start : min(start + width, len(question.answer) - 1)]
            output = target.verify(DraftTree.chain(fed))
            for node in range(len(fed)):
                note(output.logits_row(node), question.answer[start + node + 1])
            target.commit(range(len(fed)))
    target.truncate(0)
    return Reading(tuple(surprise), tuple(likeliest))
