"""What goes into the plan pipeline and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..decoding.metrics import RunMetrics, StepMetrics
from ..decoding.sampling import SamplingParams
from ..language.plan import Plan, PlanStep, Scene, Skill

Outcome = Literal["succeeded", "deadline", "cancelled", "unparsable"]


@dataclass(frozen=True)
class PlanRequest:
    """One instruction to plan for."""

    instruction: str
    scene: Scene
    skills: tuple[Skill, ...]
    sampling: SamplingParams
    max_tokens: int
    deadline: float | None = None  # on time.monotonic()'s scale, seconds
    plain: bool = False  # decode without the drafter: the reference, and how an incident is replayed


@dataclass(frozen=True)
class PlanProgress:
    """News of one decoding step."""

    new_steps: tuple[PlanStep, ...]  # completed by this step
    text: str  # the answer so far
    metrics: StepMetrics


@dataclass(frozen=True)
class PlanResult:
    """The end of a run, however it ended."""

    plan: Plan
    tokens: tuple[int, ...]
    outcome: Outcome
    detail: str  # one sentence when the outcome is not "succeeded"; empty otherwise
    metrics: RunMetrics
    time_to_first_step_ms: float | None  # None when no step was completed
