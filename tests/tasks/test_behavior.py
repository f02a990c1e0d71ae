"""BEHAVIOR's activities: small, readable, and reachable in words our scenes and goals have."""

from __future__ import annotations

import json
import re

from spec_planner.language.scene import scene_from_mapping
from spec_planner.resources import shared_file
from spec_planner.tasks.behavior import DATA, is_held_out
from spec_planner.tasks.domain import load_domain
from spec_planner.world.goals import check_goal, parse_goal


def activities():
    return [json.loads(line) for line in shared_file(DATA).read_text(encoding="utf-8").splitlines()]


def test_there_are_hundreds_in_a_small_file():
    found = activities()
    assert 300 <= len(found) == len({activity["activity"] for activity in found})
    assert shared_file(DATA).stat().st_size < 400_000
    assert 0.1 <= sum(is_held_out(activity["activity"]) for activity in found) / len(found) <= 0.2


def test_every_activity_is_a_scene_with_a_goal_in_it():
    skills = load_domain("household").skills
    for activity in activities():
        mapping = {key: activity[key] for key in ("places", "objects")}
        scene = scene_from_mapping(mapping, activity["activity"], skills)
        goal = parse_goal(activity["goal"])
        check_goal(goal, skills, scene)
        assert 1 <= len(goal) <= 6
        assert not set(goal) & {condition for condition in goal if condition.fact in scene.facts and condition.holds}
        for thing in scene.things:
            assert re.fullmatch(r"[A-Za-z][A-Za-z -]*[a-zA-Z]( \d)?", thing.name), thing.name


def test_what_it_was_made_from_is_credited():
    assert "MIT" in shared_file("config/tasks/NOTICE").read_text(encoding="utf-8")
