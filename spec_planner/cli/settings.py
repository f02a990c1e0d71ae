"""Command-line flags and a YAML file → ``PlannerConfig``: the flags that several verbs share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..config import PlannerConfig

# flag, setting, type, metavar, help; what is not given falls to the YAML file, then to the config's default
_FLAGS: tuple[tuple[str, str, type, str, str], ...] = (
    ("--model", "model", str, "DIR", "target: a local Hugging Face model directory, or 'default'"),
    (
        "--drafter",
        "drafter",
        str,
        "NAME",
        "none, lookup, draft-model; medusa, mtp, eagle3, dflash2 and the like, if they come with the package for this "
        "target; or a checkpoint directory; lookup+ before one puts prompt lookup beside it",
    ),
    (
        "--draft-model",
        "draft_model",
        str,
        "DIR",
        "for --drafter draft-model: its directory; without it, what comes with the package",
    ),
    ("--num-draft-tokens", "num_draft_tokens", int, "K", "most tokens drafted per verify pass"),
    ("--draft-budget", "draft_budget", str, "B", "measured (as many as pay), or fixed (always K)"),
    ("--draft-branches", "draft_branches", int, "B", "alternatives drafted per position; 1 drafts chains"),
    ("--rule", "rule", str, "R", "acceptance rule; drafter-invariant keeps the very tokens of plain decoding"),
    ("--exactness", "exactness", str, "E", "tokens, or bitwise: one pass width, logits equal to the last bit"),
    ("--engine", "engine", str, "E", "what runs the target: auto, torch, onnx, openvino or tensorrt"),
    (
        "--precision",
        "precision",
        str,
        "P",
        "float32; bfloat16 (not onnx), float16 (torch, tensorrt), int8 (not torch), int4 (onnx, tensorrt), fp8, nvfp4 "
        "(tensorrt)",
    ),
    ("--engine-file", "engine_file", str, "DIR", "for --engine tensorrt: what `spec-planner build` wrote"),
    ("--device", "device", str, "D", "auto, cpu or cuda"),
    ("--context-length", "context_length", int, "N", "tokens of prompt and answer the KV cache holds"),
    ("--skills-file", "skills_file", str, "F", "YAML list of the robot's skills"),
)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say what is loaded."""
    for flag, setting, kind, metavar, text in _FLAGS:
        parser.add_argument(flag, dest=setting, type=kind, metavar=metavar, help=text)
    parser.add_argument("--config", metavar="YAML", help="settings from a file; flags take precedence over it")


def config_from(options: argparse.Namespace, *more: str) -> PlannerConfig:
    """The config that ``--config`` and the flags come to; ``more`` names settings beyond ``add_model_arguments``.

    Raises:
        ValueError: the file cannot be used, or a setting is out of range; one sentence.
    """
    from ..config import PlannerConfig

    values = read_settings(Path(options.config)) if options.config else {}
    for name in (*(flag[1] for flag in _FLAGS), *more):
        given = getattr(options, name)
        if given is not None:
            values[name] = given
    return PlannerConfig.from_mapping(values)


def read_settings(path: Path) -> dict[str, Any]:
    """A YAML mapping of settings, either bare or as a ROS parameter file with one node in it.

    Raises:
        ValueError: the file is missing, not YAML, or not such a mapping.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"config file {path} cannot be read ({error}): give one like config/planner.yaml") from error
    except yaml.YAMLError as error:
        raise ValueError(f"config file {path} is not valid YAML ({error}): correct it") from error
    while isinstance(content, dict) and len(content) == 1 and isinstance(next(iter(content.values())), dict):
        content = next(iter(content.values()))  # ROS wraps settings in the node's name and ros__parameters
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError(f"config file {path} must be a mapping of settings to values, such as config/planner.yaml")
    return {name: value for name, value in content.items() if name != "use_sim_time"}
