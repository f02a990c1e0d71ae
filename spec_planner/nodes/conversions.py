"""Between the planner's plain records and ROS messages. The only file that builds ``spec_planner_msgs``."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import KeyValue
from std_msgs.msg import Header
from unique_identifier_msgs.msg import UUID

from spec_planner_msgs.action import GeneratePlan
from spec_planner_msgs.msg import EngineInfo, Plan, PlanStep, RejectedLine, RunMetrics, StepMetrics
from spec_planner_msgs.srv import Certify

from ..certify.certificate import Certificate
from ..config import ConfigError, PlannerConfig
from ..decoding import metrics as plain_metrics
from ..language import plan as plain_plan
from ..language.skills import parse_signature
from ..pipeline.plan_pipeline import PlanPipeline
from ..pipeline.types import PlanProgress, PlanRequest, PlanResult


def plan_request(
    goal: GeneratePlan.Goal, config: PlannerConfig, skills: Sequence[plain_plan.Skill], accepted_at: float
) -> PlanRequest:
    """A goal with the node's settings where it names none. ``accepted_at``: seconds on ``time.monotonic()``.

    Raises:
        ValueError: the goal's content cannot be used; one sentence.
    """
    size = len(goal.instruction.encode())
    if not goal.instruction.strip():
        raise ConfigError("the instruction is empty: say what the robot is to do")
    if size > config.max_instruction_bytes:
        raise ConfigError(
            f"the instruction has {size} bytes but max_instruction_bytes is {config.max_instruction_bytes}: shorten it"
        )
    settings = replace(config, **_overrides(goal))
    return PlanRequest(
        instruction=goal.instruction,
        scene=plain_plan.Scene(settings.objects, settings.places),
        skills=tuple(parse_signature(signature) for signature in goal.skills) or tuple(skills),
        sampling=settings.sampling,
        max_tokens=settings.max_tokens,
        deadline=accepted_at + settings.deadline_s if settings.deadline_s else None,
        plain=goal.plain,
    )


def _overrides(goal: GeneratePlan.Goal) -> dict[str, Any]:
    """What the goal sets, under the settings' names: the config then checks it by the same rules as a parameter."""
    given: dict[str, Any] = {name: tuple(getattr(goal, name)) for name in ("objects", "places") if getattr(goal, name)}
    if goal.max_tokens:
        given["max_tokens"] = goal.max_tokens
    if goal.deadline or math.isnan(goal.deadline):
        given["deadline_s"] = goal.deadline
    if goal.override_sampling:
        given |= {name: getattr(goal, name) for name in ("temperature", "top_k", "top_p", "seed")}
    return given


def goal_for(instruction: str) -> GeneratePlan.Goal:
    """The goal that a bare instruction stands for."""
    return GeneratePlan.Goal(instruction=instruction)


def feedback(progress: PlanProgress, goal_id: UUID, stamp: Time) -> GeneratePlan.Feedback:
    return GeneratePlan.Feedback(
        new_steps=[_plan_step(step) for step in progress.new_steps],
        text=progress.text,
        metrics=step_metrics(progress.metrics, goal_id, stamp),
    )


def result(
    run: PlanResult, outcome: str, detail: str, instruction: str, goal_id: UUID, stamp: Time
) -> GeneratePlan.Result:
    first = run.time_to_first_step_ms
    return GeneratePlan.Result(
        plan=_plan(run.plan, instruction, goal_id, stamp),
        metrics=_run_metrics(run.metrics, outcome, goal_id, stamp),
        tokens=[int(token) for token in run.tokens],
        outcome=outcome,
        detail=detail,
        time_to_first_step_ms=math.nan if first is None else float(first),
    )


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
