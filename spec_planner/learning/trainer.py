"""The training loop: packs in, optimizer steps, evaluations, states on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from .distributed import Group
from .files import RunError
from .run_state import Progress, load_state, save_state
from .schedule import Schedule

Report = Callable[[float, str], None]  # gets the share done of what goes on (0 at its begin) and a line
Pack = TypeVar("Pack")  # whatever the learner learns from in one go; ``len`` counts its rows


class Stream(Protocol[Pack]):
    """Packs epoch after epoch; each a pure function of its place, so that a resumed run continues in the order."""

    def packs_in_epoch(self, epoch: int) -> int: ...

    def at(self, epoch: int, index: int) -> Pack: ...


class Learner(Protocol[Pack]):
    """What is trained.

    Attributes:
        parameters: float32, by name, in an order that is always the same.
    """

    parameters: dict[str, nn.Parameter]
    device: torch.device

    def loss(self, pack: Pack) -> tuple[Tensor, float]:
        """A sum to differentiate, and over how many terms it goes."""

    def measure(self, pack: Pack) -> Tensor:
        """Sums over a pack that is not learned from, float64, as many of every pack."""

    def record(self, sums: Tensor) -> dict[str, Any]:
        """Numbers by name, from the sums over all such packs."""

    def shown(self, record: Mapping[str, Any]) -> str:
        """The same in few words."""


@dataclass(frozen=True)
class Saving:
    """Where and how often the state is written, and what must not change over a run."""

    out: Path
    recipe: dict[str, Any]
    seconds: float = 120.0


class Trainer(Generic[Pack]):
    """One run. Every process of ``group`` has its own, with the same parameters throughout."""

    def __init__(
        self,
        learner: Learner[Pack],
        stream: Stream[Pack],
        validation: Sequence[Pack],
        schedule: Schedule,
        saving: Saving,
        group: Group,
        *,
        rate_factors: Mapping[str, float] | None = None,
        evaluate_every: int = 50,
        report: Report = lambda share, line: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """``report`` gets the share done and a line; ``stop`` is asked after every pass whether to end early.

        ``rate_factors``: what parameters' names begin with → the multiple of the schedule's rate at which these learn;
        their gradient is clipped by its own norm, so that the others' steps do not depend on it.
        """
        self._learner, self._stream, self._validation = learner, stream, validation
        self._schedule, self._saving, self._group = schedule, saving, group
        self._evaluate_every, self._report, self._stop = evaluate_every, report, stop
        self._parameters = list(learner.parameters.values())
        groups = _groups(learner.parameters, rate_factors or {})
        self._optimizer = torch.optim.AdamW(groups, lr=0.0, weight_decay=0.0, betas=(0.9, 0.99), fused=True)
        self.progress = Progress()

    def resume(self) -> None:
        """Raises ``RunError`` if there is nothing to continue or the recipe is another one."""
        saving = self._saving
        progress = self.progress = load_state(saving.out, saving.recipe, self._learner.parameters, self._optimizer)
        line = f"continuing after step {progress.step}"
        if progress.rates and progress.rates[-1][0] == progress.step:
            line += f", with learning rate {self._schedule.learning_rate} instead of {progress.rates[-1][1]}"
        self._report(self._schedule.done(progress), line)

    def run(self) -> bool:
        """Train to the schedule's end; False if stopped early. The state is on disk either way."""
        saved = time.monotonic()
        begun = saved - self.progress.seconds
        if not self.progress.evaluations:
            self._evaluate()
        while self._schedule.done(self.progress) < 1:
            started, rows_before = time.monotonic(), self.progress.tokens
            loss = self._step(self._schedule.rate(self._schedule.done(self.progress)))
            if loss is None:
                self.save()
                return False
            now = time.monotonic()
            (self.progress.seconds,) = self._group.leader_says([now - begun], self._learner.device)
            smooth = self.progress.loss
            self.progress.loss = loss if smooth is None else 0.95 * smooth + 0.05 * loss
            self._say((self.progress.tokens - rows_before) / (now - started))
            if self.progress.step % self._evaluate_every == 0:
                self._evaluate()
            (due,) = self._group.leader_says([time.monotonic() - saved >= self._saving.seconds], self._learner.device)
            if due:
                self.save()
                saved = time.monotonic()
        self.save()
        return True

    def evaluate(self, packs: Sequence[Pack]) -> dict[str, Any]:
        """The learner's record of ``packs`` (at least one), over all processes together."""
        parts = []
        for number in range(self._group.rank, len(packs), self._group.size):
            with torch.no_grad():
                parts.append(self._learner.measure(packs[number]))
        if not parts:  # more processes than packs: how many sums there are, a pack must tell
            with torch.no_grad():
                parts = [torch.zeros_like(self._learner.measure(packs[0]))]
        sums = self._group.sum_(torch.stack(parts).sum(0).to(self._learner.device))
        return self._learner.record(sums.cpu())

    def save(self) -> None:
        if self._group.leads:
            save_state(self._saving.out, self.progress, self._saving.recipe, self._learner.parameters, self._optimizer)
        self._group.wait()

    def _step(self, rate: float) -> float | None:
        """One optimizer step; the mean loss, or None (and nothing has changed) if asked to stop.

        Raises:
            RunError: the gradient is not finite; nothing has changed.
        """
        progress = self.progress
        epoch, index = progress.epoch, progress.pack
        total = count = rows = 0.0
        for number in range(self._schedule.packs_per_step):
            place = epoch, index
            index += 1
            if index >= self._stream.packs_in_epoch(epoch):
                epoch, index = epoch + 1, 0
            if number % self._group.size != self._group.rank:
                continue
            if self._stop() and self._group.size == 1:
                self._optimizer.zero_grad(set_to_none=True)
                return None
            pack = self._stream.at(*place)
            loss, terms = self._learner.loss(pack)
            loss.backward()
            total, count, rows = total + float(loss.detach()), count + terms, rows + len(pack)  # type: ignore[arg-type]
        total, count, rows, stopped = self._add_up(total, count, rows)
        if stopped:
            self._optimizer.zero_grad(set_to_none=True)
            return None
        for parameter in self._parameters:
            parameter.grad.div_(max(count, 1e-9))  # type: ignore[union-attr]
        groups, clip = self._optimizer.param_groups, self._schedule.clip
        norms = [torch.nn.utils.clip_grad_norm_(settings["params"], clip) for settings in groups]
        if not all(map(torch.isfinite, norms)):  # after this step every parameter would be NaN
            raise RunError(
                f"the gradient of step {progress.step + 1} is not finite: add --resume to go on from the last state in "
                f"{self._saving.out} with a lower --learning-rate, or begin again with --precision float32"
            )
        for settings in groups:
            settings["lr"] = rate * settings["factor"]
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        progress.epoch, progress.pack, progress.step = epoch, index, progress.step + 1
        progress.tokens += int(rows)
        return total / max(count, 1e-9)

    def _add_up(self, total: float, count: float, rows: float) -> tuple[float, float, float, bool]:
        """Sum gradients and counts over all processes, in one message; whether any was asked to stop."""
        stopped = float(self._stop())
        for parameter in self._parameters:
            if parameter.grad is None:  # no pack of this step was ours, or none asked this parameter
                parameter.grad = torch.zeros_like(parameter)
        if self._group.size == 1:
            return total, count, rows, bool(stopped)
        counts = torch.tensor([total, count, rows, stopped], device=self._learner.device)
        flat = self._group.sum_(torch.cat([counts, *(p.grad.flatten() for p in self._parameters)]))  # type: ignore[union-attr]
        first = len(counts)
        for parameter in self._parameters:
            parameter.grad.copy_(flat[first : first + parameter.numel()].view_as(parameter))  # type: ignore[union-attr]
            first += parameter.numel()
        total, count, rows, stopped = flat[: len(counts)].tolist()
        return total, count, rows, stopped > 0

    def _evaluate(self) -> None:
        if not self._validation:
            return
        record: dict[str, Any] = {"step": self.progress.step, "seconds": round(self.progress.seconds, 1)}
        if self.progress.loss is not None:
            record["loss"] = round(self.progress.loss, 4)
        self.progress.evaluations.append(record | self.evaluate(self._validation))
        self._say(None)

    def _say(self, rows_per_second: float | None) -> None:
        progress = self.progress
        parts = [f"step {progress.step}" + (f"/{self._schedule.steps}" if self._schedule.steps else "")]
        if progress.loss is not None:
            parts.append(f"loss {progress.loss:.3f}")
        if progress.evaluations:
            parts.append(self._learner.shown(progress.evaluations[-1]))
        if rows_per_second:
            parts.append(f"{rows_per_second:.0f} tokens/s")
        self._report(self._schedule.done(progress), ", ".join(parts))


def _groups(parameters: Mapping[str, nn.Parameter], factors: Mapping[str, float]) -> list[dict[str, Any]]:
    """The optimizer's: those that learn at the schedule's rate first, then those of each prefix in ``factors``."""
    found: dict[str, list[nn.Parameter]] = {"": [], **{prefix: [] for prefix in factors}}
    for name, parameter in parameters.items():
        found[next((prefix for prefix in factors if name.startswith(prefix)), "")].append(parameter)
    return [{"params": each, "factor": factors.get(prefix, 1.0)} for prefix, each in found.items() if each]
