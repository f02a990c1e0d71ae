"""One fine-tuning run from its settings: read, check, train or continue, write adapter and card."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..engines.identity import target_identity
from ..language.tokenizer import Tokenizer
from ..learning.corpus import Encoder, read_corpus
from ..learning.devices import choose_device, choose_dtype, describe
from ..learning.distributed import Group
from ..learning.files import RunError, alone, sweep
from ..learning.run_state import FILE, Progress, check_recipe
from ..learning.schedule import Schedule, make_schedule
from ..learning.trainer import Report, Saving, Trainer
from ..tasks.task import TRAIN, VALIDATION
from .adapted_model import AdaptedModel
from .general import general_examples, perplexity
from .learner import PlanLearner
from .medusa import PREFIX, JointLearner, WarmHeads
from .result import round_parameters, write_adapter, write_card, write_heads
from .stream import Mix, PackStream, validation_packs


@dataclass(frozen=True)
class Settings:
    """What the user chooses; the verb's help says what each means."""

    target: Path
    tasks: Path
    out: Path
    steps: int | None = None
    epochs: float | None = None
    minutes: float | None = None
    rank: int = 16
    learning_rate: float = 1e-3
    batch_tokens: int = 4096
    pack_tokens: int = 2048
    vary_share: float = 0.25
    general_share: float = 0.05
    medusa: Path | None = None
    medusa_weight: float = 0.2
    medusa_rate: float = 4.0
    evaluate_every: int = 50
    validation_tasks: int = 64
    final_tasks: int = 256
    save_seconds: float = 120.0
    seed: int = 0
    device: str = "auto"
    precision: str = "auto"

    def check(self) -> None:
        """Raises ``RunError`` for a value no run can have."""
        positive = (
            "steps",
            "epochs",
            "minutes",
            "rank",
            "learning_rate",
            "batch_tokens",
            "pack_tokens",
            "medusa_rate",
            "evaluate_every",
        )
        for name in positive:
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise RunError(f"--{name.replace('_', '-')} must be greater than 0, got {value}")
        if not 0 <= self.save_seconds < math.inf:
            raise RunError(f"--save-seconds must be 0 or greater, got {self.save_seconds}")
        if not 0 <= self.medusa_weight < math.inf:
            raise RunError(f"--medusa-weight must be 0 or greater, got {self.medusa_weight}")
        for flag, share, most in (("--vary-skills", self.vary_share, 1), ("--general", self.general_share, 0.5)):
            if not 0 <= share <= most:
                raise RunError(f"{flag} must be a share from 0 to {most}, got {share}")
        if self.steps is not None and self.epochs is not None:
            raise RunError("--steps and --epochs say the same thing: give one of them")


def finetune(
    settings: Settings,
    resume: bool,
    report: Report,
    stop: Callable[[], bool],
    command: Sequence[str],
) -> dict[str, Any] | None:
    """Train, write everything to ``settings.out`` and return a summary; None if stopped early.

    Args:
        report: share done (0 before training) and a line.
        command: as typed, for the card.

    Raises:
        ValueError: settings, tasks or target cannot be used; one sentence.
    """
    settings.check()
    out = settings.out
    if not resume and (out / FILE).exists():
        raise RunError(f"{out} already holds a run: add --resume to continue it, or name another directory")
    device = choose_device(settings.device)
    corpus = read_corpus(settings.tasks)
    encoder = Encoder(Tokenizer(settings.target))
    alpha, identity = 2 * settings.rank, target_identity(settings.target)
    warm = WarmHeads.read(settings.medusa, settings.target, identity) if settings.medusa else None
    begins_with = {
        "target": settings.target.name,
        "weights": identity,
        "tasks": corpus.fingerprint,
        "medusa": warm and warm.fingerprint,
        "medusa_weight": warm and settings.medusa_weight,
        "medusa_rate": warm and settings.medusa_rate,
    }
    if resume:  # before the model is loaded
        check_recipe(out, begins_with)
    with Group(device) as group, alone(out) if group.leads else contextlib.nullcontext():
        if group.leads:
            sweep(out)
        dtype = choose_dtype(settings.precision, device)
        say: Report = report if group.leads else lambda share, line: None
        say(0.0, f"loading {settings.target.name} ({str(dtype).removeprefix('torch.')} on {device})")
        model = AdaptedModel(settings.target, settings.rank, alpha, settings.seed, device, dtype)
        before = perplexity(model, encoder)
        general = []
        if settings.general_share:
            if group.leads:
                say(0.0, "sampling everyday answers of the base model (once per run)")
                general_examples(model, encoder, out, identity, settings.seed)
            group.wait()
            general = general_examples(model, encoder, out, identity, settings.seed)
        say(0.0, f"reading {len(corpus.lessons)} tasks of {', '.join(corpus.skills)}")
        mix = Mix(settings.pack_tokens, settings.vary_share, settings.general_share)
        stream = PackStream(corpus.of(TRAIN), corpus.skills, encoder, general, mix, settings.seed)
        held_out = [encoder.encode(each, corpus.skills[each.domain]) for each in corpus.of(VALIDATION)]
        validation = validation_packs(held_out, settings.pack_tokens, settings.validation_tasks)
        schedule = make_schedule(
            settings.learning_rate,
            max(1, round(settings.batch_tokens / settings.pack_tokens)),
            group.size,
            stream.packs_in_epoch(0),
            settings.steps,
            settings.epochs,
            settings.minutes,
            usual_epochs=2,
        )
        recipe = {
            **begins_with,
            "rank": settings.rank,
            "alpha": alpha,
            "learning_rate": settings.learning_rate,
            "packs_per_step": schedule.packs_per_step,
            "pack_tokens": settings.pack_tokens,
            "vary_share": settings.vary_share,
            "general_share": settings.general_share,
            "seed": settings.seed,
            "dtype": str(dtype).removeprefix("torch."),
        }
        joint = None
        if warm:
            trainee = warm.trainee(model, settings.target, stream.examples)
            joint = JointLearner(model, trainee, settings.medusa_weight)
        learner = joint or PlanLearner(model)
        trainer = Trainer(
            learner,
            stream,
            validation,
            schedule,
            Saving(out, recipe, settings.save_seconds),
            group,
            rate_factors={PREFIX: settings.medusa_rate},
            evaluate_every=settings.evaluate_every,
            report=say,
            stop=stop,
        )
        if resume:
            trainer.resume()
        if not trainer.run():
            return None
        say(1.0, "evaluating what was learned as it is stored, in float16")
        round_parameters(learner.parameters)
        last = validation_packs(held_out, settings.pack_tokens, settings.final_tasks)
        final = trainer.evaluate(last) if last else None  # tasks may have no validation split
        after = perplexity(model, encoder)
        summary = _summary(settings, trainer.progress, recipe, schedule, device, group)
        summary["numbers"] = _numbers(trainer.progress, final, before, after)
        summary["heads"] = _heads(joint, trainer.progress, final) if joint else None
        if group.leads:
            write_adapter(model, settings.target.name, out)
            if joint:
                if last:
                    joint.calibrate(last)
                write_heads(joint.trainee, summary, out)
            write_card(out, summary, corpus, list(command))
        return summary


def _summary(
    settings: Settings,
    progress: Progress,
    recipe: dict[str, Any],
    schedule: Schedule,
    device: torch.device,
    group: Group,
) -> dict[str, Any]:
    return {
        "target": settings.target.name,
        "out": str(settings.out),
        "steps": progress.step,
        "tokens": progress.tokens,
        "minutes": progress.seconds / 60,
        "tokens_per_second": progress.tokens / max(progress.seconds, 1e-9),
        "device": describe(device, group.size),
        "dtype": recipe["dtype"],
        "recipe": recipe,
        "schedule": {"steps": schedule.steps, "minutes": schedule.minutes, "warmup": schedule.warmup},
        "rates": progress.rates,
        "evaluations": progress.evaluations,
    }


def _numbers(
    progress: Progress, final: dict[str, Any] | None, before: float, after: float
) -> dict[str, tuple[str, str]]:
    """Title → before and after; ``final``: the last evaluation, if there was any."""
    numbers = {"perplexity of general prose": (f"{before:.2f}", f"{after:.2f}")}
    if progress.evaluations and final is not None:
        first = progress.evaluations[0]
        numbers["validation loss"] = (f"{first['validation_loss']:.4f}", f"{final['validation_loss']:.4f}")
        numbers["validation plans exact"] = (f"{first['exact']:.1%}", f"{final['exact']:.1%}")
        if "acceptance_length" in final:
            title, key = "expert's tokens per Medusa pass", "acceptance_length"
            numbers[title] = (f"{first[key]:.2f}", f"{final[key]:.2f}")
    return numbers


def _heads(joint: JointLearner, progress: Progress, final: dict[str, Any] | None) -> dict[str, Any]:
    """``by_depth``: before and after; None without a validation split."""
    by_depth = None
    if progress.evaluations and final is not None:
        by_depth = [progress.evaluations[0]["by_depth"], final["by_depth"]]
    return {
        "num_heads": joint.trainee.depth,
        "parameters": sum(parameter.numel() for parameter in joint.trainee.net.parameters()),
        "by_depth": by_depth,
    }
