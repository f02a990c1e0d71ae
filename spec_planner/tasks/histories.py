"""Tasks in the middle: some steps are done, one has failed, and the plan goes on from there."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ..language.plan import Condition, Fact, History, Scene
from ..language.scene import SceneError, scene_from_mapping, scene_to_mapping
from ..world.execution import execute
from ..world.state import State, reached, start
from .domain import Domain
from .planning import Expert

MAX_DONE = 5


def interrupted(
    domain: Domain,
    expert: Expert,
    scene: Scene,
    plan: Sequence[str],
    stages: Sequence[Condition | str],
    goal: tuple[Condition, ...],
    constants: Mapping[str, str],
    fixed: bool,
    chance: random.Random,
) -> tuple[Mapping[str, Any], tuple[str, ...], History] | None:
    """The scene as it then is, the rest of the plan from there, and what happened; None where the draw does not work.

    A failure changes nothing (the step is then tried again), or shows what nobody knew: the thing is somewhere else, or
    the door is closed. The scene says so. ``fixed``: nothing may turn up somewhere else.
    """
    cut = chance.randrange(min(len(plan), MAX_DONE + 1))
    states = execute(plan[:cut], domain.skills, scene).states
    failed = plan[cut]
    skill = failed.partition("(")[0]
    reasons = domain.failures.get(skill, ())
    if len(states) != cut + 1 or not reasons:
        return None
    if fixed:  # the instruction says "everything on the table": what turns up elsewhere would not be meant
        reasons = tuple(reason for reason in reasons if "=> elsewhere" not in reason)
    reason, _, change = chance.choice(reasons).partition(" => ")
    state = states[-1]
    values = [value.strip() for value in failed.partition("(")[2].rstrip(")").split(",")]
    changed = _after(change.strip(), values, state, scene, domain, chance)
    if changed is None:
        return None
    known = [fact for fact in (*scene.facts, *sorted(changed - set(scene.facts), key=str)) if fact in changed]
    try:
        later = Scene(scene.things, tuple(fact for fact in known if _sayable(fact, scene, domain)))
        written = scene_to_mapping(later, domain.skills)
        again = scene_from_mapping(written, "history", domain.skills)
    except SceneError:
        return None
    if _decisive(start(again, domain.skills), domain) != _decisive(changed, domain):
        return None  # a scene file has no words for what holds now: the tank is half full
    found = expert.plan(again, start(again, domain.skills), _still_to_do(stages, states), constants)
    if not found or not found[0] or not reached(found[1], goal):
        return None
    text = reason
    for index, value in enumerate(values):
        text = text.replace(f"{{{index}}}", value)
    where = next((f.arguments[1] for f in state if f.predicate == "at" and f.arguments[0] == values[0]), "")
    text = text.replace("{s}", where)
    return written, found[0], History(tuple(plan[:cut]), failed, text)


def _after(
    change: str, values: list[str], state: State, scene: Scene, domain: Domain, chance: random.Random
) -> State | None:
    """The state once the failure has shown what is so. ``elsewhere``: the object is at another place; ``closed``."""
    if not change:
        return state
    thing = values[0]
    at = next((fact for fact in state if fact.predicate == "at" and fact.arguments[0] == thing), None)
    if at is None:
        return None
    kinds = {t.name: t.kind for t in scene.things}
    if change == "elsewhere":
        basis = ("surface", "storage", "bench", "container")
        others = [
            name
            for name, kind in kinds.items()
            if name != at.arguments[1] and any(k in domain.skills.kinds and domain.skills.is_a(kind, k) for k in basis)
        ]
        others = [o for o in others if not domain.skills.is_a(kinds[o], "container") or "window" not in o]
        others = [o for o in others if not o.endswith("door")]
        return state - {at} | {Fact("at", (thing, chance.choice(others)))} if others else None
    if change == "closed":
        place = at.arguments[1]
        closable = any(
            Condition(Fact("closed", (p.name,)), False) in skill.effects and domain.skills.is_a(kinds[place], p.kind)
            for skill in domain.skills
            for p in skill.parameters
            if p.names_a_thing
        )
        return state | {Fact("closed", (place,))} if closable else None
    raise ValueError(f"failure change {change!r} is unknown: use elsewhere or closed")


def _sayable(fact: Fact, scene: Scene, domain: Domain) -> bool:
    names = {thing.name for thing in scene.things}
    if fact.predicate == "at":
        return True
    return len(fact.arguments) == 1 and fact.arguments[0] in names and fact.predicate != "found"


def _decisive(state: State, domain: Domain) -> set[Fact]:
    needed = {c.fact.predicate for skill in domain.skills for c in skill.preconditions}
    return {fact for fact in state if fact.predicate in needed}


def _still_to_do(stages: Sequence[Condition | str], states: Sequence[State]) -> Sequence[Condition | str]:
    """The stages not reached so far, in order; one that a later one undoes is not done twice."""
    done = 0
    for state in states:
        while done < len(stages):
            stage = stages[done]
            if isinstance(stage, str) or not reached(state, (stage,)):
                break
            done += 1
    return stages[done:]
