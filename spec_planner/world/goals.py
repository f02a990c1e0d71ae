"""Goals: conditions such as ``at(milk, table)`` and ``not closed(fridge)``."""

from __future__ import annotations

from collections.abc import Iterable

from ..language.plan import Condition, Scene, SkillSet
from ..language.skills import SkillError, parse_condition


class GoalError(ValueError):
    """A goal that cannot be read or can never be meant; one sentence."""


def parse_goal(lines: Iterable[str]) -> tuple[Condition, ...]:
    """``["at(red cup, table)", "not closed(fridge)"]`` → conditions; names may contain blanks.

    Numbers are compared as text: write them as ``canonical_number`` does, ``40`` rather than ``40.0``.

    Raises:
        GoalError: a line is no condition, or one contradicts another.
    """
    goal: list[Condition] = []
    for line in lines:
        try:
            condition = parse_condition(line)
        except SkillError as error:
            raise GoalError(f"in the goal, {error}") from error
        if Condition(condition.fact, not condition.holds) in goal:
            raise GoalError(f"the goal wants {condition.fact} and its opposite: keep one")
        if condition not in goal:
            goal.append(condition)
    return tuple(goal)


def check_goal(goal: tuple[Condition, ...], skills: SkillSet, scene: Scene) -> None:
    """Refuse a goal about something that neither the skills nor the scene can bring about or know.

    Raises:
        GoalError: an unknown predicate, the wrong number of names, or a name that is not in the scene where the skills
            put a thing (and not a number, a choice or text).
    """
    forms: dict[str, list[tuple[bool, ...]]] = {}  # predicate → for each use, whether each argument names a thing
    for skill in skills:
        things = {parameter.name: parameter.names_a_thing for parameter in (*skill.parameters, *skill.variables)}
        for condition in (*skill.preconditions, *skill.effects):
            form = tuple(things[argument] for argument in condition.fact.arguments)
            forms.setdefault(condition.fact.predicate, []).append(form)
    for fact in (*scene.facts, *skills.initially):
        forms.setdefault(fact.predicate, []).append((True,) * len(fact.arguments))
    names = {thing.name for thing in scene.things}
    for condition in goal:
        fact = condition.fact
        fitting = [form for form in forms.get(fact.predicate, []) if len(form) == len(fact.arguments)]
        if not fitting:
            raise GoalError(f"the goal {condition} is nothing that the skills or the scene speak of: correct it")
        for index, argument in enumerate(fact.arguments):
            if argument not in names and all(form[index] for form in fitting):
                raise GoalError(f"the goal {condition} names {argument!r}, which the scene does not list: list it")
