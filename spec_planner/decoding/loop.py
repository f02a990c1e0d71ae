"""The decoding loop: draft, verify, accept, commit. It owns the anchor and the order of the calls, nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .accept import Acceptance, Rule, TargetLaws
from .contracts import (
    Constraint,
    ContextOverflow,
    Drafter,
    Incompatible,
    PromptInput,
    Target,
    TargetOutput,
    check_compatible,
)
from .draft_budget import Cycle, DraftBudget
from .draft_sampler import RunDraftSampler
from .draft_tree import DraftTree
from .exact_rules import RULES
from .metrics import StepMetrics
from .pass_cost import PassCost
from .prefix_cache import CHUNK, PrefixCache
from .random_stream import Purpose, RandomSource, RandomStream
from .sampling import Law, SamplingParams
from .stopping import Finish, Stopping

Clock = Callable[[], float]


@dataclass(frozen=True)
class DecodeStep:
    """What one cycle emitted: accepted draft tokens and the target's own, cut by the stop conditions.

    The first step carries the token sampled from the prefill and has no acceptance. A run that is interrupted ends
    with a step of no tokens. ``finish`` is set on the last step only; the target's context may then be ahead of the
    emitted tokens, so a later run starts with ``truncate``.
    """

    tokens: tuple[int, ...]
    acceptance: Acceptance | None
    metrics: StepMetrics
    finish: Finish | None = None


def decode(
    target: Target,
    drafter: Drafter | None,
    prompt: PromptInput,
    sampling: SamplingParams,
    stopping: Stopping,
    rule: Rule,
    budget: DraftBudget | None = None,
    clock: Clock = time.perf_counter,
    random: RandomSource | None = None,
    constraint: Constraint | None = None,
    prefix_cache: PrefixCache | None = None,
    cost: PassCost | None = None,
) -> Iterator[DecodeStep]:
    """Decode after ``prompt``, one yield per cycle; closing the generator stops the run between cycles.

    Args:
        drafter: None for plain decoding, which is this same loop over one-node trees.
        budget: decides, before each cycle's draft and from past cycles only, how many tokens it may have; None: none.
        clock: monotonic seconds, for the metrics.
        random: the run's randomness; by default the stream of ``sampling.seed``.
        constraint: which tokens may come next (a grammar, an action vocabulary). It is part of p at every node, so
            constrained decoding is as exact as free decoding; drafts that break it are never accepted. What it forces
            is drafted first, within the budget.
        prefix_cache: what ``target`` and ``drafter`` hold of the prompt before; by default they start empty.
        cost: what passes cost, learnt here and used to end before the deadline rather than after.

    Raises:
        Incompatible: target, drafter and rule do not fit (``ContextOverflow``: the prompt exceeds the context).
    """
    check_compatible(target.info, drafter)
    if drafter is not None and drafter.requirements.draws_trees and rule.chains_only:
        raise Incompatible(f"rule {rule.name!r} judges chains only but drafter {drafter.name!r} draws trees")
    if not prompt.ids:
        raise ContextOverflow("the prompt is empty: a target needs at least one token to continue from")
    if len(prompt.ids) >= target.info.context_length:
        raise ContextOverflow(
            f"the prompt has {len(prompt.ids)} tokens but the context holds {target.info.context_length}, at least one "
            f"of them for the answer: shorten the prompt or raise context_length"
        )
    random = random or RandomStream(sampling.seed)
    prefix_cache, cost = prefix_cache or PrefixCache(), cost or PassCost()
    run = _Run(target, drafter, sampling, stopping, rule, budget, clock, random, constraint, prefix_cache, cost)
    return run.steps(prompt)


class _Run:
    """The state of one run: the anchor, where it stands, and what has been emitted."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        sampling: SamplingParams,
        stopping: Stopping,
        rule: Rule,
        budget: DraftBudget | None,
        clock: Clock,
        random: RandomSource,
        constraint: Constraint | None,
        prefix_cache: PrefixCache,
        cost: PassCost,
    ) -> None:
        self.target, self.drafter, self.budget, self.random = target, drafter, budget, random
        # With p a point mass every exact rule asks for the same token, and matching takes any draft. Without a drafter
        # there is nothing to judge, and the target's own draw is exact whatever the rule.
        matching = drafter is None or (sampling.greedy and rule.exact)
        self.rule = RULES["drafter-invariant"] if matching else rule
        self.sampling, self.stopping, self.clock = sampling, stopping, clock
        self.sampler = RunDraftSampler(rule, sampling, random, constraint)
        self.constraint, self.prefix_cache, self.cost = constraint, prefix_cache, cost
        self.anchor = self.position = self.index = 0
        self.said: list[int] = []

    def steps(self, prompt: PromptInput) -> Iterator[DecodeStep]:
        self.started = self.clock()
        output, interrupt = self._prefill(prompt)
        self.position = self.target.committed_length
        if output is None:
            yield self._emit((), None, interrupt)
            return
        self.anchor = self.random.draw(self._laws(output, None)(0), Purpose.TARGET, self.position)
        tokens, finish = self.stopping.cut((self.anchor,), 0)
        yield self._emit(tokens, None, finish)
        while finish is None:
            self.index += 1
            finish = self._interrupted(1) or ("context_full" if self._room() < 1 else None)
            step = self._emit((), None, finish) if finish else self._cycle()
            finish = step.finish
            yield step

    def _prefill(self, prompt: PromptInput) -> tuple[TargetOutput | None, Finish | None]:
        """Feed what the caches lack of the prompt; the last output, or why there is none."""
        self.target.tap(self.drafter.requirements.feature_layers if self.drafter else ())
        kept = self.prefix_cache.begin(prompt, self.target, self.drafter)
        # Pixels belong to the prompt as a whole, so such a prompt is one chunk.
        size = CHUNK if prompt.pixels is None else len(prompt.ids)
        output: TargetOutput | None = None
        for start in range(kept, len(prompt.ids), size):
            chunk = prompt.ids[start : start + size]
            if interrupt := self._interrupted(len(chunk)):
                return None, interrupt
            lap = _Stopwatch(self.clock)
            output = self.prefix_cache.feed(chunk, prompt.pixels, self.target, self.drafter)
            self.cost.observe(len(chunk), lap() / 1e3)
        return output, None

    def _interrupted(self, rows: int) -> Finish | None:
        """Why no pass over ``rows`` may start, if so."""
        finish = self.stopping.interrupted(self.cost.of(rows))
        if finish == "deadline" and self.stopping.time_left() > 0:
            self.cost.doubt()
        return finish

    def _cycle(self) -> DecodeStep:
        lap = _Stopwatch(self.clock)
        tree, forced, asked = self._draft()
        draft_ms = lap()
        output = self.target.verify(tree)
        verify_ms = lap()
        self.cost.observe(tree.num_nodes, verify_ms / 1e3)
        acceptance = self.rule(tree, self._laws(output, tree), self.random, self.position)
        accept_ms = lap()
        self.target.commit(acceptance.path)
        commit_ms = lap()
        committed = [int(tree.tokens[node]) for node in acceptance.path]
        if self.drafter:
            self.drafter.observe(committed, output.features(acceptance.path))
        draft_ms += lap()
        if self.drafter and self.budget:
            self.budget.learn(
                Cycle(
                    forced,
                    asked,
                    drafted=tree.num_draft_tokens - forced,
                    accepted=acceptance.num_accepted,
                    whole=acceptance.kind == "bonus",
                    draft_s=draft_ms / 1e3,
                    pass_s=(verify_ms + accept_ms + commit_ms) / 1e3,
                )
            )
        tokens, finish = self.stopping.cut((*committed[1:], acceptance.next_token), len(self.said))
        step = self._emit(tokens, acceptance, finish, tree, (draft_ms, verify_ms, accept_ms, commit_ms), lap)
        self.anchor, self.position = acceptance.next_token, self.position + len(committed)
        return step

    def _draft(self) -> tuple[DraftTree, int, int]:
        """The tree, how many tokens of it are forced, and how many more the drafter was asked for."""
        # The last token of a cycle is the target's own, so a draft longer than what is left but one is waste.
        limit = min(self._room() - 1, self.target.info.max_nodes - 1)
        if self.drafter is None or self.budget is None or limit < 1:
            return DraftTree.root(self.anchor), 0, 0
        forced = self.constraint.forced(self.said)[:limit] if self.constraint else ()
        limit = self.budget.choose(len(forced), limit)
        while limit > 0 and self.cost.of(limit + 1) > self.stopping.time_left():
            limit //= 2  # a narrower pass may still end in time
        forced = forced[:limit]
        stem, asked = (self.anchor, *forced), limit - len(forced)
        if asked == 0:
            return self.sampler.tree(stem, range(-1, limit), [*map(Law.point, forced), None]), limit, 0
        self.sampler.anchor_position, self.sampler.said = self.position, self.said[:-1]
        return self.drafter.draft(stem, asked, self.sampler), len(forced), asked

    def _room(self) -> int:
        """Tokens this cycle may still emit. The anchor takes one slot of the context, each draft token another."""
        return min(self.target.info.context_length - self.position, self.stopping.max_tokens - len(self.said))

    def _laws(self, output: TargetOutput, tree: DraftTree | None) -> TargetLaws:
        """p at every node of ``tree``; after the prefill there is none, and node 0 is the prompt's last token."""
        constraint = self.constraint
        if constraint is not None:

            def constrained(node: int) -> Law:
                branch = [int(token) for token in tree.tokens[tree.ancestor_mask[node]][1:]] if tree else []
                allowed = constraint.allowed(self.said + branch)
                if allowed is not None and np.count_nonzero(allowed) == 1:
                    return Law.point(int(allowed.argmax()))  # whatever the logits are: the row is not fetched
                return Law.from_logits(output.logits_row(node), self.sampling, allowed)

            return constrained
        if self.sampling.greedy:
            best = output.argmax()  # on the device: no row is fetched
            return lambda node: Law.point(int(best[node]))
        return lambda node: Law.from_logits(output.logits_row(node), self.sampling)

    def _emit(
        self,
        tokens: tuple[int, ...],
        acceptance: Acceptance | None,
        finish: Finish | None,
        tree: DraftTree | None = None,
        phases: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),
        lap: _Stopwatch | None = None,
    ) -> DecodeStep:
        self.said += tokens
        metrics = StepMetrics(
            self.index,
            self.position,
            tree.num_nodes if tree else 0,
            tree.num_draft_tokens if tree else 0,
            acceptance.num_accepted if acceptance else 0,
            *phases,
            step_ms=lap.total() if lap else 0.0,
            elapsed_ms=(self.clock() - self.started) * 1e3,
            exact=self.rule.exact,
        )
        return DecodeStep(tokens, acceptance, metrics, finish)


class _Stopwatch:
    """Milliseconds since the last lap, and in total."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = self._last = clock()

    def __call__(self) -> float:
        now = self._clock()
        elapsed, self._last = now - self._last, now
        return elapsed * 1e3

    def total(self) -> float:
        return (self._clock() - self._start) * 1e3
