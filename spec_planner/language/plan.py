"""What a plan is: typed steps, each a skill from the robot's own list applied to named arguments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Skill:
    """Something the robot can do.

    Attributes:
        name: identifier, as the model writes it (``pick``).
        parameters: names of its arguments, in order.
        description: one sentence for the model.
    """

    name: str
    parameters: tuple[str, ...]
    description: str = ""

    @property
    def signature(self) -> str:
        return f"{self.name}({', '.join(self.parameters)})"


@dataclass(frozen=True)
class Scene:
    """What the robot can refer to."""

    objects: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanStep:
    """One executable step: ``skill`` with one value per parameter, in the skill's order."""

    index: int  # from 0
    skill: str
    parameters: tuple[str, ...]
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

    ``complete`` is True when the model ended its answer itself and every line of it was read as a step: nothing that
    the robot should do is missing.
    """

    steps: tuple[PlanStep, ...]
    rejected: tuple[RejectedLine, ...]
    complete: bool
    text: str  # the whole answer, as decoded
