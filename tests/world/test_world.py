"""The world of facts: a plan per domain that reaches its goal, steps it refuses, and laws that every step keeps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_planner.language.plan import Fact, PlanStep, Scene, Skill, SkillSet, Thing
from spec_planner.language.scene import load_scene, read_scene
from spec_planner.language.skills import load_skills, read_skills
from spec_planner.resources import shared_file
from spec_planner.world.execution import execute, read_step
from spec_planner.world.goals import GoalError, check_goal, parse_goal
from spec_planner.world.state import SOMEWHERE, WorldError, apply, canonical_number, reached, start, unmet

DOMAINS = ["household", "warehouse", "lab", "field"]
PLANS = {
    "household": (
        ["at(milk, table)", "closed(fridge)", "not dirty(table)", "has(Jürgen, reading glasses)", "not on(desk lamp)"],
        ["go_to(fridge)", "open(fridge)", "pick(milk)", "go_to(table)", "put(milk, table)", "wipe(table)"]
        + ["go_to(fridge)", "close(fridge)", "go_to(desk lamp)", "turn_off(desk lamp)", "go_to(bedroom)"]
        + ["find(reading glasses)", "pick(reading glasses)", "go_to(Jürgen)", "give(reading glasses, Jürgen)"],
    ),
    "warehouse": (
        ["at(parcel 104, truck 7)", "closed(truck 7)", "fork_height(1.5)", "labelled(pallet 13, fragile)"],
        ["drive_to(truck 7)", "open_door(truck 7)", "drive_to(shelf A1)", "scan(parcel 104)", "set_height(0.0)"]
        + ["lift(parcel 104)", "set_height(1.5)", "drive_to(truck 7)", "load(parcel 104, truck 7)"]
        + ["close_door(truck 7)", "drive_to(packing line)", "label(pallet 13, fragile)", "wrap(pallet 13, 3)"],
    ),
    "lab": (
        ["contains(tube B, buffer, 250)", "spun(tube B, 3000)", "shaken(tube B, gently)"],
        ["uncap(buffer)", "dispense(buffer, tube B, 250)", "cap(tube B)", "move_to(rack centrifuge)"]
        + ["open_lid(rack centrifuge)", "move_to(bench 1)", "take(tube B)", "shake(tube B, gently)"]
        + ["move_to(rack centrifuge)", "insert(tube B, rack centrifuge)", "close_lid(rack centrifuge)"]
        + ["spin(tube B, 3000)", "open_lid(rack centrifuge)"],
    ),
    "field": (
        ["sampled(plot 1, 20)", "at(vial 1, shed)", "sprayed(plot 2, water)", "photographed(old oak, detail)"],
        [
            "collect(vial 1)",
            "drive(plot 1, slow)",
            "sample(vial 1, plot 1, 20)",
            "drive(shed, fast)",
            "drop(vial 1, shed)",
        ]
        + ["drive(barn, normal)", "fill_tank(barn, water)", "drive(plot 2, slow)", "spray(plot 2, water, 0.5)"]
        + ["drive(old oak, slow)", "photograph(old oak, detail)", "report(done: all is well)"],
    ),
}


def shipped(domain: str) -> tuple[SkillSet, Scene]:
    skills = load_skills(shared_file(f"config/skills/{domain}.yaml"))
    return skills, load_scene(shared_file(f"config/scenes/{domain}.yaml"), skills)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_plan_reaches_its_goal(domain: str) -> None:
    skills, scene = shipped(domain)
    lines, plan = PLANS[domain]
    goal = parse_goal(lines)
    check_goal(goal, skills, scene)
    assert unmet(start(scene, skills), goal)
    execution = execute(plan, skills, scene)
    assert execution.failure == "" and execution.steps_done == len(plan)
    assert reached(execution.state, goal), unmet(execution.state, goal)


@pytest.mark.parametrize(
    ("domain", "plan", "failure"),
    [
        ("household", ["pick(book)"], "pick(book): it needs robot_at(shelf), which does not hold"),
        ("household", ["go_to(fridge)", "pick(milk)"], "pick(milk): closed(fridge) must not hold, but it does"),
        ("household", ["put(book, table)"], "put(book, table): it needs holding(book), which does not hold"),
        ("household", ["fly(table)"], "fly(table): the robot has no skill 'fly'"),
        ("household", ["go_to(moon)"], "go_to(moon): there is no 'moon' in the scene"),
        (
            "household",
            ["open(table)"],
            "open(table): container must be of kind container, and 'table' is of kind surface",
        ),
        ("household", ["go_to()"], "go_to(): go_to(place) takes 1 values, got 0"),
        ("household", ["go_to shelf"], "'go_to shelf' is not a step: write skill(value, value)"),
        (
            "household",
            ["go_to(shelf)", "pick(book)", "find(book)"],
            "find(book): it needs at(book, some place), which does not hold",
        ),
        ("warehouse", ["set_height(9)"], "set_height(9): height must be within 0 to 4 m, got 9"),
        ("warehouse", ["set_height(1.25)"], "set_height(1.25): height is a number with at most 1 decimals, got '1.25'"),
        (
            "warehouse",
            ["weigh(pallet 13)"],
            "weigh(pallet 13): it needs at(pallet 13, some scale), which does not hold",
        ),
        (
            "warehouse",
            ["drive_to(shelf A1)", "label(parcel 104, heavy)"],
            "label(parcel 104, heavy): mark must be one of fragile, express, hold, return, got 'heavy'",
        ),
        (
            "lab",
            ["dispense(buffer, tube B, 10)"],
            "dispense(buffer, tube B, 10): capped(buffer) must not hold, but it does",
        ),
        ("lab", ["spin(tube A, 900.5)"], "spin(tube A, 900.5): speed is a number without decimals, got '900.5'"),
        (
            "field",
            ["spray(plot 1, water, 1)"],
            "spray(plot 1, water, 1): it needs robot_at(plot 1), which does not hold",
        ),
    ],
)
def test_a_wrong_step_is_refused_with_the_reason(domain: str, plan: list[str], failure: str) -> None:
    skills, scene = shipped(domain)
    execution = execute(plan, skills, scene)
    assert (execution.failure, execution.steps_done) == (failure, len(plan) - 1)


def test_the_scene_overrules_what_holds_initially() -> None:
    skills = load_skills()
    held = load_scene(shared_file("config/scenes/household_handover.yaml"), skills)
    assert Fact("hand_empty") not in start(held, skills)
    assert Fact("hand_empty") in start(shipped("household")[1], skills)
    assert execute(["give(red cup, Anna)"], skills, held).failure.startswith(
        "give(red cup, Anna): it needs robot_at(Anna)"
    )
    plan = ["go_to(Anna)", "give(red cup, Anna)", "go_to(fridge)", "open(fridge)", "pick(milk)"]
    assert execute(plan, skills, held).failure == ""


def test_a_robot_that_is_nowhere_can_drive() -> None:
    skills = load_skills()
    scene = read_scene("places: [table]\nobjects: [{name: cup, at: table}]", "s.yaml", skills)
    assert Fact("robot_at", (SOMEWHERE,)) in start(scene, skills)
    after = execute(["go_to(table)", "go_to(table)", "pick(cup)"], skills, scene)
    assert after.failure == "" and after.state == {Fact("robot_at", ("table",)), Fact("holding", ("cup",))}


def test_an_empty_scene_takes_any_name() -> None:
    skills = load_skills()
    after = execute(["go_to(anywhere)"], skills, Scene())
    assert Fact("robot_at", ("anywhere",)) in after.state


def test_skills_that_are_not_modelled_change_nothing() -> None:
    skills = SkillSet((Skill("wave", ()),))
    state = start(Scene(), skills)
    assert apply(state, PlanStep(0, "wave", (), (), "wave()"), skills, Scene()) == state


def test_variables_are_bound_in_scene_order_and_over_dead_ends() -> None:
    skills = read_skills(
        """
kinds: {box: object}
skills:
- name: fill
  variables: [box, place]
  preconditions: [not full(box), at(box, place), open(box), not wet(place)]
  effects: [full(box)]
""",
        "s.yaml",
    )
    things = tuple(Thing(name, "box") for name in ("z", "y", "x")) + (Thing("yard", "place"), Thing("hall", "place"))
    at = [Fact("at", pair) for pair in (("x", "hall"), ("y", "hall"), ("z", "yard"))]
    scene = Scene(things, (*at, *(Fact("open", (name,)) for name in "xyz"), Fact("wet", ("yard",))))
    first = execute(["fill()"], skills, scene)
    assert first.state - start(scene, skills) == {Fact("full", ("y",))}
    assert execute(["fill()"] * 2, skills, scene).state - first.state == {Fact("full", ("x",))}
    assert execute(["fill()"] * 3, skills, scene).steps_done == 2


def test_numbers_have_one_spelling() -> None:
    spellings = {"40": "40", "40.0": "40", "-0": "0", "0.50": "0.5", "007": "7", "100": "100", "1e3": "1e3", "": ""}
    assert {text: canonical_number(text) for text in spellings} == spellings


def test_goals() -> None:
    skills, scene = shipped("household")
    goal = parse_goal(["at(red cup, table)", "not closed(fridge)", "at(red cup, table)"])
    assert list(map(str, goal)) == ["at(red cup, table)", "not closed(fridge)"]
    for lines in [["at red cup"], ["closed(fridge)", "not closed(fridge)"], ["at(a;b, c)"]]:
        with pytest.raises(GoalError, match="goal"):
            parse_goal(lines)
    for line, message in [
        ("under(red cup, table)", "nothing that the skills or the scene speak of"),
        ("at(red cup)", "nothing that the skills"),
        ("at(red cup, moon)", "names 'moon', which the scene does not list"),
    ]:
        with pytest.raises(GoalError, match=message):
            check_goal(parse_goal([line]), skills, scene)


@pytest.mark.parametrize("domain", DOMAINS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_laws_of_random_walks(domain: str, data: st.DataObject) -> None:
    """No step invents a name, the robot stays in one place, nothing is held twice, a refused step changes nothing."""
    skills, scene = shipped(domain)
    state = start(scene, skills)
    known = {thing.name for thing in scene.things}
    for index in range(8):
        skill = data.draw(st.sampled_from(skills.skills))
        values = []
        for parameter in skill.parameters:
            free = parameter.choices or (f"{parameter.high:g}", f"{parameter.low:g}")
            names = scene.values_for(parameter, skills) if parameter.names_a_thing else free
            assert names
            values.append(data.draw(st.sampled_from(names)) if parameter.kind != "text" else "hello")
        step = PlanStep(index, skill.name, skill.parameter_names, tuple(values), "")
        try:
            after = apply(state, step, skills, scene)
        except WorldError as error:
            assert "\n" not in str(error) and skill.name in str(error)
            continue
        assert after == apply(state, step, skills, scene)
        said = {argument for fact in after - state for argument in fact.arguments}
        assert said <= known | {canonical_number(value) for value in values}
        assert sum(fact.predicate == "robot_at" for fact in after) == 1
        held = [fact for fact in after if fact.predicate == "holding"]
        assert len(held) + (Fact("hand_empty") in after) == 1
        objects = [
            fact.arguments[-1 if fact.predicate == "has" else 0]
            for fact in after
            if fact.predicate in ("at", "holding")
        ]
        assert len(set(objects)) == len(objects), "an object in two places"
        state = after


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["red cup", "book"]), st.sampled_from(["table", "counter", "hall", "Anna"]))
def test_carrying_back_undoes_carrying(thing: str, place: str) -> None:
    skills, scene = shipped("household")
    home = next(fact.arguments[1] for fact in scene.facts if fact.predicate == "at" and fact.arguments[0] == thing)
    there = [f"go_to({home})", f"pick({thing})", f"go_to({place})", f"put({thing}, {place})"]
    back = [f"pick({thing})", f"go_to({home})", f"put({thing}, {home})", "go_to(hall)"]
    execution = execute(there + back, skills, scene)
    assert execution.failure == "" and execution.state == start(scene, skills)


def test_steps_are_read_as_task_files_write_them() -> None:
    skills = load_skills()
    step = read_step(" put( red cup , table ) ", skills, 3)
    assert step == PlanStep(3, "put", ("object", "place"), ("red cup", "table"), "put( red cup , table )")
