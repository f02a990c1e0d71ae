"""The trained drafter put in its place, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from drafters.training.trainee import Trainee

from ..learning.files import RunError, scratch_folder


def write_drafter(trainee: Trainee, out: Path, note: Mapping[str, Any]) -> Path:
    """Write ``drafter`` in ``out``, where one may be already, and return its path; ``note`` goes into its config.

    Raises:
        RunError: it has values that float16 cannot hold; nothing has changed.
    """
    place = out / "drafter"
    with scratch_folder(out, "drafter") as folder:
        new = folder / "new"
        new.mkdir()
        trainee.save(new, note)
        for path in new.glob("*.safetensors"):
            check_finite(path)
        for path in new.iterdir():
            path.chmod(0o644)  # safetensors writes for the owner only
            with path.open("rb") as file:
                os.fsync(file.fileno())
        if place.exists():
            place.rename(folder / "old")
        new.rename(place)
    return place


def check_finite(path: Path) -> None:
    """Raises ``RunError`` where a tensor in ``path`` has an infinite value or none at all."""
    for name, tensor in load_file(path).items():
        if not torch.isfinite(tensor).all():
            raise RunError(
                f"the drafter's tensor {name} has values beyond float16: train again in another --out, with a lower "
                f"--learning-rate"
            )
