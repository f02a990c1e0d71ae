"""States, and what one step does to a state.

A state is the set of facts that hold; what is not in it does not hold. A step is checked and applied like a STRIPS
action: its values are put in, its skill's variables are bound by matching the preconditions against the state, then the
effects that end something are taken out and those that begin something are put in.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal

from ..language.plan import ENUM, NUMBER, PLACE, Condition, Fact, Parameter, PlanStep, Scene, Skill, SkillSet

State = frozenset[Fact]
SOMEWHERE = "(somewhere)"  # where the robot is before its first drive when the scene does not say; no thing's name
_NUMERAL = re.compile(r"-?[0-9]{1,10}(\.[0-9]{1,6})?")
Binding = dict[str, str]


class WorldError(ValueError):
    """A step that cannot be done here; one sentence with the step and the reason."""


def start(scene: Scene, skills: SkillSet) -> State:
    """The state a scene describes, with what holds initially unless the scene contradicts it.

    A scene fact contradicts an initial fact if no skill lets both hold: whatever begins the one ends the other, in both
    directions. So ``holding(red cup)`` takes away ``hand_empty()``.
    """
    facts = set(scene.facts)
    facts |= {fact for fact in skills.initially if not any(_exclude(fact, other, skills) for other in scene.facts)}
    if not any(fact.predicate == "robot_at" for fact in facts):
        facts.add(Fact("robot_at", (SOMEWHERE,)))
    return frozenset(facts)


def reached(state: State, goal: tuple[Condition, ...]) -> bool:
    """Whether every condition of ``goal`` is met; an empty goal always is."""
    return not unmet(state, goal)


def unmet(state: State, goal: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """The conditions of ``goal`` that ``state`` does not meet, in order."""
    return tuple(condition for condition in goal if (condition.fact in state) != condition.holds)


def apply(state: State, step: PlanStep, skills: SkillSet, scene: Scene) -> State:
    """The state after ``step``.

    Where more than one thing could bind a variable, the one listed first in the scene does, variable by variable in the
    order of the preconditions.

    Raises:
        WorldError: there is no such skill, a value is none the parameter takes, or a precondition is not met; the
            sentence names the first one that fails whatever is bound.
    """
    line = f"{step.skill}({', '.join(step.values)})"
    skill = skills.by_name.get(step.skill)
    if skill is None:
        raise WorldError(f"{line}: the robot has no skill {step.skill!r}")
    if len(step.values) != len(skill.parameters):
        raise WorldError(f"{line}: {skill.signature} takes {len(skill.parameters)} values, got {len(step.values)}")
    values = {
        p.name: _value(p, value, skills, scene, line) for p, value in zip(skill.parameters, step.values, strict=True)
    }
    binding = Match(skill, state, skills, scene).bind(values, line)
    ended = {_ground(effect.fact, binding) for effect in skill.effects if not effect.holds}
    begun = {_ground(effect.fact, binding) for effect in skill.effects if effect.holds}
    return (state - ended) | begun


def canonical_number(text: str) -> str:
    """``"40.0"`` → ``"40"``: facts hold one spelling of each number. Other text comes back as it is."""
    if not _NUMERAL.fullmatch(text):
        return text
    number = Decimal(text)
    return format(number.normalize(), "f") if number else "0"


def _value(parameter: Parameter, value: str, skills: SkillSet, scene: Scene, line: str) -> str:
    """``value`` as facts hold it, if ``parameter`` takes it."""
    if parameter.names_a_thing:
        return _thing(parameter, value, skills, scene, line)
    if parameter.kind == NUMBER:
        if not _NUMERAL.fullmatch(value) or len(value.partition(".")[2]) > parameter.decimals:
            shape = f"with at most {parameter.decimals} decimals" if parameter.decimals else "without decimals"
            raise WorldError(f"{line}: {parameter.name} is a number {shape}, got {value!r}")
        if not parameter.low <= float(value) <= parameter.high:
            limits = f"{parameter.low:g} to {parameter.high:g}{' ' + parameter.unit if parameter.unit else ''}"
            raise WorldError(f"{line}: {parameter.name} must be within {limits}, got {value}")
        return canonical_number(value)
    if parameter.kind == ENUM and value not in parameter.choices:
        raise WorldError(f"{line}: {parameter.name} must be one of {', '.join(parameter.choices)}, got {value!r}")
    # Not str.isprintable: which characters exist differs between releases of Unicode, and so of Python.
    if not value.strip() or any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in value):
        raise WorldError(f"{line}: {parameter.name} must be printable text, got {value!r}")
    return value


def _thing(parameter: Parameter, value: str, skills: SkillSet, scene: Scene, line: str) -> str:
    names = scene.values_for(parameter, skills)
    if names is None or value in names:
        return value
    kind = next((thing.kind for thing in scene.things if thing.name == value), "")
    if not kind:
        raise WorldError(f"{line}: there is no {value!r} in the scene")
    raise WorldError(f"{line}: {parameter.name} must be of kind {parameter.kind}, and {value!r} is of kind {kind}")


def _ground(fact: Fact, binding: Binding) -> Fact:
    return Fact(fact.predicate, tuple(binding[argument] for argument in fact.arguments))


def _exclude(first: Fact, second: Fact, skills: SkillSet) -> bool:
    """Whether skills begin ``first`` and ``second`` and always end the one when they begin the other."""
    found = False
    for begun, ended in ((first, second), (second, first)):
        beginners = [skill for skill in skills if Condition(_pattern(begun), True) in map(_bare, skill.effects)]
        if any(Condition(_pattern(ended), False) not in map(_bare, skill.effects) for skill in beginners):
            return False
        found = found or bool(beginners)
    return found


def _pattern(fact: Fact) -> Fact:
    return Fact(fact.predicate)


def _bare(condition: Condition) -> Condition:
    return Condition(_pattern(condition.fact), condition.holds)


class Match:
    """Finds the bindings of a skill's variables, and of ``open_parameters``, under which preconditions are met."""

    def __init__(
        self,
        skill: Skill,
        state: State,
        skills: SkillSet,
        scene: Scene,
        open_parameters: tuple[Parameter, ...] = (),
    ) -> None:
        self.state, self.skills = state, skills
        # Those that bind come first: every variable is in one of them.
        self.conditions = sorted(skill.preconditions, key=lambda condition: not condition.holds)
        self.variables = {variable.name: variable for variable in (*skill.variables, *open_parameters)}
        self.kinds = {thing.name: thing.kind for thing in scene.things} | {SOMEWHERE: PLACE}
        order = {thing.name: index for index, thing in enumerate(scene.things)}
        self.rank = lambda fact: [(order.get(argument, len(order)), argument) for argument in fact.arguments]
        self.furthest, self.failed = -1, ""  # how many conditions were met at once, and the one that then was not

    def bind(self, values: Binding, line: str) -> Binding:
        """Raises ``WorldError`` where there is none."""
        found = next(self._bindings(self.conditions, 0, values), None)
        if found is None:
            raise WorldError(f"{line}: {self.failed}")
        return found

    def bindings(self, conditions: list[Condition]) -> Iterator[Binding]:
        """Every binding that meets ``conditions``, which hold facts; in the scene's order."""
        return self._bindings(conditions, 0, {})

    def holds(self, fact: Fact, binding: Binding) -> bool:
        """Whether ``fact`` holds; one with an open argument does not."""
        return all(argument in binding for argument in fact.arguments) and _ground(fact, binding) in self.state

    def _bindings(self, conditions: list[Condition], index: int, binding: Binding) -> Iterator[Binding]:
        if index == len(conditions):
            yield binding
            return
        condition = conditions[index]
        matched = False
        for extended in self._extensions(condition, binding):
            matched = True
            yield from self._bindings(conditions, index + 1, extended)
        if not matched and index > self.furthest:
            self.furthest, self.failed = index, self._sentence(condition, binding)

    def _extensions(self, condition: Condition, binding: Binding) -> Iterator[Binding]:
        arguments = condition.fact.arguments
        if all(argument in binding for argument in arguments):
            if (_ground(condition.fact, binding) in self.state) == condition.holds:
                yield binding
            return
        predicate = condition.fact.predicate
        facts = [f for f in self.state if f.predicate == predicate and len(f.arguments) == len(arguments)]
        for fact in sorted(facts, key=self.rank):
            extended = dict(binding)
            for argument, value in zip(arguments, fact.arguments, strict=True):
                if argument not in extended and self._fits(self.variables[argument], value):
                    extended[argument] = value
                if extended.get(argument) != value:
                    break
            else:
                yield extended

    def _fits(self, variable: Parameter, value: str) -> bool:
        if not variable.names_a_thing:
            return variable.kind != ENUM or value in variable.choices
        # A name that no scene lists came in by a step, where the scene lists nothing of its sort: it has no kind.
        return value not in self.kinds or self.skills.is_a(self.kinds[value], variable.kind)

    def _sentence(self, condition: Condition, binding: Binding) -> str:
        names = [
            binding.get(a, f"some {self.variables[a].kind}" if a in self.variables else a)
            for a in condition.fact.arguments
        ]
        fact = Fact(condition.fact.predicate, tuple(names))
        return f"it needs {fact}, which does not hold" if condition.holds else f"{fact} must not hold, but it does"
