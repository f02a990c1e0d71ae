"""The thread that decodes: one job at a time, the newest wins, and every job gets exactly one ending."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..decoding.metrics import summarize
from ..language.plan import Plan
from ..pipeline.plan_pipeline import PlanPipeline
from ..pipeline.types import PlanProgress, PlanRequest, PlanResult


class Job:
    """A request on its way through the worker.

    ``stop`` is final: the first reason given is the one that counts. It is seen before the next pass over the weights.
    """

    def __init__(self, request: PlanRequest, owner: Any) -> None:
        self.request = request
        self.owner = owner  # whoever submitted it; the worker does not look inside
        self.stopped_as = ""  # outcome to report if the run ends by being stopped: "cancelled" or "preempted"
        self.reason = ""  # one sentence

    @property
    def stopped(self) -> bool:
        return bool(self.stopped_as)

    def stop(self, stopped_as: str, reason: str) -> None:
        if not self.stopped:
            self.reason, self.stopped_as = reason, stopped_as  # the reason first: the other thread looks at stopped_as


@dataclass(frozen=True)
class Progress:
    """A decoding step of ``job`` is done."""

    job: Job
    progress: PlanProgress


@dataclass(frozen=True)
class Finished:
    """``job`` has ended: ``outcome`` as the action names it, with one sentence of ``detail`` unless it succeeded."""

    job: Job
    outcome: str
    detail: str
    result: PlanResult
    trace: str = ""  # traceback of a run that broke down


News = Progress | Finished


class DecodeWorker:
    """Runs jobs on ``pipeline`` in its own thread, between ``start`` and ``stop``.

    ``tell`` gets all news on the worker's thread, in order; it must not block and must not raise.
    """

    def __init__(self, pipeline: PlanPipeline, tell: Callable[[News], None]) -> None:
        self._pipeline = pipeline
        self._tell = tell
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="decode_worker")

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Run ``job`` next; whatever runs or waits is preempted and ends within one decoding step."""
        with self._changed:
            self._stop_all("preempted", "a newer goal took over")
            self._waiting.append(job)
            self._changed.notify()

    def stop(self, reason: str) -> None:
        """Cancel every job, deliver their endings and end the thread. Returns when it has ended."""
        with self._changed:
            self._closing = True
            self._stop_all("cancelled", reason)
            self._changed.notify()
        self._thread.join()

    def _stop_all(self, stopped_as: str, reason: str) -> None:
        for job in (*self._waiting, *((self._running,) if self._running else ())):
            job.stop(stopped_as, reason)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._running = None
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                job = self._running = self._waiting.popleft()
            self._tell(self._run(job))

    def _run(self, job: Job) -> Finished:
        if job.stopped:  # before its turn came
            return Finished(job, job.stopped_as, job.reason, empty_result())
        try:
            result = self._pipeline.run(
                job.request,
                lambda progress: self._tell(Progress(job, progress)),
                lambda: job.stopped,
            )
        except ValueError as problem:  # the pipeline's way of turning a request down before decoding
            return Finished(job, "refused", str(problem), empty_result())
        except Exception as error:  # a broken run must not take the node down: it is reported, and the next goal tried
            detail = f"decoding broke down with {type(error).__name__}: {error}"
            return Finished(job, "failed", detail, empty_result(), traceback.format_exc())
        if result.outcome == "cancelled":
            return Finished(job, job.stopped_as, job.reason, result)
        return Finished(job, result.outcome, result.detail, result)


def empty_result() -> PlanResult:
    """The result of a run that never began."""
    return PlanResult(Plan((), (), False, ""), (), "cancelled", "", summarize((), 0, 0), None)
