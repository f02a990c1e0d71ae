"""Instruction → prompt → the decoding loop → text → plan steps, reported as they appear. No ROS in here."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import cast

from ..decoding.accept import Rule
from ..decoding.contracts import Drafter, Incompatible, PromptInput, Target, TargetInfo, check_compatible
from ..decoding.draft_tree import DraftTree
from ..decoding.loop import DecodeStep, decode
from ..decoding.metrics import StepMetrics, summarize
from ..decoding.sampling import SamplingParams
from ..decoding.stopping import Finish, Stopping
from ..language.plan import Plan, Scene, Skill
from ..language.plan_parser import PlanParser
from ..language.prompt import Prompt, build_prompt
from ..language.tokenizer import IncrementalDecoder, Tokenizer
from .types import Outcome, PlanProgress, PlanRequest, PlanResult

_WARM_UP_TOKENS = 8
_EMPTY_SCENE = Scene()


class PlanPipeline:
    """A loaded target with its drafter, ready to plan. One caller at a time; ``cancelled`` may look at other threads.

    Attributes:
        target, drafter: what is loaded; the pipeline closes them.
        rule: the acceptance rule of every run.
        skills: the robot's skills, for requests that name none.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        tokenizer: Tokenizer,
        rule: Rule,
        budget: Callable[[], int],
        skills: Sequence[Skill],
    ) -> None:
        """``budget``: draft tokens for the next cycle, as in ``decode``. The pipeline owns target and drafter.

        Raises:
            Incompatible: target, drafter and tokenizer do not fit together.
        """
        check_compatible(target.info, drafter)
        if tokenizer.vocabulary_size > target.info.vocabulary_size:
            raise Incompatible(
                f"the tokenizer has {tokenizer.vocabulary_size} tokens but target {target.info.name!r} knows only "
                f"{target.info.vocabulary_size}: use the tokenizer that came with the model"
            )
        self.rule, self.skills = rule, tuple(skills)
        self.target, self.drafter, self._tokenizer, self._budget = target, drafter, tokenizer, budget
        self._closed = False

    @property
    def info(self) -> TargetInfo:
        return self.target.info

    @property
    def stop_ids(self) -> frozenset[int]:
        return self._tokenizer.stop_ids

    def prompt_ids(
        self, instruction: str, skills: Sequence[Skill] = (), scene: Scene = _EMPTY_SCENE
    ) -> tuple[int, ...]:
        """What the target reads for an instruction, the beginning of its answer included.

        Raises:
            PromptError: no prompt can be made of it.
        """
        return self._encode(build_prompt(instruction, skills or self.skills, scene))

    @property
    def drafter_name(self) -> str:
        return self.drafter.name if self.drafter else "none"

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
        skills = request.skills or self.skills
        prompt = build_prompt(request.instruction, skills, request.scene)
        ids = self._encode(prompt)
        stopping = Stopping(request.max_tokens, self.stop_ids, request.deadline, cancelled)
        drafter = None if request.plain else self.drafter
        steps = decode(self.target, drafter, PromptInput(ids), request.sampling, stopping, self.rule, self._budget)

        answer = _Answer(self._tokenizer, prompt, skills)
        metrics: list[StepMetrics] = []
        finish: Finish | None = None
        first_step_ms: float | None = None
        with closing(cast("Generator[DecodeStep, None, None]", steps)):
            for step in steps:
                metrics.append(step.metrics)
                finish = step.finish
                progress = answer.take(step)
                if progress.new_steps and first_step_ms is None:
                    first_step_ms = (time.perf_counter() - started) * 1e3
                on_progress(progress)
        plan = answer.parser.plan(ended=finish == "eos")
        outcome, detail = _outcome(finish, plan, request.max_tokens)
        totals = summarize(metrics, len(ids), len(answer.tokens))
        return PlanResult(plan, tuple(answer.tokens), outcome, detail, totals, first_step_ms)

    def warm_up(self) -> None:
        """Run the passes a request will run once, so that the first request does not pay for lazy initialisation."""
        ids = self.prompt_ids("Bring the cup.")
        settings = SamplingParams(), Stopping(_WARM_UP_TOKENS), self.rule, self._budget
        for drafter in (None, self.drafter):
            for _ in decode(self.target, drafter, PromptInput(ids), *settings):
                pass
        if self.drafter:  # the drafter may have had no idea: run the widest pass whatever it said
            room = self.info.context_length - self.target.committed_length
            width = max(1, min(self._budget() + 1, self.info.max_nodes, room))
            self.target.verify(DraftTree.chain(ids[-1:] * width))
        self.target.truncate(0)

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode_chat(prompt.messages, prompt.answer_start))

    def close(self) -> None:
        """Free target and drafter; may be called again."""
        if not self._closed:
            self._closed = True
            if self.drafter:
                self.drafter.close()
            self.target.close()


class _Answer:
    """What one run has said so far: tokens, text, steps."""

    def __init__(self, tokenizer: Tokenizer, prompt: Prompt, skills: Sequence[Skill]) -> None:
        self.tokens: list[int] = []
        self.parser = PlanParser(skills)
        self._decoder = IncrementalDecoder(tokenizer, tokenizer.encode(prompt.answer_start))
        self.parser.feed(prompt.answer_start)

    def take(self, step: DecodeStep) -> PlanProgress:
        """Follow one decoding step; the last one also ends the last line."""
        self.tokens += step.tokens
        new_steps = self.parser.feed(self._decoder.push(step.tokens))
        if step.finish:
            new_steps += self.parser.feed(self._decoder.finish()) + self.parser.finish()
        return PlanProgress(new_steps, self.parser.text, step.metrics)


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
    elif finish == "max_tokens":
        why = f"the answer reached max_tokens ({max_tokens})"
    else:
        why = "the answer reached the end of the context"
    detail = f"{why} without a step the robot can do"
    if plan.rejected:
        detail += f"; its first line {plan.rejected[0].text[:60]!r} was refused: {plan.rejected[0].reason}"
    return "unparsable", detail
