"""A drafter's network in training, and every kind of it by name."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:  # who only wants the names does not need torch
    import torch
    from torch import nn

    from .batch import Batch, Loss, TargetWeights

# Literal, like ``drafters.registry``. Each class has ``Options``, a frozen dataclass with a default for every field.
TRAINEES = {
    "medusa": "medusa:MedusaTrainee",
    "mtp": "mtp:MtpTrainee",
    "mtp-parallel": "mtp_parallel:ParallelTrainee",
    "eagle1": "eagle1:Eagle1Trainee",
    "eagle3": "eagle3:Eagle3Trainee",
    "dflash": "dflash:DFlashTrainee",
    "dflash2": "dflash2:DFlash2Trainee",
    "draft-model": "draft_model:DraftModelTrainee",
}


class Trainee(Protocol):
    """Made as ``Class(target, options)``; parameters are drawn from torch's global generator, which the caller seeds.

    Attributes:
        net: parameters to learn, float32, on the device of ``target.embedding``. What it borrows is no parameter.
        feature_layers: hidden states that batches must hold, Hugging Face indices.
        depth: deepest draft it is judged at.
    """

    net: nn.Module
    feature_layers: tuple[int, ...]
    depth: int

    def loss(self, batch: Batch, generator: torch.Generator | None = None) -> Loss:
        """The loss of its method. Without ``generator``: no noise, no sampling of anchors, for evaluation."""

    def save(self, directory: Path, note: Mapping[str, Any]) -> None:
        """Write the drafter as published ones are stored, float16, for ``drafters.registry.load_drafter``.

        ``directory`` exists and is empty. ``note`` goes into ``config.json`` under ``spec_planner``.
        """


@runtime_checkable
class Calibrated(Protocol):
    """A trainee that stores, beside its weights, what it was measured to do on answers it did not learn from."""

    def calibrate(self, batches: Iterable[Batch]) -> None:
        """Measure it; called once, when learning is over and before ``save``, with every held-out batch once."""


def trainee_class(name: str) -> Any:
    """Raises ``KeyError`` where no drafter of that name learns."""
    module, _, attribute = TRAINEES[name].partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), attribute)


def make_trainee(name: str, target: TargetWeights, settings: Mapping[str, str]) -> Trainee:
    """The drafter ``name`` before its first step; ``settings``: option → value as typed.

    Raises:
        ValueError: no such drafter, option or value; one sentence.
    """
    if name not in TRAINEES:
        raise ValueError(f"no drafter called {name!r} can be trained; choose {', '.join(TRAINEES)}")
    kind = trainee_class(name)
    known = {field.name: type(field.default) for field in dataclasses.fields(kind.Options)}
    values: dict[str, Any] = {}
    for key, text in settings.items():
        if key not in known:
            raise ValueError(f"drafter {name!r} has no option {key!r}; it has {', '.join(known)}")
        try:
            values[key] = _parse(text, known[key])
        except ValueError as error:
            raise ValueError(f"option {key} of drafter {name!r} must be {known[key].__name__}, got {text!r}") from error
    trainee: Trainee = kind(target, kind.Options(**values))
    return trainee


def _parse(text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if kind is tuple:
        return tuple(int(part) for part in text.split(","))
    return kind(text)
