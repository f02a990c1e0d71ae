"""The planner's plain records → ROS messages. The only file that builds ``spec_planner_msgs``."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import KeyValue
from std_msgs.msg import Header
from unique_identifier_msgs.msg import UUID

from spec_planner_msgs.action import GeneratePlan
from spec_planner_msgs.msg import (
    EngineInfo,
    Plan,
    PlanStep,
    PlanStepStamped,
    RejectedLine,
    RunMetrics,
    StepMetrics,
)
from spec_planner_msgs.srv import Certify

from ..certify.certificate import Certificate
from ..config import PlannerConfig
from ..decoding import metrics as plain_metrics
from ..language import plan as plain_plan
from ..pipeline.plan_pipeline import PlanPipeline
from ..pipeline.types import PlanProgress, PlanResult


def goal_for(instruction: str) -> GeneratePlan.Goal:
    """The goal that a bare instruction stands for."""
    return GeneratePlan.Goal(instruction=instruction)


def feedback(progress: PlanProgress, goal_id: UUID, stamp: Time) -> GeneratePlan.Feedback:
    return GeneratePlan.Feedback(
        new_steps=[_plan_step(step) for step in progress.new_steps],
        text=progress.text,
        thinking=progress.thinking,
        metrics=step_metrics(progress.metrics, goal_id, stamp),
    )


def plan_steps(progress: PlanProgress, goal_id: UUID, stamp: Time) -> list[PlanStepStamped]:
    """One message per step that this decoding step completed."""
    header = Header(stamp=stamp)
    return [PlanStepStamped(header=header, goal_id=goal_id, step=_plan_step(step)) for step in progress.new_steps]


def result(
    run: PlanResult, outcome: str, detail: str, instruction: str, goal_id: UUID, stamp: Time
) -> GeneratePlan.Result:
    return GeneratePlan.Result(
        plan=_plan(run.plan, instruction, goal_id, stamp),
        metrics=_run_metrics(run.metrics, outcome, goal_id, stamp),
        tokens=[int(token) for token in run.tokens],
        outcome=outcome,
        detail=detail,
        thinking=run.thinking,
        time_to_first_step_ms=_known(run.time_to_first_step_ms),
        expected_ms=_known(run.expected_ms),
    )


def _known(value: float | None) -> float:
    return math.nan if value is None else float(value)


def step_metrics(step: plain_metrics.StepMetrics, goal_id: UUID, stamp: Time) -> StepMetrics:
    return StepMetrics(
        header=Header(stamp=stamp),
        goal_id=goal_id,
        acceptance_length=step.acceptance_length,
        **_same_fields(step, StepMetrics),
    )


def engine_info(pipeline: PlanPipeline, config: PlannerConfig, stamp: Time) -> EngineInfo:
    return EngineInfo(
        header=Header(stamp=stamp),
        versions=[KeyValue(key=key, value=value) for key, value in sorted(pipeline.info.versions.items())],
        drafter=pipeline.drafter_name,
        num_draft_tokens=0 if pipeline.drafter_name == "none" else config.num_draft_tokens,
        rule=pipeline.rule.name,
        exact=pipeline.rule.exact,
        same_tokens=pipeline.rule.same_tokens,
        exactness=config.exactness,
        skills=[skill.signature for skill in pipeline.skills],
        kinds=[plain_plan.OBJECT, plain_plan.PLACE, *pipeline.skills.kinds],
        **_same_fields(pipeline.info, EngineInfo, leave_out="versions"),
    )


def certificate(proof: Certificate, content: dict[str, Any], remark: str = "") -> Certify.Response:
    """The verdict; ``content`` is the certificate as JSON, ``remark`` is added to the sentence."""
    verdict = "passed" if proof.passed else "failed"
    said = f"{verdict}: {proof.tokens} tokens compared, {proof.mismatches} mismatches"
    if proof.problems:
        said += f"; {proof.problems[0]}" + (f", and {len(proof.problems) - 1} more" if proof.problems[1:] else "")
    return Certify.Response(
        success=True,
        passed=proof.passed,
        tokens=proof.tokens,
        mismatches=proof.mismatches,
        near_ties=sum(cell.near_ties for cell in proof.cells),
        problems=list(proof.problems),
        report=json.dumps(content),
        message=said + remark,
    )


def no_certificate(message: str) -> Certify.Response:
    """There is no verdict; ``message`` is one sentence on why."""
    return Certify.Response(message=message)


def _plan(plan: plain_plan.Plan, instruction: str, goal_id: UUID, stamp: Time) -> Plan:
    return Plan(
        header=Header(stamp=stamp),
        goal_id=goal_id,
        instruction=instruction,
        steps=[_plan_step(step) for step in plan.steps],
        rejected=[RejectedLine(**_same_fields(line, RejectedLine)) for line in plan.rejected],
        complete=plan.complete,
        text=plan.text,
    )


def _plan_step(step: plain_plan.PlanStep) -> PlanStep:
    return PlanStep(**_same_fields(step, PlanStep))


def _run_metrics(run: plain_metrics.RunMetrics, outcome: str, goal_id: UUID, stamp: Time) -> RunMetrics:
    return RunMetrics(header=Header(stamp=stamp), goal_id=goal_id, outcome=outcome, **_same_fields(run, RunMetrics))


def _same_fields(record: Any, message: type, leave_out: str = "") -> dict[str, Any]:
    """A record's fields under the same names in ``message``, each in the message's own type.

    The cast matters: rosidl's C code ends the process on an int, or a numpy number, where a message holds a double.
    """
    types = message.get_fields_and_field_types()
    return {
        entry.name: _cast(getattr(record, entry.name), types[entry.name])
        for entry in fields(record)
        if entry.name != leave_out
    }


def _cast(value: Any, field_type: str) -> Any:
    if field_type.startswith("sequence<"):
        return [_cast(item, field_type[len("sequence<") : -1]) for item in value]
    for kind, cast in (("bool", bool), ("string", str), ("double", float), ("int", int), ("uint", int)):
        if field_type.startswith(kind):
            return cast(value)
    raise TypeError(f"no cast to {field_type}: convert this field by hand")
