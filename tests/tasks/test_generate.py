"""Whole tasks: plans reach goals without a step too many, splits are apart, the same seed gives the same tasks."""

from __future__ import annotations

import importlib.util
import sys
from functools import lru_cache

import pytest

from spec_planner.language.plan import Condition, Fact, Scene
from spec_planner.language.scene import scene_from_mapping
from spec_planner.tasks import expert
from spec_planner.tasks.corpus import write_corpus
from spec_planner.tasks.domain import DOMAINS, load_domain
from spec_planner.tasks.expert import Problem, solve
from spec_planner.tasks.generate import generate
from spec_planner.tasks.planning import MAX_STEPS, Expert
from spec_planner.tasks.task import SPLITS, TaskError, read_tasks
from spec_planner.world.execution import execute
from spec_planner.world.goals import check_goal, parse_goal
from spec_planner.world.state import reached, start

COUNT = 40
needs_planner = pytest.mark.skipif(
    importlib.util.find_spec("unified_planning") is None, reason="unified-planning is not installed"
)


@lru_cache
def tasks(domain, split="train"):
    return tuple(generate(COUNT, domain, seed=1, split=split))


@needs_planner
@pytest.mark.parametrize("domain", DOMAINS)
def test_every_plan_reaches_its_goal_and_needs_every_step(domain):
    skills = load_domain(domain).skills
    for task in tasks(domain):
        assert 1 <= len(task.plan) <= MAX_STEPS
        if not task.scene:
            assert not task.goal
            continue
        scene = scene_from_mapping(task.scene, task.id, skills)
        goal = parse_goal(task.goal)
        check_goal(goal, skills, scene)
        done = execute(task.plan, skills, scene)
        assert not done.failure and reached(done.state, goal), task
        for index, line in enumerate(task.plan):
            shorter = execute((*task.plan[:index], *task.plan[index + 1 :]), skills, scene)
            needless = not shorter.failure and reached(shorter.state, goal)
            assert not needless or line.startswith("report"), (line, task)


@needs_planner
def test_shares_of_tasks_without_a_scene_and_in_the_middle():
    found = [task for domain in DOMAINS for task in tasks(domain)]
    assert 0.08 <= sum(not task.scene for task in found) / len(found) <= 0.16
    assert 0.1 <= sum(bool(task.history.failed) for task in found) / len(found) <= 0.2
    assert len({str(task.scene) for task in found}) < 0.7 * len(found)  # neighbours share scenes


@needs_planner
def test_splits_are_apart():
    found = {split: tasks("household", split) for split in SPLITS}
    activities = {split: {task.activity for task in group} for split, group in found.items()}
    held_out = activities.pop("activity_held_out")
    assert held_out and not any(held_out & others for others in activities.values())
    for split, group in found.items():
        novel = [any(".h" in word for word in task.wording.split()) for task in group]
        assert all(novel) if split == "wording_held_out" else not any(novel)
    scenes = [{str(task.scene) for task in group if task.scene} for group in found.values()]
    assert sum(map(len, scenes)) == len(set().union(*scenes))


@needs_planner
def test_the_same_seed_gives_the_same_tasks():
    again = list(generate(10, "field", seed=3))
    assert list(generate(10, "field", seed=3)) == again
    assert list(generate(10, "field", seed=4)) != again


@needs_planner
def test_a_corpus_has_a_file_for_every_split(tmp_path):
    seen = []
    report = write_corpus(tmp_path, 16, "household", 0, lambda *update: seen.append(update))
    assert {path.name for path in tmp_path.iterdir()} == {f"{split}.jsonl" for split in SPLITS}
    assert len(list(read_tasks(tmp_path / "train.jsonl"))) == report["train"]["tasks"] == 16
    assert seen[0] == ("train", 1, 16) and report["validation"]["tasks"] == 2


@needs_planner
def test_household_is_dealt_twice():
    found = [task.domain for task in generate(50, seed=2)]
    assert found.count("household") > max(found.count(domain) for domain in DOMAINS[1:])


@needs_planner
def test_sub_goals_of_one_kind_are_planned_once():
    domain = load_domain("household")
    planner = Expert(domain.skills)
    for food, place in (("milk", "table"), ("ham", "counter")):
        mapping = {
            "robot": {"at": "hall"},
            "places": ["hall", place, {"name": "fridge", "kind": "appliance", "is": ["closed"]}],
            "objects": [{"name": food, "at": place}],
        }
        scene = scene_from_mapping(mapping, "test", domain.skills)
        stages = [Condition(Fact("closed", ("fridge",)), False), Condition(Fact("at", (food, "fridge")))]
        plan, state = planner.plan(scene, start(scene, domain.skills), stages, {})
        assert plan == (
            *("go_to(fridge)", "open(fridge)", f"go_to({place})", f"pick({food})"),
            *("go_to(fridge)", f"put({food}, fridge)"),
        )
        assert reached(state, tuple(stages))
    assert planner.problems == 2
    nowhere = Scene(scene.things, tuple(fact for fact in scene.facts if fact.predicate != "at"))
    assert planner.plan(nowhere, start(nowhere, domain.skills), stages, {}) is None


@pytest.mark.parametrize("arguments", [{"split": "test"}, {"domain": "kitchen"}])
def test_unknown_splits_and_domains_are_named(arguments):
    with pytest.raises(TaskError, match=next(iter(arguments.values()))):
        next(generate(1, **arguments))


def test_a_missing_planner_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "unified_planning", None)
    problem = Problem((), (), (), Condition(Fact("hand_empty")))
    with pytest.raises(TaskError, match=r"pip install 'spec_planner\[tasks\]'"):
        solve(problem, load_domain("household").skills)
    assert expert.MISSING.count("{name}") == 1
