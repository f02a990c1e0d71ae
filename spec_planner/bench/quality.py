"""Do the plans reach their goals? Tasks are planned, and the plans carried out in the world of facts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..language.plan import Plan, Scene, SkillSet
from ..language.scene import scene_from_mapping
from ..language.skills import load_skills
from ..pipeline.plan_pipeline import PlanPipeline
from ..pipeline.types import PlanRequest
from ..resources import shared_file
from ..tasks.task import Task, read_tasks
from ..world.execution import execute
from ..world.goals import parse_goal
from ..world.state import unmet

MakeRequest = Callable[[str, Scene, SkillSet, Task], PlanRequest]


@dataclass(frozen=True)
class Attempt:
    """One task, planned."""

    task: Task
    plan: tuple[str, ...]
    why_not: str  # why the goal was not reached; "" if it was
    complete: bool
    rejected: int
    identical: bool | None  # to plain decoding, token by token; None where that was not asked
    acceptance_length: float

    @property
    def reached(self) -> bool:
        return not self.why_not


class Evaluator:
    """Plans tasks on a pipeline. Skill sets are read once."""

    def __init__(self, pipeline: PlanPipeline, make_request: MakeRequest) -> None:
        self._pipeline, self._make_request = pipeline, make_request
        self._skills: dict[str, SkillSet] = {}

    def attempt(self, task: Task, check_identity: bool = False) -> Attempt:
        """Plan ``task`` and carry the plan out; with ``check_identity``, plan it without the drafter as well.

        A task without a scene has no world to be carried out in: its plan must be the expert's, line by line.
        """
        skills = self._skills_of(task.domain)
        scene = scene_from_mapping(task.scene, f"task {task.id}", skills)
        request = self._make_request(task.instruction, scene, skills, task)
        result = self._pipeline.run(request)
        identical = None
        if check_identity:
            identical = self._pipeline.run(replace(request, plain=True)).tokens == result.tokens
        lines = tuple(f"{step.skill}({', '.join(step.values)})" for step in result.plan.steps)
        return Attempt(
            task,
            lines,
            self._why_not(task, result.plan, lines, skills, scene),
            result.plan.complete,
            len(result.plan.rejected),
            identical,
            result.metrics.acceptance_length,
        )

    def _skills_of(self, domain: str) -> SkillSet:
        if domain not in self._skills:
            self._skills[domain] = load_skills(shared_file(f"config/skills/{domain}.yaml"))
        return self._skills[domain]

    @staticmethod
    def _why_not(task: Task, plan: Plan, lines: tuple[str, ...], skills: SkillSet, scene: Scene) -> str:
        if not plan.steps:
            return "there is no step"
        if not task.goal:
            return "" if lines == task.plan else f"the expert's plan is {'; '.join(task.plan)}"
        execution = execute(plan.steps, skills, scene)
        if execution.failure:
            return execution.failure
        left = unmet(execution.state, parse_goal(task.goal))
        return f"not reached: {', '.join(map(str, left))}" if left else ""


def read_split(path: Path, count: int) -> list[Task]:
    """Up to ``count`` tasks of a file, spread evenly over it so that every domain is in.

    Raises:
        TaskError, OSError: the file cannot be used.
    """
    tasks = list(read_tasks(path))
    if len(tasks) <= count:
        return tasks
    return [tasks[index * len(tasks) // count] for index in range(count)]


def summary(attempts: Sequence[Attempt]) -> dict[str, object]:
    """Shares over ``attempts``, 0 to 1; ``identical`` counts the pairs compared and those that agreed.

    ``reached`` is of the tasks that have a world; of those without a scene, ``without_scene`` counts the plans that are
    the expert's line by line.
    """
    compared = [attempt for attempt in attempts if attempt.identical is not None]
    in_world = [attempt.reached for attempt in attempts if attempt.task.goal]
    blind = [attempt.reached for attempt in attempts if not attempt.task.goal]
    share = statistics.mean(in_world) if in_world else 0.0
    return {
        "tasks": len(in_world),
        "reached": round(share, 4),
        "standard_error": round((share * (1 - share) / max(len(in_world), 1)) ** 0.5, 4),
        "without_scene": f"{sum(blind)}/{len(blind)}",
        "complete": round(statistics.mean(attempt.complete for attempt in attempts), 4),
        "with_rejected_lines": round(statistics.mean(attempt.rejected > 0 for attempt in attempts), 4),
        "identity_checked": len(compared),
        "identical": sum(bool(attempt.identical) for attempt in compared),
        "acceptance_length": round(statistics.mean(attempt.acceptance_length for attempt in attempts), 3),
    }
