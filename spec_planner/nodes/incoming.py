"""Goals and scenes that came by message → plain records, checked."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

from spec_planner_msgs.action import GeneratePlan
from spec_planner_msgs.msg import Scene as SceneMessage

from ..config import ConfigError, PlannerConfig
from ..factory import make_request
from ..language.history import read_history
from ..language.plan import OBJECT, PLACE, History, Scene, Skill, SkillSet
from ..language.scene import MAX_THINGS, SceneError, scene_from_mapping
from ..language.skills import MAX_SKILLS, parse_signature
from ..pipeline.types import PlanRequest

MAX_DONE = 1000  # lines of a history
_MAX_DEADLINE_S = next(e.metadata["high"] for e in fields(PlannerConfig) if e.name == "deadline_s")


def plan_request(
    goal: GeneratePlan.Goal,
    config: PlannerConfig,
    skills: SkillSet,
    node_scene: Scene,
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


def _goal_skills(goal: GeneratePlan.Goal, skills: SkillSet) -> SkillSet:
    """The node's skills, or those the goal allows: the node's own where a signature is the same."""
    if not goal.skills:
        return skills
    if len(goal.skills) > MAX_SKILLS:
        raise ConfigError(f"the goal names {len(goal.skills)} skills, more than {MAX_SKILLS}: name what the task needs")
    chosen: dict[str, Skill] = {}
    for signature in goal.skills:
        skill = parse_signature(signature, skills=skills)
        if skill.name in chosen:
            raise ConfigError(f"the goal names skill {skill.name!r} twice: name it once")
        chosen[skill.name] = skill
    return replace(skills, skills=tuple(chosen.values()))


def _history(goal: GeneratePlan.Goal, config: PlannerConfig, skills: SkillSet) -> History:
    if len(goal.done) > MAX_DONE:
        raise ConfigError(f"done has {len(goal.done)} lines, more than {MAX_DONE}: send the latest")
    _check_size("failure", goal.failure, config)
    return read_history(goal.done, goal.failed, goal.failure, skills)


def _check_size(field: str, text: str, config: PlannerConfig) -> None:
    size = len(text.encode(errors="replace"))
    if size > config.max_instruction_bytes:
        raise ConfigError(
            f"the {field} has {size} bytes but max_instruction_bytes is {config.max_instruction_bytes}: shorten it"
        )


def is_empty(message: SceneMessage) -> bool:
    """A scene that says nothing stands for whatever else there is."""
    return not (message.things or message.robot_at or message.holding)


def scene(message: SceneMessage, skills: SkillSet, where: str) -> Scene:
    """A scene that came by message; errors call it ``where``.

    Raises:
        ValueError: it cannot be used; one sentence.
    """
    if len(message.things) > MAX_THINGS:  # before looking at each of them
        raise SceneError(f"{where}: {len(message.things)} things are more than {MAX_THINGS}: list what the task needs")
    mapping: dict[str, Any] = {"places": [], "objects": []}
    for thing in message.things:
        kind = thing.kind or OBJECT
        sort = "places" if skills.is_a(kind, PLACE) else "objects"
        entry = {"name": thing.name, "kind": kind, "at": thing.at, "is": list(thing.states)}
        mapping[sort].append({key: value for key, value in entry.items() if value or key == "name"})
    mapping["robot"] = {key: at for key, at in (("at", message.robot_at), ("holding", message.holding)) if at}
    return scene_from_mapping(mapping, where, skills)
