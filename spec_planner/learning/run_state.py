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
        evaluations: one record per evaluation: step, seconds, loss, validation_loss, …
    """

    step: int = 0
    epoch: int = 0
    pack: int = 0
    seconds: float = 0.0
    tokens: int = 0
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
    if not path.is_file():
        raise RunError(f"{out} holds no run to continue: leave --resume out")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        progress, begun = Progress(**json.loads(metadata["progress"])), json.loads(metadata["recipe"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}): start the run again in another directory") from error
    for key in sorted({*recipe, *begun}):
        if begun.get(key) != recipe.get(key):
            raise RunError(
                f"the run in {out} was begun with {key} {begun.get(key)!r}, not {recipe.get(key)!r}: "
                f"give the same, or start a new run in another directory"
            )
    torch.set_rng_state(tensors["rng"])
    for name, parameter in parameters.items():
        parameter.data.copy_(tensors[f"parameter/{name}"])
        if f"exp_avg/{name}" in tensors:
            optimizer.state[parameter] = {
                key: tensors[f"{key}/{name}"].to(parameter.device) for key in ("step", "exp_avg", "exp_avg_sq")
            }
    return progress
