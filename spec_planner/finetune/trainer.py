"""The training loop: packs in, optimizer steps, evaluations, states on disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .adapted_model import AdaptedModel
from .distributed import Group
from .packing import Pack
from .run_state import Progress, load_state, save_state
from .stream import PackStream


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to learn. The rate rises over ``warmup`` of the run, then falls as a cosine to 0.

    Attributes:
        steps: optimizer steps; None for no limit.
        minutes: of training time; None for no limit. A run with both ends with whichever comes first.
        packs_per_step: over all processes.
    """

    learning_rate: float
    packs_per_step: int
    steps: int | None = None
    minutes: float | None = None
    warmup: float = 0.03
    clip: float = 1.0

    def done(self, progress: Progress) -> float:
        """Share of the run that is behind it, 0..1."""
        by_steps = progress.step / self.steps if self.steps else 0.0
        by_time = progress.seconds / (60 * self.minutes) if self.minutes else 0.0
        return min(1.0, max(by_steps, by_time))

    def rate(self, done: float) -> float:
        if done < self.warmup:
            return self.learning_rate * max(done / self.warmup, 0.02)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (done - self.warmup) / (1 - self.warmup)))


@dataclass(frozen=True)
class Saving:
    """Where and how often the state is written, and what must not change over a run."""

    out: Path
    recipe: dict[str, Any]
    seconds: float = 120.0


@dataclass
class Evaluation:
    """Answer tokens' mean −log p in nats, and the share of plans that greedy decoding would repeat token by token."""

    loss: float
    exact: float


class Trainer:
    """One run. Every process of ``group`` has its own, with the same parameters throughout."""

    def __init__(
        self,
        model: AdaptedModel,
        stream: PackStream,
        validation: Sequence[Pack],
        schedule: Schedule,
        saving: Saving,
        group: Group,
        *,
        evaluate_every: int = 50,
        report: Callable[[float, str], None] = lambda share, line: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """``report`` gets the share done and a line; ``stop`` is asked after every pass whether to end early."""
        self._model, self._stream, self._validation = model, stream, validation
        self._schedule, self._saving, self._group = schedule, saving, group
        self._evaluate_every, self._report, self._stop = evaluate_every, report, stop
        self._parameters = list(model.parameters.values())
        self._optimizer = torch.optim.AdamW(self._parameters, lr=0.0, weight_decay=0.0, betas=(0.9, 0.99), fused=True)
        self.progress = Progress()
        self._smooth: float | None = None

    def resume(self) -> None:
        """Raises ``RunError`` if there is nothing to continue or the recipe is another one."""
        self.progress = load_state(self._saving.out, self._saving.recipe, self._model.parameters, self._optimizer)

    def run(self) -> bool:
        """Train to the schedule's end; False if stopped early. The state is on disk either way."""
        saved = time.monotonic()
        begun = saved - self.progress.seconds
        if not self.progress.evaluations:
            self._evaluate(math.nan)
        while self._schedule.done(self.progress) < 1:
            started, rows_before = time.monotonic(), self.progress.tokens
            loss = self._step(self._schedule.rate(self._schedule.done(self.progress)))
            if loss is None:
                self.save()
                return False
            now = time.monotonic()
            (self.progress.seconds,) = self._group.leader_says([now - begun], self._model.device)
            self._smooth = loss if self._smooth is None else 0.95 * self._smooth + 0.05 * loss
            self._say((self.progress.tokens - rows_before) / (now - started))
            if self.progress.step % self._evaluate_every == 0:
                self._evaluate(self._smooth)
            (due,) = self._group.leader_says([time.monotonic() - saved >= self._saving.seconds], self._model.device)
            if due:
                self.save()
                saved = time.monotonic()
        self.save()
        return True

    def evaluate(self, packs: Sequence[Pack]) -> Evaluation:
        """Over all processes together."""
        sums = torch.zeros(4, dtype=torch.float64)  # nats, tokens, exact plans, plans
        for pack in packs[self._group.rank :: self._group.size]:
            with torch.no_grad():
                logits = self._model.answer_logits(pack).float()
            targets = torch.from_numpy(pack.targets).to(logits.device)
            nats = torch.nn.functional.cross_entropy(logits, targets, reduction="none").cpu()
            right = (logits.argmax(-1) == targets).tolist()
            everyone = {asker for askers in pack.askers for asker in askers}
            wrong = {asker for askers, good in zip(pack.askers, right, strict=True) if not good for asker in askers}
            sums += torch.tensor(
                [
                    float((nats * torch.from_numpy(pack.weights)).sum()),
                    pack.num_answer_tokens,
                    len(everyone) - len(wrong),
                    len(everyone),
                ],
                dtype=torch.float64,
            )
        nats, tokens, exact, plans = self._group.sum_(sums.to(self._model.device)).tolist()
        return Evaluation(nats / max(tokens, 1), exact / max(plans, 1))

    def save(self) -> None:
        if self._group.leads:
            save_state(self._saving.out, self.progress, self._saving.recipe, self._model.parameters, self._optimizer)
        self._group.wait()

    def _step(self, rate: float) -> float | None:
        """One optimizer step; the mean loss, or None (and nothing has changed) if asked to stop."""
        progress = self.progress
        epoch, index = progress.epoch, progress.pack
        nats = tokens = rows = 0.0
        for number in range(self._schedule.packs_per_step):
            pack = self._stream.at(epoch, index)
            index += 1
            if index >= self._stream.packs_in_epoch(epoch):
                epoch, index = epoch + 1, 0
            rows += len(pack)
            if number % self._group.size != self._group.rank:
                continue
            if self._stop() and self._group.size == 1:
                self._optimizer.zero_grad(set_to_none=True)
                return None
            loss = self._model.loss_sum(pack)
            loss.backward()
            nats, tokens = nats + float(loss.detach()), tokens + pack.num_answer_tokens
        nats, tokens, stopped = self._add_up(nats, tokens)
        if stopped:
            self._optimizer.zero_grad(set_to_none=True)
            return None
        for parameter in self._parameters:
            parameter.grad.div_(tokens)  # type: ignore[union-attr]
        torch.nn.utils.clip_grad_norm_(self._parameters, self._schedule.clip)
        for settings in self._optimizer.param_groups:
            settings["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        progress.epoch, progress.pack, progress.step = epoch, index, progress.step + 1
        progress.tokens += int(rows)
        return nats / tokens

    def _add_up(self, nats: float, tokens: float) -> tuple[float, float, bool]:
        """Sum gradients and counts over all processes, in one message; whether any was asked to stop."""
        stopped = float(self._stop())
        if self._group.size == 1:
            return nats, tokens, bool(stopped)
        for parameter in self._parameters:
            if parameter.grad is None:  # no pack of this step was ours
                parameter.grad = torch.zeros_like(parameter)
        counts = torch.tensor([nats, tokens, stopped], device=self._model.device)
        flat = self._group.sum_(torch.cat([counts, *(p.grad.flatten() for p in self._parameters)]))  # type: ignore[union-attr]
        first = 3
        for parameter in self._parameters:
            parameter.grad.copy_(flat[first : first + parameter.numel()].view_as(parameter))  # type: ignore[union-attr]
            first += parameter.numel()
        nats, tokens, stopped = flat[:3].tolist()
        return nats, tokens, stopped > 0

    def _evaluate(self, loss: float) -> None:
        if not self._validation:
            return
        found = self.evaluate(self._validation)
        record = {"step": self.progress.step, "seconds": round(self.progress.seconds, 1)}
        if not math.isnan(loss):
            record["loss"] = round(loss, 4)
        record |= {"validation_loss": round(found.loss, 4), "exact": round(found.exact, 4)}
        self.progress.evaluations.append(record)
        self._say(None)

    def _say(self, rows_per_second: float | None) -> None:
        progress, last = self.progress, (self.progress.evaluations or [{}])[-1]
        parts = [f"step {progress.step}" + (f"/{self._schedule.steps}" if self._schedule.steps else "")]
        if self._smooth is not None:
            parts.append(f"loss {self._smooth:.3f}")
        if "validation_loss" in last:
            parts.append(f"validation {last['validation_loss']:.3f} ({last['exact']:.0%} exact)")
        if rows_per_second:
            parts.append(f"{rows_per_second:.0f} tokens/s")
        self._report(self._schedule.done(progress), ", ".join(parts))
