"""The memory budget as the command line shows it: in JSON, as lines, and what of it is a problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .probes import Problem

if TYPE_CHECKING:
    from ..config import PlannerConfig
    from ..memory.budget import MemoryBudget
    from ..memory.check import Fit

_REFUSED = "the planner would refuse to load it"
_LINES = ("weights", "copies", "kv", "drafter", "restored", "activations", "workspace", "process")
_ALWAYS = ("weights", "kv", "drafter")  # shown where they are nothing, too


def report_of(
    directory: Path, config: PlannerConfig, engines: Sequence[str]
) -> tuple[dict[str, Any] | None, list[Problem]]:
    """The budget beside what the device has, in bytes; without the drafter where that is a problem.

    Args:
        engines: that ``config`` may come to run on. Until one is remembered, shown is the largest that fits of their
            budgets, and where none does the least: the planner leaves out what does not fit.
    """
    from ..engine_choice import remembered_engine
    from ..memory import check

    try:
        remembered = remembered_engine(config, directory) if engines else None
        names = (remembered,) if remembered else tuple(engines) or (config.engine_name,)
        weighed = [_weighed(directory, replace(config, engine=name)) for name in names]
    except (ValueError, OSError) as error:
        return None, [problem_of(error, _REFUSED, "give a complete model directory of a supported family")]
    possible = [each for each in weighed if each.fit.fits is not False]
    shown = max(possible, key=_needed) if possible else min(weighed, key=_needed)
    fit, config, problems = shown.fit, shown.config, shown.problems
    report = {
        "device": fit.memory.device,
        "engine": config.engine,
        "largest_of": [each.config.engine for each in possible] if len(possible) > 1 else [],
        "precision": config.precision,
        "context_length": config.context_length,
        **asdict(fit.budget),
        "total": fit.needed,
        "available": fit.memory.available,
        "machine": fit.memory.total,
        "fits": fit.fits,
    }
    if fit.fits is False:
        fix = "use another drafter, then look again" if problems else check.remedy(config, directory, fit)
        problems = [*problems, Problem(check.shortage(fit), _REFUSED, fix)]
    return report, problems


class _Weighed(NamedTuple):
    """A configuration with its engine named; ``problems``: with its drafter, which is not in ``fit`` then."""

    config: PlannerConfig
    fit: Fit
    problems: list[Problem]


def _weighed(directory: Path, config: PlannerConfig) -> _Weighed:
    from ..memory import budget, check

    alone = budget.target_budget(config, directory)
    found, problems = _with_drafter(directory, config)
    return _Weighed(config, check.weigh(found or alone, check.device_memory(config)), problems)


def _needed(weighed: _Weighed) -> int:
    return weighed.fit.needed


def _with_drafter(directory: Path, config: PlannerConfig) -> tuple[MemoryBudget | None, list[Problem]]:
    """The budget with the drafter's part; None where it cannot be used with the target in ``directory``."""
    from ..drafter_choice import check_fits, chosen
    from ..factory import find_rule
    from ..memory.budget import memory_budget

    try:
        config = chosen(config, directory)
        check_fits(config, find_rule(config.rule))
        return memory_budget(config, directory), []
    except ImportError as error:
        what, fix = f"drafter {config.drafter} needs the package {error.name}", f"pip install {error.name}"
    except (ValueError, OSError) as error:
        fix = "set drafter to lookup, to another name or to a checkpoint's directory"
        return None, [problem_of(error, _REFUSED, fix)]
    return None, [Problem(what, _REFUSED, fix)]


def problem_of(error: Exception, why: str, otherwise: str) -> Problem:
    """Our sentences end in what to do; ``otherwise``: for those of others."""
    what, _, fix = str(error).rpartition(": ")
    return Problem(what or str(error), why, fix if what else otherwise)


def as_lines(need: dict[str, Any]) -> list[str]:
    """A report for people."""
    from ..memory.check import gigabytes

    untried = f"auto: not tried yet, the largest of {', '.join(need['largest_of'])};" if need["largest_of"] else ""
    where = (
        f"{untried or need['engine'] + ','} {need['precision']}, context {need['context_length']}, on {need['device']}"
    )
    notes = {
        "copies": "of weights, packed for the engine's kernels",
        "restored": "embedding and head in float32, for the drafter",
        "workspace": "what the library takes besides",
        "process": "an estimate: interpreter, libraries, tokenizer; not on a GPU",
        "total": {True: "fits", False: "does not fit", None: "nobody says what is available"}[need["fits"]],
    }
    if need["stored"] != need["weights"]:
        notes["weights"] = f"read by passes, of {gigabytes(need['stored'])} stored"
    if need["borrowed"]:
        notes["drafter"] = f"its own; it borrows {gigabytes(need['borrowed'])}"
    shown = [name for name in _LINES if need[name] or name in _ALWAYS] + ["total", "available"]
    sizes = {name: "unknown" if need[name] is None else gigabytes(need[name]) for name in shown}
    lines = [f"  {name:<20}{sizes[name]:>10}  {notes.get(name, '')}".rstrip() for name in shown]
    return [f"memory ({where})", *lines]
