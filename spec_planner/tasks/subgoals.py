"""What clauses want of a scene: sub-goals in the order they are said, and what must be true in the end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..language.plan import Condition, Fact, Scene
from ..world.state import State, reached
from .domain import Clause
from .draft import Dead
from .wording import Said


@dataclass(frozen=True)
class SubGoal:
    """One ground thing to want: what to make true on the way, then the goal, then steps that no fact tells of."""

    by: tuple[Condition, ...]
    goal: tuple[Condition, ...]
    steps: tuple[str, ...] = ()

    @property
    def stages(self) -> tuple[Condition | str, ...]:
        return (*self.by, *self.goal, *self.steps)


def subgoals(said: Sequence[Said], scene: Scene, state: State) -> list[SubGoal]:
    """One for each thing of each clause. Raises ``Dead`` where "everything" is too little or too much."""
    return [goal for s in said for goal in _of(s, scene, state)]


def _of(said: Said, scene: Scene, state: State) -> Iterator[SubGoal]:
    clause, names = said.clause, dict(said.names)
    if clause.each:
        things = [thing.name for thing in scene.things if _matches(clause, names, thing.name, state)]
        things = [thing for thing in things if thing not in names.get(clause.but, ())]
        if not clause.each.low <= len(things) <= clause.each.high + 1:
            raise Dead
        names[clause.each.role] = tuple(things)
    for index in range(max((len(group) for group in names.values()), default=0)):
        binding = {role: group[index if len(group) > 1 else 0] for role, group in names.items()}
        by, goal = (tuple(_bind(c, binding) for c in part) for part in (clause.by, clause.goal))
        yield SubGoal(by, goal, tuple(_filled(step, binding) for step in clause.steps))


def _matches(clause: Clause, names: Mapping[str, tuple[str, ...]], thing: str, state: State) -> bool:
    assert clause.each is not None
    binding = {role: group[0] for role, group in names.items()} | {clause.each.role: thing}
    return _bind(clause.each.pattern, binding).fact in state


def _bind(condition: Condition, binding: Mapping[str, str]) -> Condition:
    fact = condition.fact
    return Condition(Fact(fact.predicate, tuple(binding.get(a, a) for a in fact.arguments)), condition.holds)


def _filled(step: str, binding: Mapping[str, str]) -> str:
    return re.sub(r"\b[a-z]+\b(?=[,)])", lambda match: binding[match.group()], step)


def all_matter(goals: Sequence[SubGoal], state: State) -> bool:
    """Nothing is asked for that is so already, but to close what must be opened on the way."""
    return all(
        not goal.goal or not reached(state, goal.goal) or goal.goal[0].fact.predicate == "closed" for goal in goals
    )


def final_goal(goals: Sequence[SubGoal], state: State) -> tuple[Condition, ...]:
    """What must hold in the end: what was asked for, but for what a later part of the instruction undoes.

    Raises:
        Dead: the plan undoes something that nobody asked to undo, such as a door closed first and opened on the way.
    """
    wanted = list(dict.fromkeys(condition for goal in goals for condition in goal.goal))
    kept = []
    for index, condition in enumerate(wanted):
        if reached(state, (condition,)):
            kept.append(condition)
        elif not any(_undoes(later, condition) for later in wanted[index + 1 :]):
            raise Dead
    return tuple(kept)


def _undoes(later: Condition, earlier: Condition) -> bool:
    if later == Condition(earlier.fact, not earlier.holds):
        return True
    if earlier.fact.predicate in ("at", "holding"):  # moved on, or given away
        thing = earlier.fact.arguments[0]
        return thing in later.fact.arguments and later.fact.predicate in ("at", "has", "holding", "shaken")
    return earlier.fact.predicate in _PASSING


_PASSING = ("robot_at", "tank_holds")  # true of one moment: the robot drives on, the tank is sprayed empty
