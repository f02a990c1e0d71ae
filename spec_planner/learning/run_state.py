"""Where a run stands, in one file that is replaced atomically: a killed run loses what came after it and no more."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .files import RunError, write_whole

FILE = "state.safetensors"


@dataclass
class Progress:
    """What a run has done.

    Attributes:
        step: optimizer steps taken.
        epoch, pack: the next pack to learn from.
        seconds: spent training, over all sittings.
        tokens: rows computed forward and backward.
        loss: smoothed over the last steps; None before the first.
        rates: [step, rate] of resumed runs: from this step on the rate is lower than that one.
        evaluations: one record per evaluation: step, seconds, loss, validation_loss, …
    """

    step: int = 0
    epoch: int = 0
    pack: int = 0
    seconds: float = 0.0
    tokens: int = 0
    loss: float | None = None
    rates: list[list[float]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)


def save_state(
    out: Path,
    progress: Progress,
    recipe: dict[str, Any],
    parameters: dict[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Write parameters (float32), optimizer, random number generator, position and recipe."""
    tensors: dict[str, Tensor] = {"rng": torch.get_rng_state()}
    for name, parameter in parameters.items():
        tensors[f"parameter/{name}"] = parameter.detach()
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}/{name}"] = value
    metadata = {"progress": json.dumps(asdict(progress)), "recipe": json.dumps(recipe)}
    stored = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_whole(out / FILE, lambda scratch: save_file(stored, scratch, metadata=metadata))


def load_state(
    out: Path, recipe: dict[str, Any], parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> Progress:
    """Restore what ``save_state`` wrote.

    Raises:
        RunError: there is nothing to continue, or it was begun with another recipe.
    """
    path = out / FILE
    progress, begun = _read_metadata(path)
    _compare(out, recipe, begun, {*recipe, *begun})
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        torch.set_rng_state(tensors["rng"])
        for name, parameter in parameters.items():
            parameter.data.copy_(tensors[f"parameter/{name}"])
            if f"exp_avg/{name}" in tensors:
                optimizer.state[parameter] = {
                    key: tensors[f"{key}/{name}"].to(parameter.device) for key in ("step", "exp_avg", "exp_avg_sq")
                }
    except (SafetensorError, OSError, KeyError, RuntimeError) as error:  # RuntimeError: of another shape
        raise _unreadable(path, error) from error
    if recipe.get("learning_rate") != begun.get("learning_rate"):
        progress.rates.append([progress.step, begun["learning_rate"]])
    return progress


def check_recipe(out: Path, recipe: dict[str, Any]) -> None:
    """Compare what is known of ``recipe`` with that of the run in ``out``, before any work.

    Raises:
        RunError: there is no run, or it was begun with something else.
    """
    _, begun = _read_metadata(out / FILE)
    _compare(out, recipe, begun, set(recipe))


def _read_metadata(path: Path) -> tuple[Progress, dict[str, Any]]:
    if not path.is_file():
        raise RunError(f"{path.parent} holds no run to continue: leave --resume out")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        return Progress(**json.loads(metadata["progress"])), json.loads(metadata["recipe"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> RunError:
    return RunError(f"{path} cannot be read ({error}): start the run again in another directory")


def _compare(out: Path, recipe: dict[str, Any], begun: dict[str, Any], keys: set[str]) -> None:
    for key in sorted(keys):
        ours, theirs = recipe.get(key), begun.get(key)
        if ours == theirs:
            continue
        if key == "learning_rate" and ours is not None and theirs is not None and ours < theirs:
            continue  # the way on for a run that diverged
        raise RunError(
            f"the run in {out} was begun with {key} {theirs!r}, not {ours!r}: "
            f"give the same, or start a new run in another directory"
        )
