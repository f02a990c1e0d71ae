"""Plan text → steps: every accepted form, every reason for refusal, and the same result in any split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_planner.language.plan import ENUM, NUMBER, TEXT, Parameter, Plan, Scene, Skill, SkillSet, Thing
from spec_planner.language.plan_parser import MAX_LINE_CHARACTERS, PlanParser

OBJECT, PLACE, PERSON = Parameter("object"), Parameter("place", "place"), Parameter("person", "person")
VOLUME = Parameter("volume", NUMBER, low=-1, high=50, decimals=1, unit="ml")
SKILLS = SkillSet(
    (
        Skill("go_to", (PLACE,)),
        Skill("pick", (OBJECT,)),
        Skill("give", (OBJECT, PERSON)),
        Skill("wait", ()),
        Skill("pour", (VOLUME, Parameter("speed", ENUM, choices=("slow", "fast")))),
        Skill("say", (Parameter("words", TEXT),)),
        Skill("_stop", ()),
    ),
    kinds={"person": ("place",)},
)
SCENE = Scene((Thing("red cup"), Thing("Cup"), Thing("cup"), Thing("'x' = [y]"), Thing("Anna", "person")))


def parse(text: str, scene: Scene = Scene(), eager: bool = False) -> Plan:  # noqa: B008
    parser = PlanParser(SKILLS, scene, eager)
    parser.feed(text)
    parser.finish()
    return parser.plan(ended=True)


@pytest.mark.parametrize(
    ("line", "skill", "values"),
    [
        ("1. go_to(kitchen)", "go_to", ("kitchen",)),
        ("go_to(kitchen)", "go_to", ("kitchen",)),
        ("  12) pick( red  cup ) ", "pick", ("red cup",)),
        ("(3) pick(cup).", "pick", ("cup",)),
        ("2.1. pick(cup);", "pick", ("cup",)),
        ("1.pick(cup)", "pick", ("cup",)),
        ("- pick('red cup')", "pick", ("red cup",)),
        ("• pick(“red cup”)", "pick", ("red cup",)),
        ("* **pick(cup)**", "pick", ("cup",)),
        ("4. `pick(cup)`", "pick", ("cup",)),
        ("1. give(book, Anna)\r", "give", ("book", "Anna")),
        ('1. give("salt, pepper", Anna)', "give", ("salt, pepper", "Anna")),
        ("1. give(Anna's book, Anna)", "give", ("Anna's book", "Anna")),
        ("1. give(book (old, red), Anna)", "give", ("book (old, red)", "Anna")),
        ("1. give(object=book, person=Anna)", "give", ("book", "Anna")),
        ("1. give(person = 'Anna', object = book)", "give", ("book", "Anna")),
        ("1. give(book, person=Anna)", "give", ("book", "Anna")),
        ("1. pick(🍎)", "pick", ("🍎",)),
        ("1. pick(red\tcup\x00)", "pick", ("red cup",)),
        ("5. wait()", "wait", ()),
        ("5. wait( )", "wait", ()),
        ("1. _stop()", "_stop", ()),
        ("1. _pick(cup)_", "pick", ("cup",)),
        ("1. pour(2.50 ml, Slow)", "pour", ("2.5", "slow")),
        ("1. pour(+007, fast)", "pour", ("7", "fast")),
        ("1. pour(-0, 'fast')", "pour", ("0", "fast")),
        ("1. pour(speed=fast, volume=-0.5)", "pour", ("-0.5", "fast")),
        ("1. say(hello there)", "say", ("hello there",)),
    ],
)
def test_line_becomes_step(line: str, skill: str, values: tuple[str, ...]) -> None:
    plan = parse(line)
    assert not plan.rejected
    [step] = plan.steps
    assert (step.skill, step.values, step.index) == (skill, values, 0)
    assert step.parameters == SKILLS.by_name[skill].parameter_names


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Sure, here is the plan:", "not of the form"),
        ("1.", "not of the form"),
        ("1. pick", "not of the form"),
        ("1. pick cup (red)", "not of the form"),
        ("1. fly(moon)", "'fly' is not one of the robot's skills"),
        ("1. Pick(cup)", "'Pick' is not one of"),
        ("1. pick()", "takes 1 values, got 0"),
        ("1. wait(now)", "takes 0 values, got 1"),
        ("1. give(book)", "takes 2 values, got 1"),
        ("1. pick(cup, plate)", "takes 1 values, got 2"),
        ("1. give(book, )", "'person' of give(object, person) is empty"),
        ("1. pick('')", "'object' of pick(object) is empty"),
        ("1. give(thing=book, person=Anna)", "has no parameter 'thing'"),
        ("1. give(object=book, object=cup)", "'object' is given twice"),
        ("1. give(book, object=cup)", "'object' is given twice"),
        ("1. give(object=book, Anna)", "without a name follows"),
        ("1. pick(cup", "closing bracket is missing"),
        ("1. pick('cup)", "quote is not closed"),
        ("1. pick(cup) and run()", "unexpected text after the closing bracket"),
        ("1. pick(cup); import os", "unexpected text after the closing bracket"),
        ("1. pour(50.1, fast)", "'50.1' is not a number from -1 to 50 with at most 1 decimal"),
        ("1. pour(1.25, fast)", "'1.25' is not a number"),
        ("1. pour(a cup, fast)", "'a cup' is not a number"),
        ("1. pour(١, fast)", "is not a number"),
        ("1. pour(2, quick)", "'quick' is not a choice of parameter 'speed' of pour(volume, speed): slow, fast"),
        ("pick(" + "(" * 10_000, "longer than"),
        ("1. pick(" + "x" * 1_000_000 + ")", "longer than"),
    ],
)
def test_line_is_refused_with_reason(line: str, reason: str) -> None:
    plan = parse(line)
    assert not plan.steps and not plan.complete
    [rejected] = plan.rejected
    assert reason in rejected.reason
    assert len(rejected.text) <= MAX_LINE_CHARACTERS


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("1. pick(red cup)", ("red cup",)),
        ('1. pick("Red Cup")', ("red cup",)),
        ("1. pick(cup)", ("cup",)),
        ("1. pick(Cup)", ("Cup",)),
        ("1. pick('x' = [y])", ("'x' = [y]",)),
        ("1. give(object=cup, person=ANNA)", ("cup", "Anna")),
        ("1. go_to(anna)", ("Anna",)),
    ],
)
def test_names_are_taken_from_the_scene_in_its_spelling(line: str, values: tuple[str, ...]) -> None:
    plan = parse(line, SCENE)
    assert plan.rejected == ()
    assert [step.values for step in plan.steps] == [values]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1. pick(CUP)", "'CUP' may be 'Cup' or 'cup'"),
        ("1. pick(mug)", "'mug' is not in the scene, as parameter 'object' of pick(object) must be"),
        ("1. pick(Anna)", "'Anna' is a thing of kind person, but parameter 'object' of pick(object) takes object"),
        ("1. give(cup, cup)", "'cup' is a thing of kind object, but parameter 'person'"),
    ],
)
def test_names_that_are_not_in_the_scene_are_refused(line: str, reason: str) -> None:
    plan = parse(line, SCENE)
    assert plan.steps == ()
    assert reason in plan.rejected[0].reason


def test_names_of_a_sort_that_the_scene_does_not_list_are_free() -> None:
    plan = parse("1. go_to(moon)\n2. pick(cup)", Scene((Thing("cup"),)))
    assert [step.values for step in plan.steps] == [("moon",), ("cup",)]
    assert parse("1. give(cup, Anna)", Scene((Thing("table", "place"),))).rejected


def test_steps_arrive_with_their_line_break() -> None:
    parser = PlanParser(SKILLS)
    assert parser.feed("1. go_to(kitchen)") == ()
    [first] = parser.feed("\n2. pick(")
    assert first.values == ("kitchen",)
    assert parser.feed("cup)") == ()
    [second] = parser.finish()
    assert (second.index, second.values) == (1, ("cup",))
    assert parser.finish() == ()
    assert parser.text == "1. go_to(kitchen)\n2. pick(cup)"


def test_an_eager_parser_reports_with_the_bracket() -> None:
    parser = PlanParser(SKILLS, eager=True)
    assert parser.feed("1. go_to(kitchen") == ()
    [first] = parser.feed(")")
    assert (first.values, first.text) == (("kitchen",), "1. go_to(kitchen)")
    assert parser.feed(" ") == ()
    [second] = parser.feed("\n2. wait()")
    assert (second.index, second.skill) == (1, "wait")
    [third] = parser.feed("\n3. pick(cup)\n4.")
    assert third.index == 2
    assert parser.feed(" pick((a)") == ()
    assert parser.feed(" b") == ()
    [fourth] = parser.feed(")\n")
    assert fourth.values == ("(a) b",)
    assert parser.finish() == () and parser.plan(ended=True).complete


def test_text_behind_an_early_step_spoils_the_plan_but_not_the_step() -> None:
    parser = PlanParser(SKILLS, eager=True)
    assert len(parser.feed("1. pick(cup)")) == 1
    assert parser.feed(" and run()") == () and parser.finish() == ()
    plan = parser.plan(ended=True)
    assert len(plan.steps) == 1 and not plan.complete
    assert plan.rejected[0].reason == "text follows the step: 'and run()'"


def test_fences_and_blank_lines_are_no_steps_and_no_complaint() -> None:
    plan = parse("```python\r\n\r\n1. go_to(kitchen)\r\n  \r\n2. pick(cup)\r\n```\r\n")
    assert [step.skill for step in plan.steps] == ["go_to", "pick"]
    assert plan.rejected == ()
    assert plan.complete


def test_indices_count_steps_not_lines() -> None:
    plan = parse("Plan:\n1. pick(cup)\n2. fly(moon)\n3. wait()")
    assert [(step.index, step.skill) for step in plan.steps] == [(0, "pick"), (1, "wait")]
    assert [line.text for line in plan.rejected] == ["Plan:", "2. fly(moon)"]


def test_plan_is_complete_only_if_the_model_ended_it() -> None:
    parser = PlanParser(SKILLS)
    parser.feed("1. wait()\n")
    assert parser.plan(ended=True).complete
    assert not parser.plan(ended=False).complete


FRAGMENTS = st.sampled_from([*"(),='`\"“ \n🍎", "1. ", "- ", "pick", "give", "fly", "object=", "```", "\r\n"])
ANSWERS = st.lists(st.one_of(FRAGMENTS, st.text(max_size=8)), max_size=40).map("".join)


@settings(max_examples=300, deadline=None)
@given(ANSWERS, st.lists(st.integers(0, 400), max_size=12))
def test_any_text_in_any_split_gives_what_feeding_at_once_gives(text: str, cuts: list[int]) -> None:
    whole = parse(text)
    parser = PlanParser(SKILLS)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    steps = [step for a, b in pairwise(places) for step in parser.feed(text[a:b])]
    steps += parser.finish()
    assert parser.plan(ended=True) == whole
    assert tuple(steps) == whole.steps
    assert whole.text == text
    for step in whole.steps:
        assert step.parameters == SKILLS.by_name[step.skill].parameter_names
        assert len(step.values) == len(step.parameters) and all(step.values)


NAMES = st.text(st.characters(categories=["L", "N"], exclude_characters=""), min_size=1, max_size=12)


@given(st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=8))
def test_written_plans_are_read_back(pairs: list[tuple[str, str]]) -> None:
    plan = parse("\n".join(f"{i}. give({a}, {b})" for i, (a, b) in enumerate(pairs, 1)))
    assert [step.values for step in plan.steps] == pairs
