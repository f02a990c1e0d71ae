"""Instruction → prompt → the decoding loop → text → plan steps, reported as they appear. No ROS in here."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import cast

from ..decoding.accept import Rule
from ..decoding.contracts import Constraint, Drafter, Incompatible, PromptInput, Target, TargetInfo, check_compatible
from ..decoding.draft_budget import DraftBudget, FixedBudget
from ..decoding.draft_tree import DraftTree
from ..decoding.loop import DecodeStep, decode
from ..decoding.metrics import StepMetrics, summarize
from ..decoding.pass_cost import PassCost
from ..decoding.prefix_cache import PrefixCache
from ..decoding.sampling import SamplingParams
from ..decoding.stopping import Finish, Stopping
from ..language.plan import Plan, SkillSet
from ..language.plan_constraint import PlanConstraint
from ..language.prompt import build_prompt
from ..language.stop_text import StopText
from ..language.thinking import ThinkingConstraint
from ..language.tokenizer import Tokenizer
from ..world.applicable import is_told
from ..world.executable import ExecutableConstraint
from .answer import Answer
from .types import Outcome, PlanProgress, PlanRequest, PlanResult

_WARM_UP_TOKENS = 8


class PlanPipeline:
    """A loaded target with its drafter, ready to plan. One caller at a time; ``cancelled`` may look at other threads.

    A prompt's beginning that the run before had too (the skills, the scene) is not fed again.

    Attributes:
        drafter: what is loaded beside the target; the pipeline closes both.
        rule: the acceptance rule of every run.
        skills: the robot's skills, for requests that name none.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        tokenizer: Tokenizer,
        rule: Rule,
        budget: DraftBudget,
        skills: SkillSet,
        prompt_examples: bool = True,
    ) -> None:
        """The pipeline owns target and drafter.

        Args:
            budget: as in ``decode``; what it learns in one run, the next begins with.
            prompt_examples: show the target a few plans first; not for one that was fine-tuned to plan.

        Raises:
            Incompatible: target, drafter and tokenizer do not fit together.
        """
        check_compatible(target.info, drafter)
        if tokenizer.vocabulary_size > target.info.vocabulary_size:
            raise Incompatible(
                f"the tokenizer has {tokenizer.vocabulary_size} tokens but target {target.info.name!r} knows only "
                f"{target.info.vocabulary_size}: use the tokenizer that came with the model"
            )
        self.rule, self.skills, self.prompt_examples = rule, skills, prompt_examples
        self.drafter, self._target, self._tokenizer, self._budget = drafter, target, tokenizer, budget
        self._prefix_cache, self._cost = PrefixCache(), PassCost()
        self._past: dict[bool, tuple[float, float]] = {}  # plain or not → ms per token and tokens of the runs before
        self._closed = False

    @property
    def target(self) -> Target:
        """The target, for somebody else's use: the next run trusts nothing it holds and starts cold."""
        self._prefix_cache.forget()
        return self._target

    @property
    def info(self) -> TargetInfo:
        return self._target.info

    @property
    def stop_ids(self) -> frozenset[int]:
        return self._tokenizer.stop_ids

    @property
    def drafter_name(self) -> str:
        return self.drafter.name if self.drafter else "none"

    @property
    def drafting(self) -> str:
        """How long drafts are now, for people."""
        return self._budget.describe() if self.drafter else "off"

    def asked(self, request: PlanRequest) -> tuple[tuple[int, ...], Constraint | None]:
        """What the target reads for a request, the beginning of its answer included, and what the answer is held to.

        Raises:
            ValueError: no prompt can be made of it, or no plan can be written with these skills in this scene.
        """
        prepared = self._prepare(request)
        return prepared.ids, prepared.constraint

    def run(
        self,
        request: PlanRequest,
        on_progress: Callable[[PlanProgress], None] = lambda progress: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> PlanResult:
        """Plan for one request.

        An answer that ran into max_tokens or the end of the context is a success if it holds a step: what is there is
        usable, and ``plan.complete`` is False. An answer that was interrupted keeps the steps read until then.

        Args:
            on_progress: called after every decoding step, the prefill's included, in this thread.
            cancelled: asked before every pass over the weights.

        Raises:
            ValueError: (``PromptError``, ``ContextOverflow``, …) the request cannot run; nothing was decoded.
        """
        if self._closed:
            raise RuntimeError("this pipeline is closed: build a new one")
        started = time.perf_counter()
        prepared = self._prepare(request)
        answer = prepared.answer
        limit = request.max_tokens + (request.thinking_tokens if prepared.thinking else 0)
        stopping = Stopping(limit, self.stop_ids, request.deadline, cancelled, scan=prepared.stop.scan)
        drafter = None if request.plain else self.drafter
        steps = decode(
            self._target,
            drafter,
            PromptInput(prepared.ids),
            request.sampling,
            stopping,
            self.rule,
            self._budget,
            constraint=prepared.constraint,
            prefix_cache=self._prefix_cache,
            cost=self._cost,
        )
        metrics: list[StepMetrics] = []
        finish: Finish | None = None
        first_step_ms: float | None = None
        expected_ms: float | None = None
        try:
            with closing(cast("Generator[DecodeStep, None, None]", steps)):
                for step in steps:
                    if not metrics:
                        expected_ms = self._expected_ms(step.metrics, request)
                    metrics.append(step.metrics)
                    finish = step.finish
                    progress = answer.take(step)
                    if progress.new_steps and first_step_ms is None:
                        first_step_ms = (time.perf_counter() - started) * 1e3
                    on_progress(replace(progress, expected_ms=expected_ms))
        except BaseException:
            self._prefix_cache.forget()  # whatever broke may have left the target anywhere
            raise
        plan = answer.plan(ended=finish in ("eos", "stop_sequence"))
        if not request.free_text and len(plan.steps) >= request.max_steps:
            plan = replace(plan, complete=False)  # the limit may have ended it, not the model
        outcome, detail = _outcome(finish, plan, limit)
        totals = summarize(metrics, len(prepared.ids), len(answer.tokens), self._prefix_cache.reused)
        if finish in ("eos", "stop_sequence", "max_tokens") and totals.time_per_output_token_ms:
            pace, length = self._past.get(request.plain, (totals.time_per_output_token_ms, totals.new_tokens))
            self._past[request.plain] = (
                (pace + totals.time_per_output_token_ms) / 2,
                (length + totals.new_tokens) / 2,
            )
        return PlanResult(
            plan, tuple(answer.tokens), outcome, detail, totals, first_step_ms, answer.thinking, expected_ms
        )

    def warm_up(self) -> None:
        """Run the passes a request will run, so that the first request neither pays for lazy initialisation nor has to
        find out what passes cost.
        """
        request = PlanRequest("Bring the cup.", SamplingParams(), _WARM_UP_TOKENS)
        ids = self._prepare(request).ids  # makes the grammar's own view of the tokenizer too
        settings = SamplingParams(), Stopping(_WARM_UP_TOKENS), self.rule, FixedBudget(self._budget.most)
        for drafter in (None, self.drafter):
            for _ in decode(self._target, drafter, PromptInput(ids), *settings, cost=self._cost):
                pass
        if self.drafter:  # which may have had no idea
            self._time_passes(ids[-1])
        self._target.truncate(0)
        self._prefix_cache.forget()

    def _time_passes(self, token: int) -> None:
        """One pass of each width up to the widest that drafts need: 1, 2, 4, 8, …"""
        room = self.info.context_length - self._target.committed_length
        widest = max(1, min(self._budget.most + 1, self.info.max_nodes, room))
        for width in sorted({widest, *(2**k for k in range(widest.bit_length()))}):
            for _ in range(2):  # the first of a kind may be slow
                started = time.perf_counter()
                self._target.verify(DraftTree.chain([token] * width))
                seconds = time.perf_counter() - started
            self._cost.observe(width, seconds)
            self._budget.time_pass(width, seconds)

    def close(self) -> None:
        """Free target and drafter; may be called again."""
        if not self._closed:
            self._closed = True
            if self.drafter:
                self.drafter.close()
            self._target.close()

    def _prepare(self, request: PlanRequest) -> _Prepared:
        """Everything a run needs, made and checked before anything is decoded."""
        skills, tokenizer = request.skills or self.skills, self._tokenizer
        think_end = tokenizer.think_end if request.thinking_tokens else None
        prompt = build_prompt(request.instruction, skills, request.scene, request.history, self.prompt_examples)
        start = "" if think_end is not None else prompt.answer_start
        ids = tokenizer.encode_chat(prompt.messages, start, think_end is not None)
        constraint: Constraint | None = None
        size = self.info.vocabulary_size
        if not request.free_text:
            told = request.hold_preconditions and is_told(request.scene, skills)
            kind = ExecutableConstraint if told else PlanConstraint
            constraint = kind(tokenizer, skills, request.scene, size, request.max_steps)
        if think_end is not None:
            lead = tokenizer.encode(f"\n\n{prompt.answer_start}")
            constraint = ThinkingConstraint(
                constraint, lead, think_end, request.thinking_tokens, tokenizer.stop_ids, size
            )
        stop = StopText(tokenizer, request.stop, tokenizer.encode(start))
        answer = Answer(
            tokenizer, start, skills, request.scene, stop, think_end, valid_by_construction=not request.free_text
        )
        return _Prepared(ids, constraint, stop, answer, think_end is not None)

    def _expected_ms(self, prefill: StepMetrics, request: PlanRequest) -> float | None:
        """How long the run will take after this prefill if it is like the runs of its kind before it."""
        if request.plain not in self._past:
            return None
        pace, length = self._past[request.plain]
        return prefill.elapsed_ms + pace * (min(length, request.max_tokens) - 1)


@dataclass(frozen=True)
class _Prepared:
    """A request, ready to decode."""

    ids: tuple[int, ...]
    constraint: Constraint | None
    stop: StopText
    answer: Answer
    thinking: bool


def _outcome(finish: Finish | None, plan: Plan, max_tokens: int) -> tuple[Outcome, str]:
    """How a run ended, and one sentence on it unless it succeeded."""
    count = f"{len(plan.steps)} step{'' if len(plan.steps) == 1 else 's'}"
    if finish == "cancelled":
        return "cancelled", f"cancelled after {count}"
    if finish == "deadline":
        return "deadline", f"the deadline passed after {count}: allow more time or ask for fewer tokens"
    if plan.steps:
        return "succeeded", ""
    if finish == "eos":
        why = "the model ended its answer"
    elif finish == "stop_sequence":
        why = "the answer reached a stop sequence"
    elif finish == "max_tokens":
        why = f"the answer reached max_tokens ({max_tokens})"
    else:
        why = "the answer reached the end of the context"
    detail = f"{why} without a step the robot can do"
    if plan.rejected:
        detail += f"; its first line {plan.rejected[0].text[:60]!r} was refused: {plan.rejected[0].reason}"
    return "unparsable", detail
