"""Under the constraint every plan can be carried out, whatever the model would rather say."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("llguidance")

from spec_planner.language.grammar import GrammarError
from spec_planner.language.plan import Fact, Scene, Thing
from spec_planner.language.plan_parser import PlanParser
from spec_planner.language.scene import load_scene
from spec_planner.language.skills import load_skills, read_skills
from spec_planner.language.tokenizer import Tokenizer
from spec_planner.resources import shared_file
from spec_planner.world.executable import ExecutableConstraint
from spec_planner.world.execution import execute
from tests.models import make_tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer(make_tiny_model(tmp_path_factory.mktemp("tiny") / "model"))


def shipped(domain):
    skills = load_skills(shared_file(f"config/skills/{domain}.yaml"))
    return skills, load_scene(shared_file(f"config/scenes/{domain}.yaml"), skills)


def walk(constraint, tokenizer, dice, most=400, keep_on=0.7):
    """A random answer; an end is taken with probability 1 − ``keep_on`` where there is another way."""
    said = []
    while len(said) < most:
        ids = np.flatnonzero(constraint.allowed(said)).tolist()
        going_on = [token for token in ids if token not in tokenizer.stop_ids]
        if not going_on or (len(going_on) < len(ids) and dice.random() > keep_on):
            break
        said.append(dice.choice(going_on))
    return said


@pytest.mark.parametrize("domain", ["household", "warehouse", "lab", "field"])
def test_every_plan_can_be_carried_out(tokenizer, domain):
    skills, scene = shipped(domain)
    dice = random.Random(domain)
    lengths = []
    for _ in range(6):
        said = walk(ExecutableConstraint(tokenizer, skills, scene, max_steps=8), tokenizer, dice, keep_on=0.9)
        parser = PlanParser(skills, scene)
        parser.feed("1." + tokenizer.decode(said))
        parser.finish()
        plan = parser.plan(ended=True)
        assert plan.complete and len(plan.steps) <= 8
        execution = execute(plan.steps, skills, scene)
        assert not execution.failure and execution.steps_done == len(plan.steps)
        lengths.append(len(plan.steps))
    assert max(lengths) >= 4


def test_the_mask_is_a_function_of_the_answer_alone(tokenizer):
    """Asked about a tree's branches in any order, back and forth over lines, broken ones included."""
    skills, scene = shipped("household")
    dice = random.Random(1)
    used = ExecutableConstraint(tokenizer, skills, scene)
    answer = walk(used, tokenizer, dice, keep_on=1.0, most=90)
    for _ in range(60):
        cut = dice.randrange(len(answer) + 1)
        branch = [*answer[:cut], *(dice.randrange(3, 300) for _ in range(dice.choice((0, 0, 1, 3))))]
        fresh = ExecutableConstraint(tokenizer, skills, scene)
        np.testing.assert_array_equal(used.allowed(branch), fresh.allowed(branch))
        assert used.forced(branch) == fresh.forced(branch)
        assert used.allowed(branch).any()


def test_only_what_can_be_done_now_can_be_said(tokenizer):
    skills, scene = shipped("household")
    constraint = ExecutableConstraint(tokenizer, skills, scene)

    def sayable(text):
        ids = tokenizer.encode(text)
        return all(constraint.allowed(ids[:index])[token] for index, token in enumerate(ids))

    assert sayable(" go_to(fridge)\n2. open(fridge)\n3. pick(milk)\n4. go_to(table)\n5. put(milk, table)")
    assert not sayable(" open(fridge)")  # the robot is in the hall
    assert not sayable(" go_to(fridge)\n2. pick(milk)")  # the door is closed
    assert not sayable(" go_to(fridge)\n2. open(fridge)\n3. pick(milk)\n4. pick(butter)")  # one hand


def test_where_nothing_can_be_done_the_answer_ends_or_never_begins(tokenizer):
    skills = read_skills(
        "initially: [fresh()]\nskills:\n- {name: jump, preconditions: [fresh()], effects: [not fresh()]}", "s"
    )
    scene = Scene((Thing("hall", "place"),), (Fact("robot_at", ("hall",)),))
    constraint = ExecutableConstraint(tokenizer, skills, scene)
    ids = tokenizer.encode(" jump()\n2.")
    assert set(np.flatnonzero(constraint.allowed(ids)).tolist()) == set(tokenizer.stop_ids)
    assert constraint.forced(ids) == ()
    tired = read_skills("skills:\n- {name: jump, preconditions: [fresh()], effects: [not fresh()]}", "s")
    with pytest.raises(GrammarError, match="no step can be done in this scene"):
        ExecutableConstraint(tokenizer, tired, scene)
