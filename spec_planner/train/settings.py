"""What the user chooses of a drafter's training; the verb's help says what each means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..learning.files import RunError


@dataclass(frozen=True)
class Settings:
    """One run."""

    drafter: str
    target: Path
    prompts: Path
    out: Path
    cache: Path
    options: Mapping[str, str] = field(default_factory=dict)
    # answers
    responses: int | None = None
    validation_responses: int = 64
    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_tokens: int = 160
    context_length: int = 2048
    engine: str = "auto"
    engine_precision: str = "float32"
    # features
    pack_tokens: int = 2048
    also_layers: tuple[int, ...] = ()
    # training
    steps: int | None = None
    epochs: float | None = None
    minutes: float | None = None
    learning_rate: float = 5e-4
    batch_packs: int = 2
    evaluate_every: int = 100
    save_seconds: float = 120.0
    final_prompts: int = 12
    seed: int = 0
    device: str = "auto"
    precision: str = "auto"

    def check(self) -> None:
        """Raises ``RunError`` for a value no run can have."""
        for name in (
            *("responses", "validation_responses", "max_tokens", "context_length", "pack_tokens", "steps", "epochs"),
            *("minutes", "learning_rate", "batch_packs", "evaluate_every", "final_prompts"),
        ):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise RunError(f"--{name.replace('_', '-')} must be greater than 0, got {value}")
        if not 0 <= self.save_seconds < math.inf:
            raise RunError(f"--save-seconds must be 0 or greater, got {self.save_seconds}")
        if self.out.resolve() == self.cache.resolve():
            raise RunError(f"--out and --cache are both {self.out}: name two directories")
        if self.steps is not None and self.epochs is not None:
            raise RunError("--steps and --epochs say the same thing: give one of them")
        if not self.temperatures or not all(value >= 0 and math.isfinite(value) for value in self.temperatures):
            raise RunError(f"--temperatures must be 0 or greater, got {', '.join(map(str, self.temperatures))}")
        if len(set(self.temperatures)) < len(self.temperatures):
            raise RunError("--temperatures names one twice: give each once")
