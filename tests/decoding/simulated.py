"""Decoding on a simulated clock: passes and drafts cost what a test says, drafts are right as often as it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from spec_planner.decoding.contracts import DrafterRequirements, DraftSampler, PromptInput
from spec_planner.decoding.draft_budget import DraftBudget
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.decoding.stopping import Stopping
from tests.fakes import ScriptedOutput, ScriptedTarget

VOCABULARY = 3
Cost = Callable[[int], float]  # rows of a pass, or tokens of a draft → seconds


class Simulation:
    """A target that says 0 for ever, and a drafter whose guess for a position is right or wrong by a coin of its own.

    The coins belong to positions, so budgets are compared on the same text.

    Args:
        right: share of right guesses, or that share at each position.
        pass_cost, draft_cost: seconds.
        forced: every fourth cycle begins with that many tokens which a constraint forces.
        siblings: children of every node of the draft; the right one, if any, may be any of them.
    """

    def __init__(self, right: float | Callable[[int], float], pass_cost: Cost, draft_cost: Cost = lambda n: 0.0,
                 forced: int = 0, siblings: int = 1, seed: int = 0) -> None:  # fmt: skip
        self.now = 0.0
        self._right, self._pass_cost, self._draft_cost = right, pass_cost, draft_cost
        self._forced, self._siblings, self._coins = forced, siblings, np.random.default_rng(seed).random(2**20)
        self.name, self.requirements = "simulated", DrafterRequirements(draws_trees=siblings > 1)

    def run(self, budget: DraftBudget | None, tokens: int) -> list[float]:
        """The clock after each cycle of a run of ``tokens``; None decodes plainly."""
        target = _Target(self)
        steps = decode(
            target, self if budget else None, PromptInput((0,)), SamplingParams(), Stopping(tokens),
            RULES["drafter-invariant"], budget, clock=lambda: self.now,
            constraint=self if self._forced else None,
        )  # fmt: skip
        started, times = self.now, []
        for step in steps:
            assert set(step.tokens) <= {0}
            times += [self.now - started] * len(step.tokens)
        assert len(times) == tokens
        return times

    def fixed(self, count: int, tokens: int) -> float:
        """Seconds of a run with ``FixedBudget(count)``, 0 for plain decoding; the same by counting, for chains."""
        assert self._siblings == 1 and not self._forced and isinstance(self._right, float)
        right = (self._coins < self._right).tolist()
        said, seconds = 1, 0.0  # the prefill says the first
        while said < tokens:
            drafted = min(count, tokens - said - 1)
            kept = next((k for k in range(drafted) if not right[said + 1 + k]), drafted)
            seconds += (self._draft_cost(drafted) if drafted else 0.0) + self._pass_cost(1 + drafted)
            said += kept + 1
        return seconds

    def verify_cost(self, rows: int) -> float:
        return self._pass_cost(rows)

    # The drafter.
    def truncate(self, length: int) -> None:
        self._length = length

    def observe(self, committed_ids: Sequence[int], features: object) -> None:
        self._length += len(committed_ids)

    def draft(self, stem: Sequence[int], budget: int, sampler: DraftSampler) -> DraftTree:
        self.now += self._draft_cost(budget)
        tokens, parents = list(stem), list(range(-1, len(stem) - 1))
        node, position = len(stem) - 1, self._length + len(stem)
        while len(tokens) < len(stem) + budget:
            count = min(self._siblings, len(stem) + budget - len(tokens))
            right = self._right if isinstance(self._right, float) else self._right(position)
            place = int(self._coins[position] / right * self._siblings) if self._coins[position] < right else count
            parents += [node] * count
            node = len(tokens) + min(place, count - 1)
            tokens += [0 if index == place else 1 + index % 2 for index in range(count)]
            position += 1
        return DraftTree(np.array(tokens), np.array(parents))

    def close(self) -> None:
        pass

    # The constraint.
    def allowed(self, tokens: Sequence[int]) -> None:
        return None

    def forced(self, tokens: Sequence[int]) -> tuple[int, ...]:
        return (0,) * self._forced if self._coins[-1 - len(tokens)] < 0.25 else ()


class _Target(ScriptedTarget):
    """Takes simulated time over its passes."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__([0], VOCABULARY, context_length=2**20)
        self._simulation = simulation

    def verify(self, tree: DraftTree) -> ScriptedOutput:
        self._simulation.now += self._simulation.verify_cost(tree.num_nodes)
        return super().verify(tree)
