"""Skills and a scene → the grammar of every valid answer, and what each parameter may be called.

The grammar is text in llguidance's Lark dialect. It begins where the prompt's "1." ends::

    start: line1
    line1: call line2?            " go_to(kitchen)"
    line2: "\\n2." call line3?     "\\n2. pick(cup)"
    call: " go_to(" VALUE0 ")" | " pick(" VALUE1 ")" | …

Every value is one terminal that cannot contain what follows it (a comma or bracket), so the language is regular and
no answer has two readings, even where one name begins another ("cup", "cup holder").
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from .plan import ENUM, NUMBER, Parameter, Scene, Skill, SkillSet

ANY_SCENE = Scene()  # lists nothing: every name goes
MAX_STEPS = 24  # lines of an answer, where the caller names no other limit
MAX_FREE_CHARACTERS = 60  # of a value that is on no list
_UNBOUNDED = 10**15 - 1  # a number without bounds still ends: at most 15 digits before the point
# Printable; no blank at either end; nothing that the plan parser reads as syntax: brackets, "=", a comma, a quote in
# front. The classes are llguidance's (Rust's): Cc control, Cf format, Co private use, Z blanks and breaks.
_NEVER = r"(){}\[\],=\p{Cc}\p{Cf}\p{Co}\p{Z}"
_FREE_TEXT = rf"[^{_NEVER}\x22'`“‘](?:(?:[^{_NEVER}]| ){{0,{MAX_FREE_CHARACTERS - 2}}}[^{_NEVER}])?"
_SYNTAX = frozenset("(),\n")  # a listed value that held one of these could not be told from what surrounds it
_NUMBER = re.compile(r"[+-]?[0-9]{1,400}(?:\.[0-9]{1,400})?")


Call = tuple[Skill, tuple[str | None, ...]]  # a skill and its values; None: open


class GrammarError(ValueError):
    """No plan can be written with these skills in this scene; the message says what is missing."""


def plan_grammar(skills: SkillSet, scene: Scene = ANY_SCENE, max_steps: int = MAX_STEPS) -> str:
    """The grammar of an answer of 1 to ``max_steps`` lines. A skill that lacks a value for a parameter is left out.

    Raises:
        GrammarError: no skill is usable, a listed value holds a comma, bracket or line break, or ``max_steps`` is
            below 1.
    """
    if max_steps < 1:
        raise GrammarError(f"max_steps must be at least 1, got {max_steps}")
    terminals = _Terminals(skills, scene)
    calls: list[str] = []
    missing: dict[str, list[str]] = {}  # what the scene lacks → skills that would need it
    for skill in skills:
        names = [terminals.name(parameter, skill) for parameter in skill.parameters]
        for parameter in (p for p, name in zip(skill.parameters, names, strict=True) if not name):
            missing.setdefault(_what(parameter), []).append(skill.name)
        if not names:
            calls.append(_quote(f" {skill.name}()"))
        elif all(names):
            calls.append(" ".join([_quote(f" {skill.name}("), ' ", " '.join(names), '")"']))
    if not calls:
        raise GrammarError(_nothing_usable(missing))
    lines = ["start: line1", f"line1: call{' line2?' if max_steps > 1 else ''}"]
    for number in range(2, max_steps + 1):
        lines.append(
            f"line{number}: {_quote(f'{chr(10)}{number}.')} call{f' line{number + 1}?' * (number < max_steps)}"
        )
    lines.append("call: " + "\n  | ".join(calls))
    lines += [f"{name}: {definition}" for definition, name in terminals.defined.items()]
    return "\n".join(lines) + "\n"


def line_grammar(calls: Iterable[Call], number: int, last: bool, skills: SkillSet, scene: Scene) -> str:
    """The grammar of one line, the ``number``-th: one of ``calls``, and unless ``last`` perhaps the next line's number.

    It begins where the line's own number ends. Each value that is None in a call is open, as in ``plan_grammar``.

    Raises:
        GrammarError: there is no call.
    """
    terminals = _Terminals(skills, scene)
    lines: list[str] = []
    for skill, values in calls:
        parts = [f" {skill.name}("]  # texts, and names of terminals behind a \0
        for index, (parameter, value) in enumerate(zip(skill.parameters, values, strict=True)):
            parts.append(", " if index else "")
            parts.append("\0" + terminals.name(parameter, skill) if value is None else value)
        lines.append(_sequence([*parts, ")"]))
    if not lines:
        raise GrammarError("no step can be done here: every skill lacks something its preconditions ask for")
    after = "" if last else " next?"
    text = ["start: call" + after, "call: " + "\n  | ".join(lines)]
    text += [] if last else [f"next: {_quote(f'{chr(10)}{number + 1}.')}"]
    return "\n".join(text + [f"{name}: {definition}" for definition, name in terminals.defined.items()]) + "\n"


def _sequence(parts: Iterable[str]) -> str:
    """Texts joined where they touch, and terminals between them."""
    joined: list[str] = []
    for part in parts:
        if part.startswith("\0") or not joined or joined[-1].startswith("\0"):
            joined.append(part)
        else:
            joined[-1] += part
    return " ".join(part[1:] if part.startswith("\0") else _quote(part) for part in joined)


def values_of(parameter: Parameter, skills: SkillSet, scene: Scene) -> tuple[str, ...] | None:
    """What a thing or enum parameter may be called, in the scene's order; None where there is no list of it."""
    if parameter.kind == ENUM:
        return parameter.choices
    return scene.values_for(parameter, skills) if parameter.names_a_thing else None


@dataclass(frozen=True)
class NumberRange:
    """The numbers a parameter may take: multiples of 10^-decimals from ``lowest`` to ``highest``, in those units.

    Each has one spelling: no sign but a minus, no needless zero before or behind (``0.5``, ``2``, ``-10``).
    """

    lowest: int
    highest: int
    decimals: int

    @staticmethod
    def of(parameter: Parameter) -> NumberRange:
        def bound(value: float, rounding: str) -> int:
            if math.isinf(value):
                return int(math.copysign(_UNBOUNDED, value)) * int(10**parameter.decimals)
            return int(Decimal(str(value)).scaleb(parameter.decimals).to_integral_value(rounding))

        return NumberRange(bound(parameter.low, ROUND_CEILING), bound(parameter.high, ROUND_FLOOR), parameter.decimals)

    def read(self, text: str) -> str | None:
        """The spelling of the number that ``text`` writes; None if it is no number, or none of this range."""
        if not _NUMBER.fullmatch(text):
            return None
        sign, (whole, _, fraction) = -1 if text[0] == "-" else 1, text.lstrip("+-").partition(".")
        fraction = fraction.rstrip("0")
        if len(fraction) > self.decimals:
            return None
        units = sign * int(whole + fraction.ljust(self.decimals, "0"))
        if not self.lowest <= units <= self.highest:
            return None
        spelled = f"{int(whole)}{'.' * bool(fraction)}{fraction}"
        return f"-{spelled}" if units < 0 else spelled

    @property
    def pattern(self) -> str:
        """A regular expression of exactly these spellings; empty if there are none."""
        branches = [f"-{branch}" for branch in self._positive(max(-self.highest, 1), -self.lowest)]
        branches += self._positive(max(self.lowest, 0), self.highest)
        return "|".join(branches)

    def _positive(self, low: int, high: int) -> Iterator[str]:
        """Branches for ``low`` … ``high`` units, both at least 0."""
        if low > high:
            return
        scale = 10**self.decimals
        (first, first_rest), (last, last_rest) = divmod(low, scale), divmod(high, scale)
        if first == last:
            yield from self._with_fractions([str(first)], first_rest, last_rest)
            return
        if first_rest > 0:  # the lowest whole number has only some of the fractions, and so may the highest
            yield from self._with_fractions([str(first)], first_rest, scale - 1)
            first += 1
        if last_rest < scale - 1:
            yield from self._with_fractions([str(last)], 0, last_rest)
            last -= 1
        if first <= last:
            yield from self._with_fractions(list(_whole_numbers(first, last)), 0, scale - 1)

    def _with_fractions(self, wholes: list[str], low: int, high: int) -> Iterator[str]:
        """``wholes``, each with every fraction from ``low`` to ``high`` units that does not end in a zero."""
        fractions = []
        for digits in range(1, self.decimals + 1):
            unit = 10 ** (self.decimals - digits)
            for branch in _fixed_width(-(-low // unit), high // unit, digits):
                *head, (a, b) = branch
                if b > 0:
                    fractions.append(_spell([*head, (max(a, 1), b)]))
        tail = f"(?:\\.(?:{'|'.join(fractions)})){'?' * (low == 0)}" if fractions else ""
        if tail or low == 0:
            yield f"(?:{'|'.join(wholes)}){tail}"


_Digits = list[tuple[int, int]]  # per place, the lowest and the highest digit


def _whole_numbers(low: int, high: int) -> Iterator[str]:
    """Branches for ``low`` … ``high`` without leading zeros."""
    for width in range(len(str(low)), len(str(high)) + 1):
        least = 10 ** (width - 1) if width > 1 else 0
        for branch in _fixed_width(max(low, least), min(high, 10**width - 1), width):
            yield _spell(branch)


def _fixed_width(low: int, high: int, width: int) -> Iterator[_Digits]:
    """``low`` … ``high`` written with ``width`` digits, as few sequences of digit classes as the bounds need."""
    if low > high:
        return
    unit = 10 ** (width - 1)
    (first, first_rest), (last, last_rest) = divmod(low, unit), divmod(high, unit)
    if low % unit == 0 and high % unit == unit - 1:
        yield [(first, last), *[(0, 9)] * (width - 1)]
        return
    if first == last:
        yield from ([(first, first), *rest] for rest in _fixed_width(first_rest, last_rest, width - 1))
        return
    if first_rest > 0:
        yield from ([(first, first), *rest] for rest in _fixed_width(first_rest, unit - 1, width - 1))
        first += 1
    if last_rest < unit - 1:
        yield from ([(last, last), *rest] for rest in _fixed_width(0, last_rest, width - 1))
        last -= 1
    if first <= last:
        yield [(first, last), *[(0, 9)] * (width - 1)]


def _spell(digits: _Digits) -> str:
    return "".join(str(a) if a == b else f"[{a}-{b}]" for a, b in digits)


class _Terminals:
    """Named values of parameters; parameters with the same values share one name."""

    def __init__(self, skills: SkillSet, scene: Scene) -> None:
        self._skills, self._scene = skills, scene
        self._names: dict[Parameter, str] = {}  # by the parameter without its name
        self.defined: dict[str, str] = {}  # definition → name

    def name(self, parameter: Parameter, skill: Skill) -> str:
        """The terminal of a parameter's values; empty where it can take none."""
        key = replace(parameter, name="", unit="")
        if key not in self._names:
            definition = self._definition(parameter, skill)
            self._names[key] = self.defined.setdefault(definition, f"VALUE{len(self.defined)}") if definition else ""
        return self._names[key]

    def _definition(self, parameter: Parameter, skill: Skill) -> str:
        if parameter.kind == NUMBER:
            pattern = NumberRange.of(parameter).pattern
            return f"/{pattern}/" if pattern else ""
        values = values_of(parameter, self._skills, self._scene)
        if values is None:
            return f"/{_FREE_TEXT}/"
        for value in values:
            if not value or _SYNTAX & set(value):
                raise GrammarError(
                    f"{value!r:.80}, a value of {parameter.name!r} in {skill.signature}, cannot be written in a plan: "
                    "give it a name without commas, round brackets and line breaks"
                )
        return " | ".join(map(_quote, dict.fromkeys(values)))


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _what(parameter: Parameter) -> str:
    if parameter.kind == NUMBER:
        return f"number from {parameter.low:g} to {parameter.high:g} with {parameter.decimals} decimals"
    return f"choice for {parameter.name!r}" if parameter.kind == ENUM else parameter.kind


def _nothing_usable(missing: dict[str, list[str]]) -> str:
    if not missing:
        return "there is no skill to plan with: name at least one, such as pick(object)"
    wants = [f"no {what} (for {', '.join(names[:3])}{', …' * (len(names) > 3)})" for what, names in missing.items()]
    return f"no skill can be used in this scene: it has {', '.join(wants[:4])}{', …' * (len(wants) > 4)}; add one to it"
