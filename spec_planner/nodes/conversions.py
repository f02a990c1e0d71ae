"""Between the planner's plain records and ROS messages. The only file that builds ``spec_planner_msgs``."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
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
    Scene,
    StepMetrics,
)
from spec_planner_msgs.srv import Certify

from ..certify.certificate import Certificate
from ..config import ConfigError, PlannerConfig
from ..decoding import metrics as plain_metrics
from ..factory import make_request
from ..language import plan as plain_plan
from ..language.plan_parser import PlanParser
from ..language.scene import scene_from_mapping
from ..language.skills import MAX_SKILLS, parse_signature
from ..pipeline.plan_pipeline import PlanPipeline
from ..pipeline.types import PlanProgress, PlanRequest, PlanResult

MAX_DONE = 1000  # lines of a history
_MAX_DEADLINE_S = next(e.metadata["high"] for e in fields(PlannerConfig) if e.name == "deadline_s")


def plan_request(
    goal: GeneratePlan.Goal,
    config: PlannerConfig,
    skills: plain_plan.SkillSet,
    node_scene: plain_plan.Scene,
    accepted_at: float,
) -> PlanRequest:
    """A goal with what the node has where it brings nothing. ``accepted_at``: seconds on ``time.monotonic()``.

    Raises:
        ValueError: the goal's content cannot be used; one sentence.
    """
    if not goal.instruction.strip():
        raise ConfigError("the instruction is empty: say what the robot is to do")
    _check_size("instruction", goal.instruction, config)
    if math.isnan(goal.deadline) or not 0 <= goal.deadline <= _MAX_DEADLINE_S:
        raise ConfigError(f"deadline must be between 0 and {_MAX_DEADLINE_S:g} s, got {goal.deadline}")
    settings = replace(config, **_overrides(goal))
    own_skills = _goal_skills(goal, skills)
    return make_request(
        settings,
        goal.instruction,
        node_scene if is_empty(goal.scene) else scene(goal.scene, own_skills, "the goal's scene"),
        own_skills,
        _history(goal, config, own_skills),
        accepted_at + settings.deadline_s if settings.deadline_s else None,
        goal.plain,
    )


def _overrides(goal: GeneratePlan.Goal) -> dict[str, Any]:
    """What the goal sets, under the settings' names: the config then checks it by the same rules as a parameter."""
    given = {name: getattr(goal, name) for name in ("max_tokens", "max_steps", "free_text") if getattr(goal, name)}
    if goal.deadline:
        given["deadline_s"] = goal.deadline
    if goal.override_sampling:
        given |= {name: getattr(goal, name) for name in ("temperature", "top_k", "top_p", "seed")}
    return given


def _goal_skills(goal: GeneratePlan.Goal, skills: plain_plan.SkillSet) -> plain_plan.SkillSet:
    """The node's skills, or those the goal allows: the node's own where a signature is the same."""
    if not goal.skills:
        return skills
    if len(goal.skills) > MAX_SKILLS:
        raise ConfigError(f"the goal names {len(goal.skills)} skills, more than {MAX_SKILLS}: name what the task needs")
    chosen: dict[str, plain_plan.Skill] = {}
    for signature in goal.skills:
        skill = parse_signature(signature, skills=skills)
        if skill.name in chosen:
            raise ConfigError(f"the goal names skill {skill.name!r} twice: name it once")
        chosen[skill.name] = skill
    return replace(skills, skills=tuple(chosen.values()))


def _history(goal: GeneratePlan.Goal, config: PlannerConfig, skills: plain_plan.SkillSet) -> plain_plan.History:
    if len(goal.done) > MAX_DONE:
        raise ConfigError(f"done has {len(goal.done)} lines, more than {MAX_DONE}: send the latest")
    if goal.failure.strip() and not goal.failed:
        raise ConfigError("failure says why a step failed, but failed names no step: name it")
    _check_size("failure", goal.failure, config)
    done = tuple(_plan_line(line, f"line {number} of done", skills) for number, line in enumerate(goal.done, 1))
    return plain_plan.History(done, _plan_line(goal.failed, "failed", skills) if goal.failed else "", goal.failure)


def _plan_line(line: str, where: str, skills: plain_plan.SkillSet) -> str:
    """``line`` as a plan writes it. What a plan could say may be in a history, things that are gone since included."""
    call, reason = _call(line, skills)
    if call and _call(call, skills)[0] != call:
        reason = "a value in it holds what plans are written with"
    if reason:
        raise ConfigError(f"{where}, {line[:80]!r}, is no step of a plan ({reason}): send it as the plan had it")
    return call


def _call(line: str, skills: plain_plan.SkillSet) -> tuple[str, str]:
    """The step of a plan line as ``skill(value, value)``, and why there is none."""
    parser = PlanParser(skills)
    parser.feed(line)
    parser.finish()
    read = parser.plan(ended=True)
    if read.rejected or len(read.steps) != 1:
        return "", read.rejected[0].reason if read.rejected else "one line holds one step"
    return f"{read.steps[0].skill}({', '.join(read.steps[0].values)})", ""


def _check_size(field: str, text: str, config: PlannerConfig) -> None:
    size = len(text.encode(errors="replace"))
    if size > config.max_instruction_bytes:
        raise ConfigError(
            f"the {field} has {size} bytes but max_instruction_bytes is {config.max_instruction_bytes}: shorten it"
        )


def is_empty(message: Scene) -> bool:
    """A scene that says nothing stands for whatever else there is."""
    return not (message.things or message.robot_at or message.holding)


def scene(message: Scene, skills: plain_plan.SkillSet, where: str) -> plain_plan.Scene:
    """A scene that came by message; errors call it ``where``.

    Raises:
        ValueError: it cannot be used; one sentence.
    """
    mapping: dict[str, Any] = {"places": [], "objects": []}
    for thing in message.things:
        kind = thing.kind or plain_plan.OBJECT
        sort = "places" if skills.is_a(kind, plain_plan.PLACE) else "objects"
        entry = {"name": thing.name, "kind": kind, "at": thing.at, "is": list(thing.states)}
        mapping[sort].append({key: value for key, value in entry.items() if value or key == "name"})
    mapping["robot"] = {key: at for key, at in (("at", message.robot_at), ("holding", message.holding)) if at}
    return scene_from_mapping(mapping, where, skills)


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
