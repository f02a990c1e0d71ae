"""The grammar's text: which skills and values are in it, and number ranges exactly, by counting all of them."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spec_planner.language.grammar import GrammarError, NumberRange, plan_grammar, values_of
from spec_planner.language.plan import ENUM, NUMBER, TEXT, Parameter, Scene, Skill, SkillSet, Thing

OBJECT, PLACE, DEVICE = Parameter("object"), Parameter("place", "place"), Parameter("device", "device")
SKILLS = SkillSet(
    (Skill("pick", (OBJECT,)), Skill("put", (OBJECT, PLACE)), Skill("turn_on", (DEVICE,)), Skill("wait", ())),
    kinds={"device": ("place",), "room": ("place",)},
)


def spelled(units: int, decimals: int) -> str:
    """The one spelling of units · 10^-decimals, by whole numbers: a Decimal would round beyond 28 digits."""
    whole, fraction = divmod(abs(units), 10**decimals)
    tail = f"{fraction:0{decimals}d}".rstrip("0") if decimals else ""
    return f"{'-' if units < 0 else ''}{whole}{'.' if tail else ''}{tail}"


@pytest.mark.parametrize("decimals", [0, 1, 2])
def test_a_pattern_is_exactly_the_range(decimals: int) -> None:
    bounds = {0: range(-12, 25), 1: range(-13, 24, 3), 2: (-213, -100, -7, 0, 5, 99, 100, 157, 1001)}[decimals]
    for low in bounds:
        for high in bounds:
            parameter = Parameter("x", NUMBER, low / 10**decimals, high / 10**decimals, decimals)
            numbers = NumberRange.of(parameter)
            assert (numbers.lowest, numbers.highest) == (low, high)
            pattern = re.compile(numbers.pattern or "(?!)")
            inside = {spelled(units, decimals) for units in range(low, high + 1)}
            around = {spelled(units, decimals) for units in range(low - 30, high + 31)}
            around |= {str(units / 10**decimals) for units in range(low - 3, high + 4)}
            around |= {"-0", "00", "01", "1.", ".5", "1.0", "0.10", "1.23", "+1", "", "-"}
            for text in inside | around:
                assert bool(pattern.fullmatch(text)) == (text in inside) == (numbers.read(text) == text), text


@given(st.floats(allow_nan=False), st.floats(allow_nan=False), st.integers(0, 6), st.integers(-(10**9), 10**9))
@example(-1e26, 0.0, 2, 0)  # an edge of more than 28 digits
def test_any_bounds_give_a_pattern_that_agrees_with_reading(low: float, high: float, decimals: int, units: int) -> None:
    if abs(low) > 1e30 or abs(high) > 1e30:
        low, high = math.copysign(math.inf, low), math.copysign(math.inf, high)
    numbers = NumberRange.of(Parameter("x", NUMBER, low, high, decimals))
    pattern = re.compile(numbers.pattern or "(?!)")
    for edge in (units, numbers.lowest, numbers.highest, numbers.lowest - 1, numbers.highest + 1):
        text = spelled(edge, decimals)
        assert bool(pattern.fullmatch(text)) == (numbers.lowest <= edge <= numbers.highest)
        assert (numbers.read(text) == text) == (numbers.lowest <= edge <= numbers.highest)


def test_bounds_between_two_numbers_are_rounded_inwards() -> None:
    numbers = NumberRange.of(Parameter("x", NUMBER, 0.15, 0.35, 1))
    assert (numbers.lowest, numbers.highest) == (2, 3)
    assert NumberRange.of(Parameter("x", NUMBER, 0.2, 0.8)).pattern == ""


def test_other_spellings_are_read_as_the_one() -> None:
    numbers = NumberRange.of(Parameter("x", NUMBER, -5, 5, 1))
    assert [numbers.read(text) for text in ("+1", "01.50", "-0.0", "2.00")] == ["1", "1.5", "0", "2"]
    assert [numbers.read(text) for text in ("1e0", "nan", " 1", "1_0", "٣", "0.05")] == [None] * 6


def test_a_skill_without_a_possible_value_is_left_out() -> None:
    text = plan_grammar(SKILLS, Scene((Thing("cup"), Thing("hall", "room"))))
    assert '" pick("' in text and '" put("' in text and '" wait()"' in text
    assert "turn_on" not in text  # places and their kinds are listed, and none of them is a device
    assert "turn_on" in plan_grammar(SKILLS, Scene((Thing("cup"),)))  # no place is listed at all: any name goes


def test_values_of_each_kind() -> None:
    scene = Scene((Thing("cup"), Thing("lamp", "device"), Thing("hall", "place")))
    assert values_of(OBJECT, SKILLS, scene) == ("cup",)
    assert values_of(PLACE, SKILLS, scene) == ("lamp", "hall")
    assert values_of(DEVICE, SKILLS, scene) == ("lamp",)
    assert values_of(Parameter("speed", ENUM, choices=("slow",)), SKILLS, scene) == ("slow",)
    assert values_of(Parameter("words", TEXT), SKILLS, scene) is None
    assert values_of(Parameter("x", NUMBER), SKILLS, scene) is None


@pytest.mark.parametrize(
    ("skills", "scene", "message"),
    [
        (SkillSet(()), Scene(), "there is no skill to plan with: name at least one"),
        (
            SkillSet((Skill("turn_on", (DEVICE,)), Skill("turn_off", (DEVICE,))), SKILLS.kinds),
            Scene((Thing("hall", "room"),)),
            "no skill can be used in this scene: it has no device (for turn_on, turn_off); add one to it",
        ),
        (
            SkillSet((Skill("a", (Parameter("x", NUMBER, 0.2, 0.8),)), Skill("b", (Parameter("s", ENUM),)))),
            Scene(),
            "no number from 0.2 to 0.8 with 0 decimals (for a), no choice for 's' (for b)",
        ),
        (SKILLS, Scene((Thing("salt, pepper"),)), "'salt, pepper', a value of 'object' in pick(object), cannot be"),
    ],
)
def test_errors_say_what_is_missing(skills: SkillSet, scene: Scene, message: str) -> None:
    with pytest.raises(GrammarError) as caught:
        plan_grammar(skills, scene)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_number_of_steps_is_the_number_of_lines() -> None:
    text = plan_grammar(SKILLS, max_steps=3)
    assert '"\\n3." call\n' in text and "line4" not in text
    assert "line2" not in plan_grammar(SKILLS, max_steps=1)
    with pytest.raises(GrammarError, match="max_steps"):
        plan_grammar(SKILLS, max_steps=0)
