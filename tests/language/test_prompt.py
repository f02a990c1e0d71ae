"""What the model is told: only the robot's own skills, the scene, and the instruction word for word."""

from __future__ import annotations

import pytest

from spec_planner.language.plan import Scene, Skill
from spec_planner.language.plan_parser import PlanParser
from spec_planner.language.prompt import PromptError, build_prompt
from spec_planner.language.skills import load_skills, parse_signature

FORKLIFT = tuple(map(parse_signature, ("navigate(location)", "lift(pallet)", "drop(pallet, location)", "stop()")))


@pytest.mark.parametrize("skills", [load_skills(), load_skills()[:3], FORKLIFT, FORKLIFT[3:]])
def test_examples_are_plans_of_the_listed_skills(skills: tuple[Skill, ...]) -> None:
    messages = build_prompt("Do it.", skills, Scene()).messages
    assert [m["role"] for m in messages] == ["system", *["user", "assistant"] * ((len(messages) - 2) // 2), "user"]
    answers = [m["content"] for m in messages if m["role"] == "assistant"]
    assert answers
    for answer in answers:
        parser = PlanParser(skills)
        parser.feed(answer)
        parser.finish()
        plan = parser.plan(ended=True)
        assert plan.steps and not plan.rejected


def test_household_skills_use_the_tuned_examples() -> None:
    messages = build_prompt("Do it.", load_skills(), Scene()).messages
    answers = [m["content"] for m in messages if m["role"] == "assistant"]
    assert len(answers) == 3 and min(len(answer.splitlines()) for answer in answers) >= 5
    assert answers[0].startswith(build_prompt("Do it.", load_skills(), Scene()).answer_start)


def test_instruction_scene_and_signatures_stand_in_the_prompt() -> None:
    scene = Scene(("red mug", "plate"), ("sink",))
    messages = build_prompt("  Wash the {mug} 100 %.\n", FORKLIFT, scene).messages
    assert messages[-1]["content"] == "Objects: red mug, plate.\nPlaces: sink.\nTask: Wash the {mug} 100 %."
    assert all(skill.signature in messages[0]["content"] for skill in FORKLIFT)
    assert build_prompt("Go.", FORKLIFT, Scene()).messages[-1]["content"] == "Task: Go."


def test_nothing_to_plan_is_refused() -> None:
    with pytest.raises(PromptError, match="the instruction is empty"):
        build_prompt(" \n\t", FORKLIFT, Scene())
    with pytest.raises(PromptError, match="no skill to plan with"):
        build_prompt("Go.", (), Scene())
