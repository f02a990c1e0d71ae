"""Plan text → steps: every accepted form, every reason for refusal, and the same result in any split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_planner.language.plan import Plan, Skill
from spec_planner.language.plan_parser import MAX_LINE_CHARACTERS, PlanParser

SKILLS = (
    Skill("go_to", ("place",)),
    Skill("pick", ("object",)),
    Skill("give", ("object", "person")),
    Skill("wait", ()),
)


def parse(text: str) -> Plan:
    parser = PlanParser(SKILLS)
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
    ],
)
def test_line_becomes_step(line: str, skill: str, values: tuple[str, ...]) -> None:
    plan = parse(line)
    assert not plan.rejected
    [step] = plan.steps
    assert (step.skill, step.values, step.index) == (skill, values, 0)
    assert step.parameters == next(s.parameters for s in SKILLS if s.name == skill)


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
    by_name = {skill.name: skill for skill in SKILLS}
    for step in whole.steps:
        assert step.parameters == by_name[step.skill].parameters
        assert len(step.values) == len(step.parameters) and all(step.values)


NAMES = st.text(st.characters(categories=["L", "N"], exclude_characters=""), min_size=1, max_size=12)


@given(st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=8))
def test_written_plans_are_read_back(pairs: list[tuple[str, str]]) -> None:
    plan = parse("\n".join(f"{i}. give({a}, {b})" for i, (a, b) in enumerate(pairs, 1)))
    assert [step.values for step in plan.steps] == pairs
