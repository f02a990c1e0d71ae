"""The trained drafter at its real work: greedy decoding of prompts it never saw, beside prompt lookup and plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..decoding.contracts import Drafter
from ..decoding.metrics import RunMetrics, StepMetrics, summarize
from ..decoding.sampling import SamplingParams
from ..learning.trainer import Report
from ..tasks.task import ACTIVITY_HELD_OUT, VALIDATION, WORDING_HELD_OUT
from .deployment import Deployment
from .prompts import Prompt, Prompts


@dataclass(frozen=True)
class Measured:
    """Sums over ``prompts`` prompts.

    Attributes:
        runs: per drafter, all its cycles as one run.
        identical: every drafter's tokens are those of plain decoding.
    """

    prompts: int
    splits: tuple[str, ...]
    num_draft_tokens: int
    runs: Mapping[str, RunMetrics]
    identical: bool


def choose_prompts(prompts: Prompts, count: int) -> list[Prompt]:
    """``count`` prompts spread over the held-out ones, or over those of validation where nothing is held out."""
    held_out = [*prompts.of(WORDING_HELD_OUT), *prompts.of(ACTIVITY_HELD_OUT)] or prompts.of(VALIDATION)
    return [held_out[index * len(held_out) // count] for index in range(min(count, len(held_out)))]


def measure(
    deployment: Deployment,
    prompts: Sequence[Prompt],
    drafters: Mapping[str, Drafter],
    num_draft_tokens: int,
    report: Report,
    stop: Callable[[], bool],
) -> Measured | None:
    """Decode every prompt plainly and with each drafter; None if stopped early."""
    steps: dict[str, list[StepMetrics]] = {name: [] for name in drafters}
    tokens: dict[str, int] = dict.fromkeys(drafters, 0)
    same = True
    asked = [deployment.ask(prompt) for prompt in prompts]
    total, done = len(prompts) * (len(drafters) + 1), 0
    plain: list[tuple[int, ...]] = []
    for name, drafter in (("none", None), *drafters.items()):
        for number, each in enumerate(asked):
            answered = deployment.answer(each, SamplingParams(), drafter, num_draft_tokens, stop)
            if answered is None:
                return None
            said, cycles = answered
            if drafter is None:
                plain.append(said)
            else:
                same = same and said == plain[number]
                steps[name] += cycles
                tokens[name] += len(said)
            done += 1
            report(done / total, f"decoding held-out prompts with drafter {name}")
    runs = {name: summarize(steps[name], 0, tokens[name]) for name in drafters}
    return Measured(len(prompts), tuple(sorted({prompt.split for prompt in prompts})), num_draft_tokens, runs, same)
