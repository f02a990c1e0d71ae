"""What goes into the plan pipeline and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..decoding.metrics import RunMetrics, StepMetrics
from ..decoding.sampling import SamplingParams
from ..language.plan import History, Plan, PlanStep, Scene, SkillSet

Outcome = Literal["succeeded", "deadline", "cancelled", "unparsable"]


@dataclass(frozen=True)
class PlanRequest:
    """One instruction to plan for."""

    instruction: str
    sampling: SamplingParams
    max_tokens: int
    scene: Scene = Scene()
    skills: SkillSet | None = None  # None: the robot's own
    history: History = History()  # of a replan
    deadline: float | None = None  # on time.monotonic()'s scale, seconds
    plain: bool = False  # decode without the drafter: the reference, and how an incident is replayed
    free_text: bool = False  # let the model write what it will; lines that are no steps are rejected afterwards
    hold_preconditions: bool = True  # only steps that can be done when their turn comes, where scene and skills tell
    max_steps: int = 24  # longest plan, where not free text
    stop: tuple[str, ...] = ()  # texts that end the answer
    thinking_tokens: int = 0  # how long a reasoning model may think first, over and above max_tokens; 0: not at all


@dataclass(frozen=True)
class PlanProgress:
    """News of one decoding step."""

    new_steps: tuple[PlanStep, ...]  # completed by this step
    text: str  # the answer so far
    metrics: StepMetrics
    thinking: str = ""  # the thought so far
    expected_ms: float | None = None  # what the whole run may take, by the pace of the runs before; None at first


@dataclass(frozen=True)
class PlanResult:
    """The end of a run, however it ended."""

    plan: Plan
    tokens: tuple[int, ...]
    outcome: Outcome
    detail: str  # one sentence when the outcome is not "succeeded"; empty otherwise
    metrics: RunMetrics
    time_to_first_step_ms: float | None  # None when no step was completed
    thinking: str = ""
    expected_ms: float | None = None  # as in PlanProgress
