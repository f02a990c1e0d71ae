"""Plans carried out in the world of facts, step by step, to the end or to the first step that cannot be done."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..language.plan import PlanStep, Scene, SkillSet
from .state import State, WorldError, apply, start

_LINE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*\(([^()]*)\)\s*")


@dataclass(frozen=True)
class Execution:
    """What came of a plan.

    Attributes:
        states: before the first step and after each step that was done; its last entry is where things ended.
        failure: why the next step could not be done, naming it; "" if all were done.
    """

    states: tuple[State, ...]
    failure: str = ""

    @property
    def state(self) -> State:
        return self.states[-1]

    @property
    def steps_done(self) -> int:
        return len(self.states) - 1


def execute(steps: Iterable[PlanStep | str], skills: SkillSet, scene: Scene, state: State | None = None) -> Execution:
    """Carry out ``steps`` (or plan lines such as ``"put(milk, table)"``) from ``state``, by default the scene's.

    Never raises ``WorldError``: a step that cannot be done ends the execution and is its ``failure``.
    """
    states = [start(scene, skills) if state is None else state]
    for index, step in enumerate(steps):
        try:
            step = read_step(step, skills, index) if isinstance(step, str) else step
            states.append(apply(states[-1], step, skills, scene))
        except WorldError as error:
            return Execution(tuple(states), str(error))
    return Execution(tuple(states))


def read_step(line: str, skills: SkillSet, index: int = 0) -> PlanStep:
    """``"put(red cup, table)"``, exactly as task files write it → step. What a model writes is for the plan parser.

    Raises:
        WorldError: it is not of that form, or there is no such skill.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        raise WorldError(f"{line[:80]!r} is not a step: write skill(value, value)")
    skill = skills.by_name.get(match.group(1))
    if skill is None:
        raise WorldError(f"{line.strip()[:80]}: the robot has no skill {match.group(1)!r}")
    values = tuple(value.strip() for value in match.group(2).split(",")) if match.group(2).strip() else ()
    return PlanStep(index, skill.name, skill.parameter_names, values, line.strip())
