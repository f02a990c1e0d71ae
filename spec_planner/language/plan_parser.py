"""Plan text → steps, as the text arrives. Reads only: nothing in an answer is ever evaluated or executed.

One line is one step: ``1. go_to(kitchen)``, ``- pick("red cup")`` or ``give(object=book, person=Anna)``. A line becomes
a step only if its skill is on the robot's list and every parameter has a value that it may take: a thing of its kind
where the scene lists that sort, a number in its range, a choice of its list. Any other line is kept with the reason.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from .grammar import ANY_SCENE, NumberRange, values_of
from .plan import ENUM, NUMBER, Parameter, Plan, PlanStep, RejectedLine, Scene, Skill, SkillSet

MAX_LINE_CHARACTERS = 1000  # no step is this long; the rest of such a line is dropped, so memory stays bounded
_NUMBER_OR_BULLET = re.compile(r"(?:\(?(?:\d{1,4}\s?[.):])+|[-*+•–—])(?:\s+|(?=[A-Za-z_`*]))")
_FENCE = re.compile(r"`{3,}\w*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMED_VALUE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)", re.DOTALL)
_QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”", "‘": "’"}
_OPENING, _CLOSING = "([{", ")]}"
_SYNTAX = frozenset("()[]{}=,")


class _NotAStep(Exception):
    """Why a line is no step; caught where the line is filed."""


class PlanParser:
    """Feed pieces of an answer in any split; a step comes back as soon as its line is complete."""

    def __init__(self, skills: SkillSet, scene: Scene = ANY_SCENE, eager: bool = False) -> None:
        """``eager``: a step comes back with its closing bracket, not with the line break behind it, which is a token
        earlier. For answers under a grammar, where nothing can follow that bracket; if something does, the step stands
        and the line is also kept as rejected, so the plan is not complete.
        """
        self._skills = skills.by_name
        self._values = _Values(skills, scene)
        self._eager = eager
        self._early = ""  # what of the unfinished line has already become a step
        self._steps: list[PlanStep] = []
        self._rejected: list[RejectedLine] = []
        self._pieces: list[str] = []
        self._line = ""  # the unfinished line, at most MAX_LINE_CHARACTERS + 1 of it

    @property
    def text(self) -> str:
        """Everything fed so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def num_steps(self) -> int:
        return len(self._steps)

    def feed(self, piece: str) -> tuple[PlanStep, ...]:
        """Take the next piece; returns the steps whose lines it completed."""
        self._pieces.append(piece)
        before = len(self._steps)
        *completed, rest = piece.split("\n")
        for end in completed:
            self._extend_line(end)
            self._file_line()
        self._extend_line(rest)
        if self._eager and not self._early and self._line.rstrip().endswith(")"):
            self._file_early()
        return tuple(self._steps[before:])

    def finish(self) -> tuple[PlanStep, ...]:
        """The answer is over: read the last line, which no line break ended. Returns the step it holds, if any.

        In an ``eager`` answer that line is a step already, or was cut off in the middle and is nobody's mistake.
        """
        before = len(self._steps)
        if self._eager and not self._early:
            self._line = ""
        self._file_line()
        return tuple(self._steps[before:])

    def plan(self, ended: bool) -> Plan:
        """The plan so far. ``ended`` says that the model ended its answer itself."""
        complete = ended and bool(self._steps) and not self._rejected
        return Plan(tuple(self._steps), tuple(self._rejected), complete, self.text)

    def _extend_line(self, piece: str) -> None:
        self._line += piece[: MAX_LINE_CHARACTERS + 1 - len(self._line)]

    def _file_early(self) -> None:
        line = self._line.strip()
        try:
            skill, values = self._read(line)
        except _NotAStep:
            return  # it may become one yet
        self._file_step(skill, values, line)
        self._early = line

    def _file_line(self) -> None:
        line, early = self._line.strip(), self._early
        self._line = self._early = ""
        if line == early or _FENCE.fullmatch(line):
            return
        try:
            if early:
                raise _NotAStep(f"text follows the step: {line[len(early) :].strip()[:40]!r}")
            skill, values = self._read(line)
        except _NotAStep as reason:
            self._rejected.append(RejectedLine(line[:MAX_LINE_CHARACTERS], str(reason)))
        else:
            self._file_step(skill, values, line)

    def _file_step(self, skill: Skill, values: tuple[str, ...], line: str) -> None:
        self._steps.append(PlanStep(len(self._steps), skill.name, skill.parameter_names, values, line))

    def _read(self, line: str) -> tuple[Skill, tuple[str, ...]]:
        if len(line) > MAX_LINE_CHARACTERS:
            raise _NotAStep(f"the line is longer than {MAX_LINE_CHARACTERS} characters")
        call = line[_mark_length(line) :].lstrip("`* \t").rstrip("`*_ \t.;,")
        name = _NAME.match(call)
        if name is None or name.group() not in self._skills:  # some skill may begin with "_"; else that is emphasis
            call = call.lstrip("`*_ \t")
            name = _NAME.match(call)
        if name is None:
            raise _NotAStep("it is not of the form skill(value, …)")
        skill = self._skills.get(name.group())
        arguments = call[name.end() :].strip()
        if not arguments.startswith("("):
            raise _NotAStep("it is not of the form skill(value, …)")
        if skill is None:
            raise _NotAStep(f"{name.group()!r} is not one of the robot's skills")
        # As a grammar writes it first: names on a list may hold quotes, brackets or "=", which mean something below.
        plain = self._values.read_plain(skill, arguments[1:-1].split(", ")) if arguments[-1] == ")" else None
        if plain is not None:
            return skill, plain
        values = _bind(skill, _split_arguments(arguments))
        return skill, tuple(self._values.read(skill, p, v) for p, v in zip(skill.parameters, values, strict=True))


class _Values:
    """What the parameters of one robot's skills may be called in one scene."""

    def __init__(self, skills: SkillSet, scene: Scene) -> None:
        self._skills, self._scene = skills, scene
        self._kinds = {thing.name: thing.kind for thing in scene.things}
        self._listed: dict[Parameter, dict[str, list[str]] | None] = {}  # case-folded name → as the list spells it

    def read_plain(self, skill: Skill, values: Sequence[str]) -> tuple[str, ...] | None:
        """``values`` if they are one per parameter and each stands there as a grammar would write it."""
        if len(values) != len(skill.parameters):
            return None
        read = [self._read_plain(parameter, value) for parameter, value in zip(skill.parameters, values, strict=True)]
        return None if None in read else tuple(value for value in read if value is not None)

    def _read_plain(self, parameter: Parameter, value: str) -> str | None:
        if parameter.kind == NUMBER:
            return value if NumberRange.of(parameter).read(value) == value else None
        names = self._names(parameter)
        if names is not None:
            return value if value in names.get(value.casefold(), ()) else None
        syntax = not value or value[0] in _QUOTES or not _SYNTAX.isdisjoint(value)
        return None if syntax else _value(value) or None

    def read(self, skill: Skill, parameter: Parameter, value: str) -> str:
        """``value`` as the list spells it, a number as ``NumberRange`` does; raises ``_NotAStep`` if it is none."""
        where = f"parameter {parameter.name!r} of {skill.signature}"
        if parameter.kind == NUMBER:
            number = NumberRange.of(parameter).read(value.removesuffix(parameter.unit).rstrip())
            if number is None:
                raise _NotAStep(f"{value!r} is not {_describe_number(parameter)}, as {where} must be")
            return number
        names = self._names(parameter)
        if names is None:
            return value
        found = names.get(value.casefold(), [])
        if value in found:
            return value
        if len(found) == 1:
            return found[0]
        if found:
            raise _NotAStep(f"{value!r} may be {' or '.join(map(repr, found))}, as {where}")
        if parameter.kind == ENUM:
            raise _NotAStep(f"{value!r} is not a choice of {where}: {', '.join(parameter.choices)}"[:200])
        if value in self._kinds:
            raise _NotAStep(f"{value!r} is a thing of kind {self._kinds[value]}, but {where} takes {parameter.kind}")
        raise _NotAStep(f"{value!r} is not in the scene, as {where} must be")

    def _names(self, parameter: Parameter) -> dict[str, list[str]] | None:
        if parameter not in self._listed:
            values = values_of(parameter, self._skills, self._scene)
            folded: dict[str, list[str]] = {}
            for value in values or ():
                folded.setdefault(value.casefold(), []).append(value)
            self._listed[parameter] = None if values is None else folded
        return self._listed[parameter]


def _describe_number(parameter: Parameter) -> str:
    digits = f" with at most {parameter.decimals} decimal{'s' * (parameter.decimals > 1)}" if parameter.decimals else ""
    kind = "a number" if parameter.decimals else "a whole number"
    return f"{kind} from {parameter.low:g} to {parameter.high:g}{digits}"


def _mark_length(line: str) -> int:
    """Characters of ``1.``, ``2.1)``, ``(3)`` or a bullet, blanks behind it included."""
    mark = _NUMBER_OR_BULLET.match(line)
    return mark.end() if mark else 0


def _split_arguments(text: str) -> list[str]:
    """Top-level comma-separated arguments of ``(a, b(c, d), "e, f")``, quotes kept. Nothing may follow the last ')'."""
    arguments, start, depth, quote = [], 1, 0, ""
    for index, character in enumerate(text):
        if quote:
            if character == quote:
                quote = ""
        elif character in _QUOTES and not text[start:index].strip(" \t").rpartition("=")[2].strip():
            quote = _QUOTES[character]  # a quote opens only where a value starts: in "Anna's" it is an apostrophe
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
            if depth == 0:
                if text[index + 1 :].strip():
                    raise _NotAStep(f"unexpected text after the closing bracket: {text[index + 1 :].strip()[:40]!r}")
                arguments.append(text[start:index])
                return [] if len(arguments) == 1 and not arguments[0].strip() else arguments
        elif character == "," and depth == 1:
            arguments.append(text[start:index])
            start = index + 1
    raise _NotAStep("a quote is not closed" if quote else "the closing bracket is missing")


def _bind(skill: Skill, arguments: Sequence[str]) -> tuple[str, ...]:
    """One value per parameter, in the skill's order."""
    named: dict[str, str] = {}
    positional: list[str] = []
    for argument in arguments:
        match = _NAMED_VALUE.fullmatch(argument.strip())
        if match is None:
            if named:
                raise _NotAStep("a value without a name follows a named one")
            positional.append(_value(argument))
        elif match.group(1) not in skill.parameter_names:
            raise _NotAStep(f"{skill.signature} has no parameter {match.group(1)!r}")
        elif match.group(1) in named:
            raise _NotAStep(f"parameter {match.group(1)!r} is given twice")
        else:
            named[match.group(1)] = _value(match.group(2))
    twice = [name for name in skill.parameter_names[: len(positional)] if name in named]
    if twice:
        raise _NotAStep(f"parameter {twice[0]!r} is given twice")
    if len(positional) + len(named) != len(skill.parameters):
        raise _NotAStep(f"{skill.signature} takes {len(skill.parameters)} values, got {len(positional) + len(named)}")
    values = (*positional, *(named[name] for name in skill.parameter_names[len(positional) :]))
    for name, value in zip(skill.parameter_names, values, strict=True):
        if not value:
            raise _NotAStep(f"parameter {name!r} of {skill.signature} is empty")
    return values


def _value(text: str) -> str:
    """An argument without its quotes, with single blanks and no control characters."""
    text = text.strip()
    if len(text) >= 2 and _QUOTES.get(text[0]) == text[-1]:
        text = text[1:-1]
    return " ".join("".join(c if _is_printable(c) else " " for c in text).split())


def _is_printable(character: str) -> bool:
    # Cn: in no version of Unicode that this Python knows, such as an emoji of next year.
    return character.isprintable() or unicodedata.category(character) == "Cn"
