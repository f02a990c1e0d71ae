"""Plan text → steps, as the text arrives. Reads only: nothing in an answer is ever evaluated or executed.

One line is one step: ``1. go_to(kitchen)``, ``- pick("red cup")`` or ``give(object=book, person=Anna)``. A line becomes
a step only if its skill is on the robot's list and every parameter has a value; any other line is kept with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .plan import Plan, PlanStep, RejectedLine, Skill

MAX_LINE_CHARACTERS = 500  # no step is this long; the rest of such a line is dropped, so memory stays bounded
_NUMBER_OR_BULLET = re.compile(r"(?:\(?(?:\d{1,4}\s?[.):])+|[-*+•–—])(?:\s+|(?=[A-Za-z_`*]))")
_FENCE = re.compile(r"`{3,}\w*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMED_VALUE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)", re.DOTALL)
_QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”", "‘": "’"}
_OPENING, _CLOSING = "([{", ")]}"


class _NotAStep(Exception):
    """Why a line is no step; caught where the line is filed."""


class PlanParser:
    """Feed pieces of an answer in any split; a step comes back as soon as its line is complete."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._skills = {skill.name: skill for skill in skills}
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
        return tuple(self._steps[before:])

    def finish(self) -> tuple[PlanStep, ...]:
        """The answer is over: read the last line, which no line break ended. Returns the step it holds, if any."""
        before = len(self._steps)
        self._file_line()
        return tuple(self._steps[before:])

    def plan(self, ended: bool) -> Plan:
        """The plan so far. ``ended`` says that the model ended its answer itself."""
        complete = ended and bool(self._steps) and not self._rejected
        return Plan(tuple(self._steps), tuple(self._rejected), complete, self.text)

    def _extend_line(self, piece: str) -> None:
        self._line += piece[: MAX_LINE_CHARACTERS + 1 - len(self._line)]

    def _file_line(self) -> None:
        line, self._line = self._line.strip(), ""
        if not line or _FENCE.fullmatch(line):
            return
        try:
            skill, values = self._read(line)
        except _NotAStep as reason:
            self._rejected.append(RejectedLine(line[:MAX_LINE_CHARACTERS], str(reason)))
        else:
            self._steps.append(PlanStep(len(self._steps), skill.name, skill.parameters, values, line))

    def _read(self, line: str) -> tuple[Skill, tuple[str, ...]]:
        if len(line) > MAX_LINE_CHARACTERS:
            raise _NotAStep(f"the line is longer than {MAX_LINE_CHARACTERS} characters")
        call = line[_mark_length(line) :].strip("`*_ \t").rstrip(".;, \t`*")
        name = _NAME.match(call)
        if name is None:
            raise _NotAStep("it is not of the form skill(value, …)")
        skill = self._skills.get(name.group())
        arguments = call[name.end() :].strip()
        if not arguments.startswith("("):
            raise _NotAStep("it is not of the form skill(value, …)")
        if skill is None:
            raise _NotAStep(f"{name.group()!r} is not one of the robot's skills")
        return skill, _bind(skill, _split_arguments(arguments))


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
        elif match.group(1) not in skill.parameters:
            raise _NotAStep(f"{skill.signature} has no parameter {match.group(1)!r}")
        elif match.group(1) in named:
            raise _NotAStep(f"parameter {match.group(1)!r} is given twice")
        else:
            named[match.group(1)] = _value(match.group(2))
    twice = [name for name in skill.parameters[: len(positional)] if name in named]
    if twice:
        raise _NotAStep(f"parameter {twice[0]!r} is given twice")
    if len(positional) + len(named) != len(skill.parameters):
        raise _NotAStep(f"{skill.signature} takes {len(skill.parameters)} values, got {len(positional) + len(named)}")
    values = (*positional, *(named[name] for name in skill.parameters[len(positional) :]))
    for name, value in zip(skill.parameters, values, strict=True):
        if not value:
            raise _NotAStep(f"parameter {name!r} of {skill.signature} is empty")
    return values


def _value(text: str) -> str:
    """An argument without its quotes, with single blanks and no control characters."""
    text = text.strip()
    if len(text) >= 2 and _QUOTES.get(text[0]) == text[-1]:
        text = text[1:-1]
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
