"""The exact output law of a rule on a toy: every outcome of every random decision is visited."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..decoding.accept import Rule
from ..decoding.contracts import Constraint, DrafterRequirements, DraftSampler, PromptInput
from ..decoding.draft_budget import FixedBudget
from ..decoding.draft_tree import DraftTree
from ..decoding.loop import decode
from ..decoding.random_stream import Purpose
from ..decoding.sampling import Law, SamplingParams
from ..decoding.stopping import Stopping
from ..engines.table_target import LogitsOf, TableTarget

Outcome = tuple[int, ...]


class Branching:
    """A ``RandomSource`` that replays a script of decisions, then takes the first outcome and notes the others."""

    def __init__(self, script: Outcome) -> None:
        self.script, self.weight = script, 1.0
        self.taken: list[int] = []
        self.unexplored: list[Outcome] = []

    def draw(self, law: Law, purpose: Purpose, position: int, slot: int = 0) -> int:
        return int(law.ids[self._choose(law.probabilities)])

    def accepts(self, probability: float, purpose: Purpose, position: int, slot: int = 0) -> bool:
        kept = min(max(probability, 0.0), 1.0)
        return self._choose((kept, 1.0 - kept)) == 0

    def _choose(self, probabilities: ArrayLike) -> int:
        weights = np.asarray(probabilities)
        step = len(self.taken)
        if step < len(self.script):
            choice = self.script[step]
        else:
            choice, *others = np.flatnonzero(weights > 0).tolist()
            self.unexplored += [(*self.taken, other) for other in others]
        self.taken.append(choice)
        self.weight *= float(weights[choice])
        return choice


def outcome_law(run: Callable[[Branching], Outcome]) -> dict[Outcome, float]:
    """Probability of every result of ``run``, which takes all its randomness from the source it is given."""
    law: dict[Outcome, float] = defaultdict(float)
    scripts: list[Outcome] = [()]
    while scripts:
        source = Branching(scripts.pop())
        law[run(source)] += source.weight
        scripts += source.unexplored
    return dict(law)


def total_variation(a: dict[Outcome, float], b: dict[Outcome, float]) -> float:
    return sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys()) / 2


class TableDrafter:
    """Drafts a tree of a fixed shape, given by the parent of every node, with laws of its own."""

    name = "table"

    def __init__(self, logits_of: LogitsOf, shape: Sequence[int]) -> None:
        self._logits_of, self._shape = logits_of, shape
        self._ids: list[int] = []
        self.requirements = DrafterRequirements()

    def truncate(self, length: int) -> None:
        del self._ids[length:]

    def observe(self, committed_ids: Sequence[int], features: object) -> None:
        self._ids.extend(committed_ids)

    def draft(self, stem: Sequence[int], budget: int, sampler: DraftSampler) -> DraftTree:
        last = len(stem) - 1
        tokens, parents = list(stem), list(range(-1, last))
        laws: list[Law | None] = [*map(Law.point, stem[1:]), None]
        place = {0: last}  # node of the shape → node of the tree; a law of few tokens may yield fewer siblings
        contexts: list[Outcome] = [(*self._ids, *stem[: node + 1]) for node in range(len(stem))]
        for node in range(len(self._shape)):
            wanted = [child for child, parent in enumerate(self._shape) if parent == node]
            if node not in place or not wanted:
                continue
            here = place[node]
            law = laws[here] = sampler.law(self._logits_of(contexts[here]), contexts[here][len(self._ids) :])
            picked = sampler.pick_siblings(law, len(wanted), len(contexts[here]), len(tokens))
            for child, token in zip(wanted, picked, strict=False):
                place[child] = len(tokens)
                contexts.append((*contexts[here], token))
                tokens.append(token)
                parents.append(here)
                laws.append(None)
        return sampler.tree(tokens, parents, laws)

    def close(self) -> None:
        self._ids.clear()


def speculative_law(
    target_logits: LogitsOf,
    draft_logits: LogitsOf,
    vocabulary_size: int,
    sampling: SamplingParams,
    rule: Rule,
    shape: Sequence[int],
    length: int,
    constraint: Constraint | None = None,
) -> dict[Outcome, float]:
    """Law of the first ``length`` tokens after the prompt (0,) when ``draft_logits`` drafts trees of ``shape``."""

    def run(source: Branching) -> Outcome:
        steps = decode(
            TableTarget(target_logits, vocabulary_size),
            TableDrafter(draft_logits, shape),
            PromptInput((0,)),
            sampling,
            Stopping(length),
            rule,
            budget=FixedBudget(len(shape)),
            random=source,
            constraint=constraint,
        )
        return tuple(token for step in steps for token in step.tokens)

    return outcome_law(run)


def target_law(target_logits: LogitsOf, sampling: SamplingParams, length: int) -> dict[Outcome, float]:
    """Law of the first ``length`` tokens after the prompt (0,), from the target alone."""
    law: dict[Outcome, float] = {(): 1.0}
    for _ in range(length):
        longer: dict[Outcome, float] = {}
        for tokens, weight in law.items():
            after = Law.from_logits(target_logits((0, *tokens)), sampling)
            for token, probability in zip(after.ids.tolist(), after.probabilities.tolist(), strict=True):
                longer[tokens + (token,)] = weight * probability
        law = longer
    return law


def rule_error(rule: Rule, sampling: SamplingParams) -> float:
    """Worst total variation of ``rule`` from the target's law over toys of 3 tokens, chains and trees; 0 if exact."""

    def rows(seed: int, sharpness: float) -> LogitsOf:
        def of(context: Outcome) -> NDArray[np.float32]:
            noise = np.random.default_rng([seed, *context]).standard_normal(3)
            return (sharpness * noise).astype(np.float32)

        return of

    shapes = [(-1, 0, 1)] if rule.chains_only else [(-1, 0, 1), (-1, 0, 0, 1, 1)]
    return max(
        total_variation(
            speculative_law(rows(1, sharpness), rows(2, sharpness), 3, sampling, rule, shape, 3),
            target_law(rows(1, sharpness), sampling, 3),
        )
        for sharpness in (0.5, 2.0)
        for shape in shapes
    )
