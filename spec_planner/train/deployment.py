"""The target as a robot runs it: the same engine, prompt, grammar and preconditions, answering what it is asked."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import cast

from ..config import PlannerConfig
from ..decoding.contracts import Constraint, Drafter, PromptInput, TargetInfo
from ..decoding.draft_budget import FixedBudget
from ..decoding.loop import DecodeStep, decode
from ..decoding.metrics import StepMetrics
from ..decoding.prefix_cache import PrefixCache
from ..decoding.sampling import SamplingParams
from ..decoding.stopping import Stopping
from ..factory import build_drafter, build_pipeline, make_request, model_directory
from ..language.plan import SkillSet
from ..language.prompt import ANSWER_START, plan_text
from ..language.tokenizer import Tokenizer
from ..learning.corpus import continuation
from .prompts import Prompt


@dataclass(frozen=True)
class Asked:
    """A prompt as the target reads it, and what its answer is held to."""

    ids: tuple[int, ...]
    constraint: Constraint | None


class Deployment:
    """Use as a context manager; one caller at a time."""

    def __init__(self, config: PlannerConfig, skills: Mapping[str, SkillSet], report: Callable[[str], None]) -> None:
        """Load the target that ``config`` names; ``skills`` by domain.

        Raises:
            ValueError: it cannot be used; one sentence.
        """
        self._config, self._skills = config, skills
        self._tokenizer = Tokenizer(model_directory(config.model, report))
        self._pipeline = build_pipeline(replace(config, drafter="none"), report)
        self._cache = PrefixCache()

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *error: object) -> None:
        self._pipeline.close()

    @property
    def info(self) -> TargetInfo:
        return self._pipeline.info

    def drafter(self, name: str) -> Drafter:
        """The drafter of that name, or in that directory.

        Raises:
            ValueError: it cannot be loaded, or does not fit the target.
        """
        drafter = build_drafter(replace(self._config, drafter=name), self._pipeline.target)
        if drafter is None:
            raise ValueError("drafter 'none' is no drafter")
        return drafter

    def ask(self, prompt: Prompt) -> Asked:
        lesson = prompt.lesson
        if lesson is None:
            return Asked(self._tokenizer.encode_chat(prompt.messages), None)
        request = make_request(
            self._config, lesson.instruction, lesson.scene, self._skills[lesson.domain], lesson.history
        )
        return Asked(*self._pipeline.asked(request))

    def expert_answer(self, prompt: Prompt) -> list[int]:
        """What the task's expert would go on to say after ``ask(prompt).ids``; nothing for a plain prompt."""
        if prompt.lesson is None:
            return []
        answer = plan_text(prompt.lesson.plan).removeprefix(ANSWER_START)
        return continuation(self._tokenizer, ANSWER_START, answer)

    def answer(
        self,
        asked: Asked,
        sampling: SamplingParams,
        drafter: Drafter | None = None,
        num_draft_tokens: int = 1,
        stop: Callable[[], bool] = lambda: False,
    ) -> tuple[tuple[int, ...], list[StepMetrics]] | None:
        """The answer's ids, up to the token that ends it, and its cycles; None if ``stop`` said so on the way.

        Raises:
            Incompatible: (``ContextOverflow``) the prompt leaves no room for an answer.
        """
        stopping = Stopping(self._config.max_tokens, self._pipeline.stop_ids, cancelled=stop)
        steps = decode(
            self._pipeline.target,
            drafter,
            PromptInput(asked.ids),
            sampling,
            stopping,
            self._pipeline.rule,
            FixedBudget(num_draft_tokens),
            constraint=asked.constraint,
            prefix_cache=self._cache,
        )
        said: list[int] = []
        metrics: list[StepMetrics] = []
        with closing(cast("Generator[DecodeStep, None, None]", steps)):
            for step in steps:
                said += step.tokens
                metrics.append(step.metrics)
                if step.finish == "cancelled":
                    return None
        return tuple(said), metrics
