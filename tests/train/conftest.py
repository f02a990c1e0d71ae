"""A tiny target with its tasks, and one finished run that the tests look at and build on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.finetune.corpora import write_tasks
from tests.models import make_tiny_model

WEIGHTS = Path("drafter") / "medusa_lm_head.safetensors"

pytest.importorskip("torch")
pytest.importorskip("transformers")

from spec_planner.train.run import train  # noqa: E402
from spec_planner.train.settings import Settings  # noqa: E402


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A short run of Medusa; every test gives it another ``out``, and those that change the cache another of that."""
    root = tmp_path_factory.mktemp("train")
    return Settings(
        drafter="medusa",
        target=make_tiny_model(root / "tiny"),
        prompts=write_tasks(root / "tasks", 18),
        out=root / "unset",
        cache=root / "cache",
        options={"num_heads": "2"},
        validation_responses=2,
        max_tokens=24,
        engine="torch",
        pack_tokens=400,
        steps=6,
        learning_rate=1e-2,
        batch_packs=2,
        evaluate_every=4,
        final_prompts=2,
        precision="float32",
    )


@pytest.fixture(scope="session")
def finished(settings: Settings) -> tuple[Settings, dict[str, Any]]:
    """An uninterrupted run that left ``settings.cache``: its settings and its summary."""
    whole = replace(settings, out=settings.out.parent / "whole")
    summary = run(whole)
    assert summary is not None
    return whole, summary


def run(settings: Settings, resume: bool = False, stop: Any = lambda: False, lines: list[str] | None = None) -> Any:
    report = (lambda share, line: None) if lines is None else (lambda share, line: lines.append(line))
    return train(settings, resume, report, stop, ["spec-planner", "train", "--drafter", settings.drafter])
