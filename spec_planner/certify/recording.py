"""Targets around a target: one that can be interrupted, one that remembers the logits behind every token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decoding.accept import Rule
from ..decoding.contracts import Constraint, Drafter, PromptInput, Target, TargetInfo, TargetOutput
from ..decoding.draft_budget import DraftBudget
from ..decoding.draft_tree import DraftTree
from ..decoding.loop import decode
from ..decoding.metrics import StepMetrics
from ..decoding.sampling import Law, SamplingParams
from ..decoding.stopping import Stopping


class WrappedTarget:
    """A ``Target`` around another, which does all the work."""

    def __init__(self, inner: Target) -> None:
        self._inner = inner

    @property
    def info(self) -> TargetInfo:
        return self._inner.info

    @property
    def committed_length(self) -> int:
        return self._inner.committed_length

    def tap(self, feature_layers: Sequence[int]) -> None:
        self._inner.tap(feature_layers)

    def truncate(self, length: int) -> None:
        self._inner.truncate(length)

    def extend(self, prompt: PromptInput) -> TargetOutput:
        return self._inner.extend(prompt)

    def verify(self, tree: DraftTree) -> TargetOutput:
        return self._inner.verify(tree)

    def commit(self, path: Sequence[int]) -> None:
        self._inner.commit(path)

    def lend(self, name: str) -> Any:
        return self._inner.lend(name)

    def close(self) -> None:
        self._inner.close()


class InterruptibleTarget(WrappedTarget):
    """Raises ``InterruptedError`` instead of beginning another pass over the weights once ``cancelled`` says so."""

    def __init__(self, inner: Target, cancelled: Callable[[], bool]) -> None:
        super().__init__(inner)
        self._cancelled = cancelled

    def extend(self, prompt: PromptInput) -> TargetOutput:
        self.check()
        return super().extend(prompt)

    def verify(self, tree: DraftTree) -> TargetOutput:
        self.check()
        return super().verify(tree)

    def check(self) -> None:
        if self._cancelled():
            raise InterruptedError("the certificate was cancelled; nothing was written")


class RecordingTarget(WrappedTarget):
    """``rows[t]`` are the logits [V] of the token at absolute position t.

    ``draft_laws[t]`` is the drafter's law at that position, where it had one for the committed prefix.
    """

    def __init__(self, inner: Target) -> None:
        super().__init__(inner)
        self.rows: dict[int, NDArray[np.float32]] = {}
        self.draft_laws: dict[int, Law] = {}
        self._last: tuple[int, DraftTree, TargetOutput] | None = None  # committed length before the pass, and the pass

    def extend(self, prompt: PromptInput) -> TargetOutput:
        output = super().extend(prompt)
        self.rows[self.committed_length] = output.logits_row(0).copy()
        return output

    def verify(self, tree: DraftTree) -> TargetOutput:
        output = super().verify(tree)
        self._last = (self.committed_length, tree, output)
        return output

    def commit(self, path: Sequence[int]) -> None:
        assert self._last is not None
        length, tree, output = self._last
        for depth, node in enumerate(path):
            position = length + depth + 1
            self.rows[position] = output.logits_row(node).copy()
            law = tree.draft_laws[node] if tree.draft_laws else None
            if law is not None:
                self.draft_laws[position] = law
        super().commit(path)


@dataclass(frozen=True)
class Question:
    """What a target is asked: the prompt, and what the answer is held to."""

    ids: tuple[int, ...]
    constraint: Constraint | None = None

    def masked(self, rows: Iterable[NDArray[np.float32]], tokens: tuple[int, ...]) -> tuple[NDArray[np.float32], ...]:
        """``rows`` [V] behind each beginning of ``tokens``, with −inf where the constraint lets nothing follow."""
        return tuple(self._mask(row, tokens[:index]) for index, row in enumerate(rows))

    def _mask(self, row: NDArray[np.float32], said: tuple[int, ...]) -> NDArray[np.float32]:
        allowed = self.constraint.allowed(said) if self.constraint else None
        return row if allowed is None else np.where(allowed, row, np.float32(-np.inf))


@dataclass(frozen=True)
class Run:
    """One recorded run: emitted tokens, the logits each was drawn from, and the drafter's law for it if it had one."""

    tokens: tuple[int, ...]
    rows: tuple[NDArray[np.float32], ...]
    draft_laws: tuple[Law | None, ...] = ()
    steps: tuple[StepMetrics, ...] = ()


def record(
    target: Target,
    drafter: Drafter | None,
    question: Question,
    sampling: SamplingParams,
    max_tokens: int,
    stop_ids: frozenset[int],
    rule: Rule,
    budget: DraftBudget | None = None,
) -> Run:
    """Decode once and keep everything."""
    recorder = RecordingTarget(target)
    prompt, stopping = PromptInput(question.ids), Stopping(max_tokens, stop_ids)
    steps = list(decode(recorder, drafter, prompt, sampling, stopping, rule, budget, constraint=question.constraint))
    tokens = tuple(token for step in steps for token in step.tokens)
    first = len(question.ids)
    positions = range(first, first + len(tokens))
    rows = question.masked((recorder.rows[position] for position in positions), tokens)
    laws = tuple(recorder.draft_laws.get(position) for position in positions)
    return Run(tokens, rows, laws, tuple(step.metrics for step in steps))


def score(target: Target, question: Question, tokens: tuple[int, ...]) -> tuple[NDArray[np.float32], ...]:
    """Logits that each of ``tokens`` would be drawn from, by feeding them one at a time: no drafting, no branch."""
    target.truncate(0)
    rows = [target.extend(PromptInput(question.ids)).logits_row(0).copy()]
    for token in tokens[:-1]:
        rows.append(target.extend(PromptInput((token,))).logits_row(0).copy())
    return question.masked(rows, tokens)
