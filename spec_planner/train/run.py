"""One run of a drafter's training: answers, features, steps, then the drafter measured at its real work."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from drafters.training.trainee import Calibrated, Trainee, make_trainee, trainee_class

from ..config import PlannerConfig
from ..engine_choice import chosen_engine
from ..engines.decoder_config import read_decoder_config
from ..engines.identity import target_identity
from ..learning.devices import choose_device, choose_dtype, describe
from ..learning.distributed import Group
from ..learning.files import RunError, alone, sweep, write_whole
from ..learning.packed_target import PackedTarget
from ..learning.run_state import FILE, check_recipe
from ..learning.schedule import make_schedule
from ..learning.trainer import Report, Saving, Trainer
from ..tasks.task import TRAIN, VALIDATION
from .batches import BatchStream, StoredBatches
from .card import card_text, count_responses
from .deployment import Deployment
from .features import check_disk, fingerprint, pack_responses, write_features
from .learner import DrafterLearner, read_target_weights
from .measure import Measured, choose_prompts, measure
from .prompts import read_prompts
from .responses import Response, ResponseFile, check_prompts, plan_jobs, write_responses
from .result import write_drafter
from .settings import Settings
from .shards import FeatureStore, features_folder

PATIENCE = timedelta(hours=24)  # of processes that are done with their answers: others may still be writing
LEAST_DRAFT = 7  # draft tokens of the final measurement, unless the drafter goes deeper


def train(
    settings: Settings, resume: bool, report: Report, stop: Callable[[], bool], command: Sequence[str]
) -> dict[str, Any] | None:
    """Run all stages from where they stand and return a summary; None if stopped early.

    Args:
        report: share done of the stage at hand (0 at its begin) and a line.
        command: as typed, for the card.

    Raises:
        ValueError: settings, prompts or target cannot be used; one sentence.
    """
    settings.check()
    if not resume and (settings.out / FILE).exists():
        raise RunError(f"{settings.out} already holds a run: add --resume to continue it, or name another directory")
    if resume and not settings.out.is_dir():
        raise RunError(f"{settings.out} holds no run to continue: leave --resume out")
    device = choose_device(settings.device)
    with Group(device, PATIENCE) as group:
        run = _Run(settings, device, group, report if group.leads else lambda share, line: None, stop)
        with alone(settings.out) if group.leads else contextlib.nullcontext():
            if group.leads:
                sweep(settings.out)
            return run.all_stages(resume and (settings.out / FILE).is_file(), command)


class _Run:
    """One process's part of a run."""

    def __init__(
        self, settings: Settings, device: torch.device, group: Group, report: Report, stop: Callable[[], bool]
    ) -> None:
        """Everything that can be refused without work is refused here."""
        self.settings, self.device, self.group, self.report, self.stop = settings, device, group, report, stop
        self.dtype = choose_dtype(settings.precision, device)
        self.config = PlannerConfig(
            model=str(settings.target),
            engine=settings.engine,
            precision=settings.engine_precision,
            device="cuda" if self.device.type == "cuda" and settings.engine not in ("onnx", "openvino") else "cpu",
            max_tokens=settings.max_tokens,
            context_length=settings.context_length,
        )
        self.prompts = read_prompts(settings.prompts)
        self.identity = target_identity(settings.target)
        self.jobs = plan_jobs(
            self.prompts, settings.responses, settings.validation_responses, settings.temperatures, settings.seed
        )
        decoder = read_decoder_config(settings.target)
        self.width, last = decoder.hidden_size, decoder.num_layers
        trainee = self.make_trainee(())
        self.layers = tuple(sorted({*trainee.feature_layers, last}))
        self.stored_layers = tuple(sorted({*self.layers, *settings.also_layers}))
        for layer in self.stored_layers:
            if not 0 <= layer <= last:
                raise RunError(f"there is no hidden state {layer}: target {settings.target.name} has 0 to {last}")

    def all_stages(self, resume: bool, command: Sequence[str]) -> dict[str, Any] | None:
        """``resume``: there is a state to continue from."""
        with alone(self.settings.cache) if self.group.leads else contextlib.nullcontext():
            responses = self.respond()
            if responses is None:
                return None
            store, header = self.features(responses, resume)
        if store is None:
            return None
        counts = count_responses(responses)
        trainee = self.make_trainee([each for each in responses if each.split == TRAIN])
        del responses  # may be large, and what is needed of them lies on disk
        learner = DrafterLearner(trainee, self.device, self.dtype)
        trained = self.learn(learner, store, header, resume)
        if trained is None:
            return None
        if not self.group.leads:
            return {}
        summary = trained | {
            "drafter": self.settings.drafter,
            "target": self.settings.target.name,
            "out": str(self.settings.out),
            "responses": counts,
            "parameters": sum(value.numel() for value in learner.parameters.values()),
        }
        note = {key: summary[key] for key in ("drafter", "steps", "recipe")} | {"target": self.identity}
        if isinstance(trainee, Calibrated):
            held_out = StoredBatches(store, VALIDATION, self.layers, self.device, self.dtype)
            self.report(0.0, "calibrating on the held-out answers")
            trainee.calibrate(each.batch for each in held_out)
        directory = write_drafter(trainee, self.settings.out, note)
        measured = self.measure(directory, max(LEAST_DRAFT, trainee.depth))
        if measured is None:
            return None
        summary |= measured | {"bytes": sum(path.stat().st_size for path in directory.glob("*.safetensors"))}
        text = card_text(summary, command)
        write_whole(self.settings.out / "README.md", lambda path: path.write_text(text, encoding="utf-8"))
        return summary

    def make_trainee(self, learned: Sequence[Response]) -> Trainee:
        """The drafter before its first step, to learn these answers; the seed alone decides its parameters."""
        answers, prompts = ([each.answer_ids for each in learned], [each.prompt_ids for each in learned])
        weights = read_target_weights(self.settings.target, self.device, self.dtype, answers, prompts)
        torch.manual_seed(self.settings.seed)
        return make_trainee(self.settings.drafter, weights, self.settings.options)

    def respond(self) -> list[Response] | None:
        """Stage 1: the answers of all jobs; None if stopped early."""
        settings, group = self.settings, self.group
        self.config = chosen_engine(self.config, settings.target, lambda line: self.report(0.0, line))
        header = {
            "target": self.identity,
            "prompts": self.prompts.fingerprint,
            "seed": settings.seed,
            "temperatures": list(settings.temperatures),
            "max_tokens": settings.max_tokens,
            "engine": self.config.engine,
            "precision": settings.engine_precision,
        }
        file = ResponseFile(settings.cache, header, group.rank)
        if group.leads:
            file.repair()
        group.wait()
        there = file.read()
        group.wait()  # or a slow process would see answers of a quick one, and divide other work
        left = [job for job in self.jobs if job.key not in there]
        share = -(-len(left) // group.size)
        own = left[group.rank * share : (group.rank + 1) * share]
        if own:
            with self.deploy() as deployment:
                self.report(0.0, "checking the prompts")
                asked = {job.prompt.key: job.prompt for job in own}
                if group.leads:
                    asked |= {prompt.key: prompt for prompt in choose_prompts(self.prompts, settings.final_prompts)}
                check_prompts(list(asked.values()), deployment, self.report, self.stop)
                self.report(0.0, f"the target answers {len(left)} of {len(self.jobs)} prompts")
                write_responses(own, file, deployment, self.report, self.stop)
        if self.anyone_stopped():
            return None
        there = file.read()
        return [there[job.key] for job in self.jobs]

    def features(self, responses: list[Response], resume: bool) -> tuple[FeatureStore | None, dict[str, Any]]:
        """Stage 2: the store with all that is needed in it, None if stopped early; and what it was made of."""
        settings, group = self.settings, self.group
        header = {
            "target": self.identity,
            "answers": fingerprint(responses),
            "pack_tokens": settings.pack_tokens,
            "seed": settings.seed,
            "dtype": str(self.dtype).removeprefix("torch."),
        }
        if resume:
            check_recipe(settings.out, self.recipe(header))
        directory = settings.cache / features_folder(header)
        store = FeatureStore(directory)
        if group.leads:
            sweep(directory)
        if group.leads and not store.open(header):
            self.report(0.0, f"packing {len(responses)} answers")
            store.create(header, pack_responses(responses, settings.pack_tokens, settings.seed))
        group.wait()
        store.open(header)
        self.report(0.0, check_disk(store, directory, self.stored_layers, self.width))

        def load() -> PackedTarget:
            return PackedTarget(settings.target, self.device, self.dtype)

        write_features(store, self.stored_layers, load, group, self.report, self.stop)
        return (None if self.anyone_stopped() else store), header

    def recipe(self, header: dict[str, Any]) -> dict[str, Any]:
        """What must not change over a run."""
        settings = self.settings
        return {
            "drafter": settings.drafter,
            **{f"option {name}": value for name, value in sorted(settings.options.items())},
            **header,
            "features": list(self.layers),
            "learning_rate": settings.learning_rate,
        }

    def learn(
        self, learner: DrafterLearner, store: FeatureStore, header: dict[str, Any], resume: bool
    ) -> dict[str, Any] | None:
        """Stage 3: what became of it; None if stopped early."""
        settings = self.settings
        layers, device, dtype = self.layers, self.device, self.dtype
        batches = StoredBatches(store, TRAIN, layers, device, dtype)
        schedule = make_schedule(
            settings.learning_rate,
            settings.batch_packs,
            self.group.size,
            len(batches),
            settings.steps,
            settings.epochs,
            settings.minutes,
            usual_epochs=3,
        )
        recipe = self.recipe(header) | {"packs_per_step": schedule.packs_per_step}
        trainer = Trainer(
            learner,
            BatchStream(batches, settings.seed),
            StoredBatches(store, VALIDATION, layers, device, dtype),
            schedule,
            Saving(settings.out, recipe, settings.save_seconds),
            self.group,
            evaluate_every=settings.evaluate_every,
            report=self.report,
            stop=self.stop,
        )
        self.report(0.0, f"learning from {len(batches)} packs, {schedule.packs_per_step} a step")
        if resume:
            trainer.resume()
        if not trainer.run():
            return None
        progress = trainer.progress
        if progress.evaluations[-1]["step"] != progress.step:
            last = trainer.evaluate(StoredBatches(store, VALIDATION, layers, device, dtype))
            progress.evaluations.append({"step": progress.step, "seconds": round(progress.seconds, 1)} | last)
        return {
            "steps": progress.step,
            "tokens": progress.tokens,
            "minutes": progress.seconds / 60,
            "device": describe(device, self.group.size),
            "dtype": header["dtype"],
            "recipe": recipe,
            "options": self.options(),
            "answers": {"temperatures": list(settings.temperatures), "max_tokens": settings.max_tokens},
            "schedule": {"steps": schedule.steps, "minutes": schedule.minutes, "warmup": schedule.warmup},
            "rates": progress.rates,
            "evaluations": progress.evaluations,
        }

    def options(self) -> dict[str, Any]:
        """Those of the drafter, with the defaults of those that were not given."""
        fields = dataclasses.fields(trainee_class(self.settings.drafter).Options)
        return {field.name: self.settings.options.get(field.name, field.default) for field in fields}

    def measure(self, directory: Path, num_draft_tokens: int) -> dict[str, Any] | None:
        """The finished drafter beside prompt lookup; None if stopped early."""
        settings = self.settings
        chosen = choose_prompts(self.prompts, settings.final_prompts)
        places = {settings.drafter: str(directory), "lookup": "lookup"}
        self.report(0.0, f"decoding {len(chosen)} held-out prompts")
        with self.deploy() as deployment:
            drafters = {name: deployment.drafter(place) for name, place in places.items()}
            found = measure(deployment, chosen, drafters, num_draft_tokens, self.report, self.stop)
            return None if found is None else _numbers(found, settings.drafter, deployment)

    def deploy(self) -> Deployment:
        return Deployment(self.config, self.prompts.skills, lambda line: self.report(0.0, line))

    def anyone_stopped(self) -> bool:
        """Whether any process was asked to stop; all of them come here before they go on."""
        return float(self.group.sum_(torch.tensor([float(self.stop())], device=self.device))) > 0


def _numbers(measured: Measured, name: str, deployment: Deployment) -> dict[str, Any]:
    runs = {
        drafter: {"acceptance_length": run.acceptance_length, "by_depth": list(run.acceptance_rate_at_depth)}
        for drafter, run in measured.runs.items()
    }
    return {
        "acceptance_length": runs[name]["acceptance_length"],
        "by_depth": runs[name]["by_depth"],
        "lookup_acceptance_length": runs["lookup"]["acceptance_length"],
        "identical": measured.identical,
        "measured": dataclasses.asdict(measured)
        | {"runs": runs, "engine": deployment.info.engine, "precision": deployment.info.precision},
    }
