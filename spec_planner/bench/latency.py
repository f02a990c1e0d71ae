"""How soon: first token cold and warm, first step, whole plan, and deadlines kept while others want the processor."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..pipeline.plan_pipeline import PlanPipeline
from ..pipeline.types import PlanRequest


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one run; None where it produced no step."""

    first_token_ms: float
    first_step_ms: float | None
    plan_ms: float
    reused_tokens: int
    prompt_tokens: int
    tokens: tuple[int, ...]
    late_ms: float  # past the deadline; negative: it had that much left
    outcome: str


def time_run(pipeline: PlanPipeline, request: PlanRequest, deadline_s: float | None = None) -> Timing:
    """Run once. ``deadline_s`` counts from now."""
    started = time.monotonic()
    deadline = None if deadline_s is None else started + deadline_s
    result = pipeline.run(replace(request, deadline=deadline))
    ended = time.monotonic()
    m = result.metrics
    return Timing(
        m.time_to_first_token_ms,
        result.time_to_first_step_ms,
        (ended - started) * 1e3,
        m.reused_tokens,
        m.prompt_tokens,
        result.tokens,
        0.0 if deadline is None else (ended - deadline) * 1e3,
        result.outcome,
    )


def time_cold_and_warm(
    pipeline: PlanPipeline, requests: Sequence[PlanRequest], plain: bool
) -> list[tuple[Timing, Timing]]:
    """Every request once from an empty context, and once after another request of the same scene."""
    pairs = []
    for index, request in enumerate(requests):
        request = replace(request, plain=plain)
        _ = pipeline.target  # asked for: the next run starts cold
        cold = time_run(pipeline, request)
        pipeline.run(replace(requests[index - 1], plain=plain, max_tokens=1))
        pairs.append((cold, time_run(pipeline, request)))
    return pairs


def missed_deadlines(
    pipeline: PlanPipeline, requests: Sequence[PlanRequest], plain: bool, deadline_s: float
) -> dict[str, object]:
    """How many plans were not whole at the deadline, and by how much the latest answer came after it."""
    timings = [time_run(pipeline, replace(request, plain=plain), deadline_s) for request in requests]
    late = sorted(timing.late_ms for timing in timings)
    return {
        "deadline_ms": round(deadline_s * 1e3),
        "runs": len(timings),
        "cut_short": sum(timing.outcome == "deadline" for timing in timings),
        "latest_ms": round(late[-1], 1),
    }


def spread(values: Sequence[float], digits: int = 1) -> dict[str, float]:
    """Median and quartiles."""
    if len(values) < 2:
        return dict.fromkeys(("median", "low", "high"), round(values[0], digits))
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": round(middle, digits), "low": round(low, digits), "high": round(high, digits)}


def _burn() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        while os.getppid() != 1:  # ends with whoever started it
            sum(range(100_000))


@contextlib.contextmanager
def busy_processor(processes: int | None = None) -> Iterator[None]:
    """Other processes that never rest, one per core, while the context lasts."""
    context = multiprocessing.get_context("spawn")
    burning = [context.Process(target=_burn, daemon=True) for _ in range(processes or os.cpu_count() or 1)]
    try:
        for process in burning:
            process.start()
        time.sleep(1.0)  # until they run
        yield
    finally:
        for process in burning:
            process.terminate()
        for process in burning:
            process.join()
