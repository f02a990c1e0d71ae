"""The memory budget as the command line shows it: in JSON, as lines, and what of it is a problem."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .probes import Problem

if TYPE_CHECKING:
    from ..config import PlannerConfig
    from ..memory.budget import MemoryBudget

_REFUSED = "the planner would refuse to load it"
_LINES = ("weights", "copies", "kv", "drafter", "restored", "activations", "workspace", "process")
_ALWAYS = ("weights", "kv", "drafter")  # shown where they are nothing, too


def report_of(directory: Path, config: PlannerConfig) -> tuple[dict[str, Any] | None, list[Problem]]:
    """The budget beside what the device has, in bytes; without the drafter where that is a problem."""
    from ..engine_choice import remembered_engine
    from ..memory import budget, check

    try:
        config = replace(config, engine=remembered_engine(config, directory) or config.engine_name)
        need = budget.target_budget(config, directory)
    except (ValueError, OSError) as error:
        return None, [_problem(error, "give a complete model directory of a supported family")]
    found, problems = _with_drafter(directory, config)
    fit = check.weigh(found or need, check.device_memory(config))
    report = {
        "device": fit.memory.device,
        "engine": config.engine,
        "precision": config.precision,
        "context_length": config.context_length,
        **asdict(fit.budget),
        "total": fit.needed,
        "available": fit.memory.available,
        "machine": fit.memory.total,
        "fits": fit.fits,
    }
    if fit.fits is False:
        fix = check.remedy(config, directory, fit) if found else "use another drafter, then look again"
        problems.append(Problem(check.shortage(fit), _REFUSED, fix))
    return report, problems


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
        return None, [_problem(error, "set drafter to lookup, to another name or to a checkpoint's directory")]
    return None, [Problem(what, _REFUSED, fix)]


def _problem(error: Exception, otherwise: str) -> Problem:
    """Our sentences end in what to do; ``otherwise``: for those of others."""
    what, _, fix = str(error).rpartition(": ")
    return Problem(what or str(error), _REFUSED, fix if what else otherwise)


def as_lines(need: dict[str, Any]) -> list[str]:
    """A report for people."""
    from ..memory.check import gigabytes

    where = f"{need['engine']}, {need['precision']}, context {need['context_length']}, on {need['device']}"
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
    lines = [f"  {name:<20}{gigabytes(need[name]):>10}  {notes.get(name, '')}".rstrip() for name in shown]
    return [f"memory ({where})", *lines]
