"""What a replan is told of the plan before: lines as that plan had them → ``History``."""

from __future__ import annotations

from collections.abc import Sequence

from .plan import History, SkillSet
from .plan_parser import PlanParser


class HistoryError(ValueError):
    """A line that was no step of any plan; the message quotes it."""


def read_history(done: Sequence[str], failed: str, failure: str, skills: SkillSet) -> History:
    """``1. pick(cup)``, with or without its number, as ``pick(cup)``; things that are gone since may be named.

    Args:
        done: lines of the steps carried out.
        failed: the line of the one that was not, and ``failure`` why; "" where none failed.

    Raises:
        HistoryError: a line is no step, or a reason comes without a step.
    """
    if failure.strip() and not failed:
        raise HistoryError("failure says why a step failed, but failed names no step: name it")
    lines = tuple(_plan_line(line, f"line {number} of done", skills) for number, line in enumerate(done, 1))
    return History(lines, _plan_line(failed, "failed", skills) if failed else "", failure)


def _plan_line(line: str, where: str, skills: SkillSet) -> str:
    """``line`` as a plan writes it."""
    call, reason = _call(line, skills)
    if call and _call(call, skills)[0] != call:
        reason = "a value in it holds what plans are written with"
    if reason:
        raise HistoryError(f"{where}, {line[:80]!r}, is no step of a plan ({reason}): send it as the plan had it")
    return call


def _call(line: str, skills: SkillSet) -> tuple[str, str]:
    """The step of a plan line as ``skill(value, value)``, and why there is none."""
    parser = PlanParser(skills)
    parser.feed(line)
    parser.finish()
    read = parser.plan(ended=True)
    if read.rejected or len(read.steps) != 1:
        return "", read.rejected[0].reason if read.rejected else "one line holds one step"
    return f"{read.steps[0].skill}({', '.join(read.steps[0].values)})", ""
