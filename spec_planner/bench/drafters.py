"""How much of a draft is kept, and what drafting costs: plain and speculative decoding by turns over the same prompts.

What one cycle's draft is made of, under a grammar that leaves no choice about the first tokens:

    anchor | forced forced | guess  guess  guess        drafted 5
    kept     ✓      ✓        ✓      ✗                   forced 2, guessed 1; acceptance length 1 + 2 + 1

Forced tokens are the grammar's merit and cost no drafting, so they are counted apart from what the drafter guessed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..language.plan import Scene, SkillSet
from ..language.scene import scene_from_mapping
from ..language.skills import load_skills
from ..pipeline.plan_pipeline import PlanPipeline
from ..pipeline.types import PlanProgress, PlanRequest
from ..resources import shared_file
from ..tasks.task import Task
from .latency import spread

MakeRequest = Callable[[str, Scene, SkillSet, Task], PlanRequest]


@dataclass(frozen=True)
class Cycle:
    """One verify pass.

    Attributes:
        room: draft tokens that the budget, the context and what is left of the answer allowed.
        forced: the draft's first tokens, which the grammar left no choice about.
        kept: draft tokens that the target would have said itself, the forced ones among them.
        draft_ms: drafting, and following the commit.
    """

    room: int
    forced: int
    kept: int
    draft_ms: float
    verify_ms: float

    @property
    def guessed(self) -> int:
        """Kept tokens that the drafter guessed."""
        return max(self.kept - self.forced, 0)

    @property
    def room_to_guess(self) -> int:
        """Tokens the drafter was asked for; 0 where a forced token fell, as no guess could be kept then."""
        return self.room - self.forced if self.kept >= self.forced else 0


@dataclass(frozen=True)
class Run:
    """One answer: its tokens, the time it took after the first of them, its cycles."""

    tokens: tuple[int, ...]
    decode_ms: float
    cycles: tuple[Cycle, ...]


@dataclass(frozen=True)
class Pair:
    """One prompt, answered plain and with the drafter."""

    plain: Run
    drafted: Run

    @property
    def identical(self) -> bool:
        return self.plain.tokens == self.drafted.tokens

    @property
    def speed_up(self) -> float | None:
        """Plain ÷ speculative time per token; None where no token came after the first, or the tokens differ."""
        if not (self.identical and self.drafted.cycles):
            return None
        return self.plain.decode_ms / self.drafted.decode_ms


def requests_for(tasks: Sequence[Task], make_request: MakeRequest) -> list[PlanRequest]:
    """Every task as it would be asked, with its domain's skills and its own scene.

    Raises:
        ValueError: a scene cannot be used.
    """
    domains = {task.domain for task in tasks}
    skills = {domain: load_skills(shared_file(f"config/skills/{domain}.yaml")) for domain in domains}
    return [
        make_request(
            task.instruction,
            scene_from_mapping(task.scene, f"task {task.id}", skills[task.domain]),
            skills[task.domain],
            task,
        )
        for task in tasks
    ]


def hold_back(tasks: Sequence[Task], count: int, calibration: int) -> tuple[list[Task], list[Task]]:
    """Up to ``count`` tasks to measure on and ``calibration`` others to choose on, both spread evenly over ``tasks``.

    Raises:
        ValueError: there are too few for one of each.
    """
    if len(tasks) <= calibration:
        raise ValueError(
            f"{len(tasks)} prompts are too few: {calibration} choose the best tree, and the others are measured on"
        )
    held = {index * len(tasks) // calibration for index in range(calibration)}
    left = [task for index, task in enumerate(tasks) if index not in held]
    kept = min(count, len(left))
    return [left[index * len(left) // kept] for index in range(kept)], [tasks[index] for index in sorted(held)]


def answer(pipeline: PlanPipeline, request: PlanRequest, budget: int) -> Run:
    """Run one request and take its cycles apart.

    Args:
        budget: what the pipeline allows a draft, in tokens.
    """
    news: list[PlanProgress] = []
    result = pipeline.run(request, news.append)
    constraint = None if request.plain else pipeline.asked(request)[1]
    info, most = pipeline.info, request.max_tokens + request.thinking_tokens
    cycles = []
    for metrics in (progress.metrics for progress in news):
        if metrics.num_nodes == 0:
            continue  # the prefill's step, or an interrupt
        said = result.tokens[: metrics.position - result.metrics.prompt_tokens + 1]  # the anchor included
        room = min(
            budget, most - len(said) - 1, info.context_length - metrics.position - 1, info.max_nodes - 1
        )  # as ``decoding.loop`` has it
        forced = 0
        if constraint is not None and metrics.num_drafted:
            forced = min(len(constraint.forced(said)), metrics.num_drafted)  # they are drafted first
        cycles.append(Cycle(max(room, 0), forced, metrics.num_accepted, metrics.draft_ms, metrics.verify_ms))
    return Run(result.tokens, result.metrics.decode_ms, tuple(cycles))


def answer_in_turns(pipeline: PlanPipeline, requests: Sequence[PlanRequest], budget: int) -> Iterator[Pair]:
    """Every request plain and with the pipeline's drafter, one right after the other, the first of them by turns."""
    for index, request in enumerate(requests):
        runs: dict[bool, Run] = {}
        for plain in (True, False) if index % 2 == 0 else (False, True):
            runs[plain] = answer(pipeline, replace(request, plain=plain), budget)
        yield Pair(runs[True], runs[False])


def fastest(
    pipeline: PlanPipeline, use: Callable[[int], None], branches: Sequence[int], requests: Sequence[PlanRequest]
) -> int:
    """Which of ``branches`` answers ``requests`` at the most tokens per second; the first of equals.

    Args:
        use: gives the pipeline the drafter with so many branches.
    """
    if len(branches) == 1:
        return branches[0]
    pace: dict[int, float] = {}
    for count in branches:
        use(count)
        runs = [pipeline.run(request) for request in requests]
        pace[count] = sum(run.metrics.decode_ms for run in runs) / max(sum(len(run.tokens) - 1 for run in runs), 1)
    return min(branches, key=pace.__getitem__)


def summary(pairs: Sequence[Pair]) -> dict[str, object]:
    """One row's figures over ``pairs``.

    ``acceptance_length`` is tokens per verify pass, all passes alike, with its standard error over prompts; its parts
    are ``forced``, ``guessed`` and the target's own 1. ``kept_at_depth``: of the passes that had room for k draft
    tokens, the share that kept at least k; ``guessed_at_depth``: the same of guesses alone, behind the forced tokens.
    Times are means over passes. ``speed_up``: median and quartiles over prompts, None where none could be timed.
    """
    runs = [pair.drafted for pair in pairs]
    cycles = [cycle for run in runs for cycle in run.cycles]
    passes = max(len(cycles), 1)
    length, error = ratio_with_error(
        [sum(cycle.kept + 1 for cycle in run.cycles) for run in runs], [len(run.cycles) for run in runs]
    )
    ratios = [pair.speed_up for pair in pairs if pair.speed_up is not None]
    plain = [cycle.verify_ms for pair in pairs for cycle in pair.plain.cycles]
    return {
        "prompts": len(pairs),
        "tokens": sum(len(run.tokens) for run in runs),
        "passes": len(cycles),
        "acceptance_length": round(length, 3),
        "standard_error": round(error, 3),
        "forced": round(sum(min(cycle.kept, cycle.forced) for cycle in cycles) / passes, 3),
        "guessed": round(sum(cycle.guessed for cycle in cycles) / passes, 3),
        "kept_at_depth": _at_depth([(cycle.room, cycle.kept) for cycle in cycles]),
        "guessed_at_depth": _at_depth([(cycle.room_to_guess, cycle.guessed) for cycle in cycles]),
        "draft_ms": round(sum(cycle.draft_ms for cycle in cycles) / passes, 2),
        "verify_ms": round(sum(cycle.verify_ms for cycle in cycles) / passes, 2),
        "plain_verify_ms": round(statistics.mean(plain), 2) if plain else 0.0,
        "speed_up": spread(ratios, 2) if ratios else None,
        "identical": sum(pair.identical for pair in pairs),
    }


def ratio_with_error(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, float]:
    """Σ numerators ÷ Σ denominators, and its standard error where the pairs, not their parts, are independent."""
    total, count = sum(denominators), len(denominators)
    if not total:
        return 0.0, 0.0
    ratio = sum(numerators) / total
    if count < 2:
        return ratio, 0.0
    squares = sum((n - ratio * d) ** 2 for n, d in zip(numerators, denominators, strict=True))
    return ratio, (count / (count - 1) * squares) ** 0.5 / total


def _at_depth(cycles: Sequence[tuple[int, int]]) -> list[Mapping[str, float]]:
    """(room, kept) of every pass → for each depth, how many passes had room for it and the share that got there."""
    found = []
    for depth in range(1, max((room for room, _ in cycles), default=0) + 1):
        kept = [kept >= depth for room, kept in cycles if room >= depth]
        found.append({"depth": depth, "passes": len(kept), "share": round(sum(kept) / len(kept), 3)})
    return found
