"""What /diagnostics says: engine, exactness, scene, acceptance, latency against the deadline, fallback, memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from std_msgs.msg import Header

from ..decoding.metrics import RunMetrics, StepMetrics
from ..pipeline.plan_pipeline import PlanPipeline

WINDOW = 1000  # latest decoding steps the percentiles are taken over
_MEBIBYTE = 2.0**20


class PlannerDiagnostics:
    """Collects figures of the latest steps and goals and turns them into one status."""

    def __init__(self, node_name: str) -> None:
        self._name = f"{node_name.lstrip('/')}: planner"
        self.problem = ""  # why the planner cannot do its work; empty when it can
        self._pipeline: PlanPipeline | None = None
        self._exactness = ""
        self.forget()

    def forget(self) -> None:
        """Start over, as after loading something else."""
        self._step_ms: deque[float] = deque(maxlen=WINDOW)
        self._token_ms: deque[float] = deque(maxlen=WINDOW)
        self._outcomes: dict[str, int] = {}
        self._expected_misses = 0
        self._last_run: RunMetrics | None = None
        self._last_goal_s = self._last_deadline_s = 0.0
        self._last_outcome, self._last_detail = "none yet", ""
        self.scene, self.scene_problem = "none: names are free", ""  # what goals get; why the latest was refused
        self._lateness = ""  # why the running goal may miss its deadline
        self._certification = "none yet"
        self._certifying = self._certificate_failed = False

    def loaded(self, pipeline: PlanPipeline | None, exactness: str = "") -> None:
        """Report on ``pipeline``, configured for ``exactness``, from now on; None after it was closed."""
        self._pipeline, self._exactness = pipeline, exactness
        self.forget()

    def step_done(self, step: StepMetrics) -> None:
        if step.num_nodes:  # the prefill step verifies nothing
            self._step_ms.append(step.step_ms)
            self._token_ms.append(step.step_ms / step.acceptance_length)

    def goal_began(self) -> None:
        self._lateness = ""

    def goal_may_be_late(self, sentence: str) -> None:
        """The running goal is expected to miss its deadline."""
        self._lateness = sentence
        self._expected_misses += 1

    def goal_done(self, outcome: str, detail: str, elapsed_s: float, deadline_s: float, run: RunMetrics) -> None:
        """A goal ended ``elapsed_s`` after its acceptance; ``deadline_s`` is 0 where it had none."""
        self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1
        self._last_outcome, self._last_detail, self._lateness = outcome, detail, ""
        self._last_goal_s, self._last_deadline_s = elapsed_s, deadline_s
        if run.new_tokens:
            self._last_run = run

    def certification_started(self) -> None:
        self._certifying, self._certificate_failed = True, False
        self._certification = "running"

    def certification_news(self, share: float, line: str) -> None:
        """Called on the certifying thread with the share done (0 … 1)."""
        self._certification = f"running: {share:.0%}, {line}"

    def certification_done(self, verdict: bool, passed: bool, sentence: str) -> None:
        """A certification ended, with a ``verdict`` or without one."""
        self._certifying, self._certificate_failed = False, verdict and not passed
        self._certification = sentence

    def message(self, state: str, stamp: Time) -> DiagnosticArray:
        level, text = self._verdict(state)
        status = DiagnosticStatus(
            level=level,
            name=self._name,
            message=text,
            hardware_id=self._pipeline.info.device if self._pipeline else "",
            values=[KeyValue(key=key, value=str(value)) for key, value in self._values(state)],
        )
        return DiagnosticArray(header=Header(stamp=stamp), status=[status])

    def _verdict(self, state: str) -> tuple[bytes, str]:
        if self.problem:
            return DiagnosticStatus.ERROR, self.problem
        if self._last_outcome == "failed":
            return DiagnosticStatus.ERROR, f"the last goal failed: {self._last_detail}"
        if self._lateness:
            return DiagnosticStatus.WARN, self._lateness
        if self._last_outcome == "deadline":
            return DiagnosticStatus.WARN, f"the last goal missed its deadline of {self._last_deadline_s:g} s"
        if self._certificate_failed:
            return DiagnosticStatus.ERROR, f"the last certification {self._certification}"
        if self.scene_problem:
            return DiagnosticStatus.WARN, f"the latest scene was refused: {self.scene_problem}"
        return DiagnosticStatus.OK, f"{state}, certifying" if self._certifying else state

    def _values(self, state: str) -> Sequence[tuple[str, Any]]:
        values: list[tuple[str, Any]] = [("state", state), ("memory_rss_mib", _resident_mebibytes())]
        if self._pipeline is None:
            return values
        info, rule, run = self._pipeline.info, self._pipeline.rule, self._last_run
        drafting = self._pipeline.drafter_name != "none"
        return [
            *values,
            ("memory_weights_mib", f"{info.weight_bytes / _MEBIBYTE:.1f}"),
            ("memory_kv_mib", f"{info.kv_bytes / _MEBIBYTE:.1f}"),
            ("target", info.name),
            ("engine", info.engine),
            ("precision", info.precision),
            ("device", info.device),
            ("drafter", self._pipeline.drafter_name),
            ("drafting", self._pipeline.drafting),
            ("fallback", "none" if drafting else "plain decoding: no drafter is set"),
            ("rule", rule.name),
            ("exact", str(rule.exact).lower()),
            ("exactness", self._exactness),
            ("certification", self._certification),
            ("scene", self.scene),
            ("scene_problem", self.scene_problem or "none"),
            ("acceptance_length", f"{run.acceptance_length:.3f}" if run else "none yet"),
            ("acceptance_rate", f"{run.acceptance_rate:.3f}" if run else "none yet"),
            ("prompt_tokens", run.prompt_tokens if run else "none yet"),
            ("prompt_tokens_reused", run.reused_tokens if run else "none yet"),
            *_percentiles("step_ms", self._step_ms),
            *_percentiles("token_ms", self._token_ms),
            ("last_goal_outcome", self._last_outcome),
            ("last_goal_s", f"{self._last_goal_s:.3f}"),
            ("last_goal_deadline_s", f"{self._last_deadline_s:g}" if self._last_deadline_s else "none"),
            ("deadline_misses_expected", self._expected_misses),
            ("deadline_misses", self._outcomes.get("deadline", 0)),
            ("goals", sum(self._outcomes.values())),
        ]


def _percentiles(name: str, values: Sequence[float]) -> list[tuple[str, str]]:
    if not values:
        return [(f"{name}_p{rank}", "none yet") for rank in (50, 95, 99)]
    found = np.percentile(np.array(values), (50, 95, 99))
    return [(f"{name}_p{rank}", f"{value:.3f}") for rank, value in zip((50, 95, 99), found, strict=True)]


def _resident_mebibytes() -> str:
    """Memory of this process now, in MiB; "unknown" where the system has no /proc."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return "unknown"
    pages = int(statm.read_text().split()[1])
    return f"{pages * os.sysconf('SC_PAGE_SIZE') / _MEBIBYTE:.1f}"
