"""What a plan is made of and what it is about: skills with typed parameters, the scene, steps.

A *thing* is anything a step can name: an object, a place, a person. Its kind is a word the skill set knows; kinds form
a hierarchy (a fridge is a container, a container is a place), and a parameter takes every thing of its kind or below.
What is where, and in which state, are *facts*: ``at(red cup, table)``, ``closed(fridge)``, ``robot_at(hall)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

OBJECT, PLACE = "object", "place"  # the two kinds every skill set knows; all others descend from one of them
NUMBER, ENUM, TEXT = "number", "enum", "text"  # parameters that name no thing


@dataclass(frozen=True)
class Parameter:
    """One argument of a skill.

    Attributes:
        name: as errors and messages call it.
        kind: ``number``, ``enum``, ``text``, or a kind of thing.
        low, high, decimals, unit: of a number; ``decimals`` digits after the point, 0 for whole numbers.
        choices: of an enum.
    """

    name: str
    kind: str = OBJECT
    low: float = -math.inf
    high: float = math.inf
    decimals: int = 0
    unit: str = ""
    choices: tuple[str, ...] = ()

    @property
    def names_a_thing(self) -> bool:
        return self.kind not in (NUMBER, ENUM, TEXT)


@dataclass(frozen=True)
class Fact:
    """Something that holds: a predicate over names. In a skill's conditions, over its parameters and variables."""

    predicate: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.predicate}({', '.join(self.arguments)})"


@dataclass(frozen=True)
class Condition:
    """A fact that must hold, or must not; among effects, that will hold or will hold no more."""

    fact: Fact
    holds: bool = True

    def __str__(self) -> str:
        return str(self.fact) if self.holds else f"not {self.fact}"


@dataclass(frozen=True)
class Skill:
    """Something the robot can do.

    Attributes:
        name: identifier, as the model writes it (``pick``).
        parameters: its arguments, in order.
        description: one sentence.
        variables: things that conditions speak of but the call does not (where the object is), bound by them.
        preconditions, effects: what must hold before and what changes; both empty where the skill is not modelled.
    """

    name: str
    parameters: tuple[Parameter, ...]
    description: str = ""
    variables: tuple[Parameter, ...] = ()
    preconditions: tuple[Condition, ...] = ()
    effects: tuple[Condition, ...] = ()

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def signature(self) -> str:
        return f"{self.name}({', '.join(self.parameter_names)})"


@dataclass(frozen=True)
class SkillSet:
    """A robot's skills and the kinds of things they know.

    Attributes:
        skills: in the order the model is told.
        kinds: every kind but ``object`` and ``place``, with its parents.
        initially: facts about the robot that hold unless a scene says otherwise (``hand_empty()``).
    """

    skills: tuple[Skill, ...]
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    initially: tuple[Fact, ...] = ()

    def __iter__(self) -> Iterator[Skill]:
        return iter(self.skills)

    def __len__(self) -> int:
        return len(self.skills)

    @cached_property
    def by_name(self) -> dict[str, Skill]:
        return {skill.name: skill for skill in self.skills}

    def is_a(self, kind: str, ancestor: str) -> bool:
        """Whether things of ``kind`` are things of kind ``ancestor``."""
        return kind == ancestor or any(self.is_a(parent, ancestor) for parent in self.kinds.get(kind, ()))

    def knows(self, kind: str) -> bool:
        return kind in (OBJECT, PLACE) or kind in self.kinds


@dataclass(frozen=True)
class Thing:
    """Something in the scene that a step can name."""

    name: str
    kind: str = OBJECT


@dataclass(frozen=True)
class Scene:
    """What the robot can refer to, and what holds. An empty scene says nothing: names are then free."""

    things: tuple[Thing, ...] = ()
    facts: tuple[Fact, ...] = ()

    def values_for(self, parameter: Parameter, skills: SkillSet) -> tuple[str, ...] | None:
        """Names that ``parameter`` (of a thing) may take; None where the scene lists nothing of that sort at all.

        Of that sort: an object where it wants some kind of object, a place where it wants some kind of place. Where the
        scene tells no kinds of that sort, every one of them may be of any kind.
        """
        sort = PLACE if skills.is_a(parameter.kind, PLACE) else OBJECT
        listed = [thing for thing in self.things if skills.is_a(thing.kind, PLACE) == (sort == PLACE)]
        if not listed:
            return None
        kinds_told = any(thing.kind != sort for thing in listed)
        return tuple(thing.name for thing in listed if not kinds_told or skills.is_a(thing.kind, parameter.kind))


@dataclass(frozen=True)
class History:
    """What has happened before a replan: steps done, the one that failed (both as plan lines) and why."""

    done: tuple[str, ...] = ()
    failed: str = ""
    failure: str = ""


@dataclass(frozen=True)
class PlanStep:
    """One executable step: ``skill`` with one value per parameter, in the skill's order."""

    index: int  # from 0
    skill: str
    parameters: tuple[str, ...]  # their names
    values: tuple[str, ...]
    text: str  # the line it was read from


@dataclass(frozen=True)
class RejectedLine:
    """A line of the answer that is not a step, and why."""

    text: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """The steps of an answer in order.

    ``complete`` is True when the model ended its answer itself, below the limit of steps, and every line of it was read
    as a step: nothing that the robot should do is missing.
    """

    steps: tuple[PlanStep, ...]
    rejected: tuple[RejectedLine, ...]
    complete: bool
    text: str  # the whole answer, as decoded
