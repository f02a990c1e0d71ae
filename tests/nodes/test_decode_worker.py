"""The decode worker without ROS: the newest job wins and every job ends exactly once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from spec_planner.decoding.metrics import StepMetrics, summarize
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.language.plan import Plan
from spec_planner.nodes.decode_worker import DecodeWorker, Finished, Job, Progress
from spec_planner.pipeline.types import PlanProgress, PlanRequest, PlanResult


class StepwisePipeline:
    """A pipeline that waits for ``step`` before each of three decoding steps, like a target that takes its time."""

    def __init__(self) -> None:
        self.steps: queue.Queue[Exception | None] = queue.Queue()
        self.runs: list[str] = []

    def step(self, error: Exception | None = None) -> None:
        self.steps.put(error)

    def run(
        self, request: PlanRequest, on_progress: Callable[[PlanProgress], None], cancelled: Callable[[], bool]
    ) -> PlanResult:
        self.runs.append(request.instruction)
        outcome = "succeeded"
        for index in range(3):
            error = self.steps.get(timeout=10)
            if error:
                raise error
            if cancelled():
                outcome = "cancelled"
                break
            metrics = StepMetrics(index, index, 1, 0, 0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, True)
            on_progress(PlanProgress((), request.instruction, metrics))
        return PlanResult(Plan((), (), True, request.instruction), (), outcome, "", summarize((), 0, 0), None)


class Bench:
    def __init__(self) -> None:
        self.pipeline = StepwisePipeline()
        self.news: queue.Queue[Progress | Finished] = queue.Queue()
        self.worker = DecodeWorker(self.pipeline, self.news.put)
        self.worker.start()

    def submit(self, instruction: str) -> Job:
        job = Job(PlanRequest(instruction, SamplingParams(), 10), owner=None)
        self.worker.submit(job)
        return job

    def ending(self) -> Finished:
        """The next ending, past any progress."""
        while isinstance(news := self.news.get(timeout=10), Progress):
            pass
        return news


@pytest.fixture
def bench() -> Iterator[Bench]:
    before = threading.active_count()
    bench = Bench()
    yield bench
    bench.pipeline.step()
    bench.worker.stop("the test is over")
    assert threading.active_count() == before


def test_a_job_reports_each_step_and_then_its_ending(bench: Bench) -> None:
    job = bench.submit("tidy up")
    for index in range(3):
        bench.pipeline.step()
        progress = bench.news.get(timeout=10)
        assert isinstance(progress, Progress) and progress.job is job and progress.progress.metrics.index == index
    ending = bench.ending()
    assert (ending.job, ending.outcome, ending.result.plan.text) == (job, "succeeded", "tidy up")


def test_the_newest_job_wins_and_the_others_never_run(bench: Bench) -> None:
    first = bench.submit("first")
    bench.pipeline.step()
    assert isinstance(bench.news.get(timeout=10), Progress)
    second, third = bench.submit("second"), bench.submit("third")
    for _ in range(4):  # one to let the first see it was stopped, three for the third
        bench.pipeline.step()
    endings = [bench.ending() for _ in range(3)]
    assert [(e.job, e.outcome) for e in endings] == [(first, "preempted"), (second, "preempted"), (third, "succeeded")]
    assert bench.pipeline.runs == ["first", "third"]
    assert endings[0].detail == "a newer goal took over"


def test_a_cancelled_job_says_why_and_the_first_reason_counts(bench: Bench) -> None:
    job = bench.submit("tidy up")
    job.stop("cancelled", "the client cancelled the goal")
    job.stop("preempted", "too late")
    bench.pipeline.step()
    ending = bench.ending()
    assert (ending.outcome, ending.detail) == ("cancelled", "the client cancelled the goal")


def test_a_request_that_cannot_run_is_refused_with_the_pipelines_sentence(bench: Bench) -> None:
    bench.submit("too long")
    bench.pipeline.step(ValueError("the prompt has 9 tokens but the context holds 8"))
    ending = bench.ending()
    assert (ending.outcome, ending.detail) == ("refused", "the prompt has 9 tokens but the context holds 8")
    assert ending.result.tokens == () and not ending.trace


def test_a_run_that_breaks_down_is_reported_and_the_next_job_runs(bench: Bench) -> None:
    bench.submit("break")
    bench.pipeline.step(RuntimeError("device lost"))
    ending = bench.ending()
    assert (ending.outcome, ending.detail) == ("failed", "decoding broke down with RuntimeError: device lost")
    assert "RuntimeError: device lost" in ending.trace
    bench.submit("again")
    for _ in range(3):
        bench.pipeline.step()
    assert bench.ending().outcome == "succeeded"


def test_stop_ends_the_running_and_the_waiting_job_and_the_thread() -> None:
    bench = Bench()
    first = bench.submit("first")
    bench.pipeline.step()
    bench.news.get(timeout=10)
    second = bench.submit("second")
    second.stop("cancelled", "the client cancelled the goal")
    bench.pipeline.step()
    bench.worker.stop("the planner was deactivated")
    assert [(e.job, e.outcome) for e in (bench.ending(), bench.ending())] == [
        (first, "preempted"),
        (second, "cancelled"),
    ]
    assert bench.news.empty()
    assert "decode_worker" not in [thread.name for thread in threading.enumerate()]
