"""Which steps can be done in a state: every skill, with every choice of values under which its preconditions hold."""

from __future__ import annotations

from collections.abc import Iterator

from ..language.grammar import Call
from ..language.plan import PLACE, Parameter, Scene, Skill, SkillSet
from .state import Binding, Match, State


def is_told(scene: Scene, skills: SkillSet) -> bool:
    """Whether the scene says enough to judge steps by: where the robot is, and where every object is.

    Where it does not, an object may be anywhere, and a step on it must not be ruled out.
    """
    placed = {fact.arguments[0] for fact in scene.facts if fact.predicate in ("at", "holding") and fact.arguments}
    objects = [thing.name for thing in scene.things if not skills.is_a(thing.kind, PLACE)]
    return any(fact.predicate == "robot_at" for fact in scene.facts) and all(name in placed for name in objects)


def applicable(state: State, skills: SkillSet, scene: Scene) -> Iterator[Call]:
    """Calls whose preconditions hold, each once, skill by skill; what a precondition does not fix is left open.

    A value is None where any value of its parameter will do: a number, a choice, a text, or a name in a scene that
    lists nothing of its sort.
    """
    for skill in skills:
        found: dict[tuple[str | None, ...], None] = {}
        for binding in _bindings(skill, state, skills, scene):
            found[tuple(binding.get(parameter.name) for parameter in skill.parameters)] = None
        for values in found:
            yield skill, values


def _bindings(skill: Skill, state: State, skills: SkillSet, scene: Scene) -> Iterator[Binding]:
    match = Match(skill, state, skills, scene, skill.parameters)
    allowed = {p.name: scene.values_for(p, skills) if p.names_a_thing else p.choices or None for p in skill.parameters}
    positive = [condition for condition in match.conditions if condition.holds]
    negative = [condition for condition in match.conditions if not condition.holds]
    for bound in match.bindings(positive):
        if not all(name not in bound or values is None or bound[name] in values for name, values in allowed.items()):
            continue
        mentioned = {argument for condition in negative for argument in condition.fact.arguments}
        for binding in _choices(bound, [p for p in skill.parameters if p.name not in bound], allowed, mentioned):
            if all(not match.holds(condition.fact, binding) for condition in negative):
                yield binding


def _choices(
    bound: Binding, open_ones: list[Parameter], allowed: dict[str, tuple[str, ...] | None], mentioned: set[str]
) -> Iterator[Binding]:
    """``bound`` with every value for the parameters still open that name a thing or that a condition asks about."""
    if not open_ones:
        yield bound
        return
    first, *rest = open_ones
    values = allowed[first.name]
    if values is None or not (first.names_a_thing or first.name in mentioned):
        yield from _choices(bound, rest, allowed, mentioned)
        return
    for value in values:
        yield from _choices({**bound, first.name: value}, rest, allowed, mentioned)
