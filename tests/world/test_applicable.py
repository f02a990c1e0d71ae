"""The steps that are offered are exactly those that can be done."""

from __future__ import annotations

import contextlib
import itertools
import random

import pytest

from spec_planner.language.plan import ENUM, NUMBER, Fact, PlanStep, Scene, Thing
from spec_planner.language.scene import load_scene
from spec_planner.language.skills import load_skills, read_skills
from spec_planner.resources import shared_file
from spec_planner.world.applicable import applicable, is_told
from spec_planner.world.state import WorldError, apply, start

DOMAINS = ["household", "warehouse", "lab", "field"]


def shipped(domain):
    skills = load_skills(shared_file(f"config/skills/{domain}.yaml"))
    return skills, load_scene(shared_file(f"config/scenes/{domain}.yaml"), skills)


def any_value(parameter):
    if parameter.kind == NUMBER:
        return f"{parameter.low:g}"
    return parameter.choices[0] if parameter.kind == ENUM else "words"


def possible(state, skills, scene):
    """By trying: every call of things under which ``apply`` succeeds, with some value for what names no thing."""
    for skill in skills:
        names = [scene.values_for(p, skills) if p.names_a_thing else (None,) for p in skill.parameters]
        for values in itertools.product(*names):
            filled = [any_value(p) if v is None else v for p, v in zip(skill.parameters, values, strict=True)]
            step = PlanStep(0, skill.name, skill.parameter_names, tuple(filled), "")
            with contextlib.suppress(WorldError):
                yield (skill.name, values), apply(state, step, skills, scene)


@pytest.mark.parametrize("domain", DOMAINS)
def test_what_is_offered_is_what_can_be_done(domain):
    """Along a random walk from the shipped scene, where conditions do not ask about numbers and choices."""
    skills, scene = shipped(domain)
    assert is_told(scene, skills)
    dice, state = random.Random(3), start(scene, skills)
    for _ in range(12):
        found = dict(possible(state, skills, scene))
        offered = {
            (skill.name, tuple(v if p.names_a_thing else None for p, v in zip(skill.parameters, values, strict=True)))
            for skill, values in applicable(state, skills, scene)
        }
        narrowed = {  # a number or choice that a precondition fixes makes the trial's arbitrary one fail
            call for call in offered - found.keys() if any(v is not None for v in _fixed(call, state, skills, scene))
        }
        assert offered - narrowed == found.keys()
        state = found[dice.choice(sorted(found, key=str))]


def _fixed(call, state, skills, scene):
    for skill, values in applicable(state, skills, scene):
        if skill.name == call[0]:
            yield from (v for p, v in zip(skill.parameters, values, strict=True) if not p.names_a_thing)


COUNTER = """
kinds: {shelf: place}
skills:
- {name: lift, parameters: [{name: height, kind: number, low: 0, high: 9}],
   variables: [{name: was, kind: number, low: 0, high: 9}],
   preconditions: [at_height(was)], effects: [not at_height(was), at_height(height)]}
- {name: grab, parameters: [object, {name: height, kind: number, low: 0, high: 9}],
   preconditions: [stored(object, height), at_height(height)], effects: [has(object)]}
- {name: shout, parameters: []}
"""


def test_a_value_that_a_precondition_fixes_is_fixed():
    skills = read_skills(COUNTER, "c.yaml")
    scene = Scene((Thing("crate"), Thing("box")), (Fact("robot_at", ("s",)),))
    state = frozenset({Fact("at_height", ("3",)), Fact("stored", ("crate", "3")), Fact("stored", ("box", "5"))})
    offered = [(skill.name, values) for skill, values in applicable(state, skills, scene)]
    assert offered == [("lift", (None,)), ("grab", ("crate", "3")), ("shout", ())]


def test_a_scene_tells_enough_only_if_everything_has_its_place():
    skills = load_skills()
    cup, hall, here = Thing("cup"), Thing("hall", "place"), Fact("robot_at", ("hall",))
    assert is_told(Scene((cup, hall), (here, Fact("at", ("cup", "hall")))), skills)
    assert is_told(Scene((cup, hall), (here, Fact("holding", ("cup",)))), skills)
    assert is_told(Scene((hall,), (here,)), skills)
    assert not is_told(Scene((cup, hall), (here,)), skills)
    assert not is_told(Scene((cup, hall), (Fact("at", ("cup", "hall")),)), skills)
    assert not is_told(Scene(), skills)
