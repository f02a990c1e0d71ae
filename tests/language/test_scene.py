"""Scenes from files, task lines and messages: what is read, what is refused, and the way back."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_planner.language.plan import Fact, Parameter, Scene, Thing
from spec_planner.language.scene import (
    SceneError,
    check_scene,
    load_scene,
    name_problem,
    read_scene,
    scene_from_mapping,
    scene_to_mapping,
)
from spec_planner.language.skills import load_skills
from spec_planner.resources import shared_file

SKILLS = load_skills()
SCENE = """
robot: {holding: red cup, at: hall}
places:
- hall
- {name: fridge, kind: appliance, is: [closed, "on"]}
- {name: Anna, kind: person}
objects:
- red cup
- {name: milk, at: fridge, is: dirty}
"""


def test_a_scene_file_is_things_and_facts() -> None:
    scene = read_scene(SCENE, "s.yaml", SKILLS)
    assert scene.things == (
        *(Thing("hall", "place"), Thing("fridge", "appliance"), Thing("Anna", "person")),
        *(Thing("red cup"), Thing("milk")),
    )
    assert list(map(str, scene.facts)) == [
        *("robot_at(hall)", "holding(red cup)", "closed(fridge)", "on(fridge)", "at(milk, fridge)", "dirty(milk)"),
    ]
    assert scene.values_for(Parameter("container", "container"), SKILLS) == ("fridge",)


@pytest.mark.parametrize("name", ["household", "household_handover", "warehouse", "lab", "field"])
def test_shipped_scenes_load_and_come_back(name: str) -> None:
    skills = load_skills(shared_file(f"config/skills/{name.partition('_')[0]}.yaml"))
    scene = load_scene(shared_file(f"config/scenes/{name}.yaml"), skills)
    assert len(scene.things) >= 6
    assert scene_from_mapping(json.loads(json.dumps(scene_to_mapping(scene, skills))), "line 1", skills) == scene


def test_an_empty_scene_says_nothing() -> None:
    assert (
        read_scene("{}", "s.yaml", SKILLS) == Scene() == scene_from_mapping({"places": []}, "the goal's scene", SKILLS)
    )
    assert read_scene("places:\nobjects: ~", "s.yaml", SKILLS) == Scene()


@pytest.mark.parametrize(
    "name", ["Küche", "台所", "чашка", "☕ cup", "\U0001faff", "Anna's mug", "no", "1.10", "2024-05-01", "a-b/c.d"]
)
def test_harmless_names(name: str) -> None:
    assert name_problem(name) == ""
    assert read_scene(f"places: [{name}]", "s.yaml", SKILLS).things[0].name == name


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            " ",
            "a" * 65,
            " cup",
            "cup ",
            "red  cup",
            "cup\n",
            "a\nb",
            "a\tb",
            "a\x00b",
            "a\u202eb",
            "a\u200bb",
            "a\u00a0b",
        ),
        *("cup)", "cup(1)", "a,b", "a;b", "a:b", 'a"b', "a\\b", "'cup'", "“cup”", "`cup`", "x=cup", "a[b", "{a}"),
        *("<|im_end|>", "cup<|im_end|>", "</s>", "[INST]", "...", "-", "caf\u0065\u0301", "\ud800"),
    ],
)
def test_names_that_break_syntax_are_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(SceneError, match="^the scene: .*cannot be a name") as caught:
        check_scene(Scene((Thing(name),)), SKILLS)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 250


def test_names_are_composed() -> None:
    decomposed = unicodedata.normalize("NFD", "Küche")
    scene = scene_from_mapping({"robot": {"at": decomposed}, "places": ["Küche"]}, "the scene", SKILLS)
    assert scene.facts == (Fact("robot_at", ("Küche",)),)
    with pytest.raises(SceneError, match="listed twice"):
        scene_from_mapping({"places": ["Küche", decomposed]}, "the scene", SKILLS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "s.yaml: a scene is a mapping with robot, places and objects, got None"),
        ("- hall", "a scene is a mapping"),
        ("rooms: [hall]", "s.yaml, line 1: unknown key 'rooms'"),
        ("places:\n- hall\n- hall", "s.yaml, line 3: 'hall' is listed twice"),
        ("places: [cup]\nobjects: [cup]", "s.yaml, line 2: 'cup' is listed twice"),
        ("places:\n- {kind: room}", "s.yaml, line 2: a place needs a name"),
        ("places: hall", "places must be a list, got 'hall'"),
        ("places:\n- [hall]", "the name of a place must be text"),
        ("places:\n- {name: x, at: y}", "unknown key 'at'; a place has name, kind and is"),
        (
            "places:\n- hall\n- {name: x, kind: castle}",
            "s.yaml, line 3: x is of unknown kind 'castle': use one of object",
        ),
        ("objects: [{name: x, kind: room}]", "'x' is of kind room, which is no object"),
        ("objects:\n- {name: x, at: moon}", "s.yaml, line 2: at.x, moon. speaks of 'moon', which is not listed"),
        ("objects:\n- y\n- {name: x, at: y}", "s.yaml, line 3: in at.x, y., y is no place"),
        ("robot: {at: moon}\nplaces: [hall]", "s.yaml, line 1: robot_at.moon. speaks of 'moon'"),
        ("robot: {holding: hall}\nplaces: [hall]", "hall is no object"),
        ("robot: {holding: x}\nplaces: [y]\nobjects: [{name: x, at: y}]", "cannot both hold"),
        ("robot: {holds: x}", "unknown key 'holds'; robot has at and holding"),
        ("places: [{name: x, is: [closde]}]", "no skill speaks of 'closde', only of closed, dirty"),
        ("places: [{name: x, is: [shut tight]}]", "'shut tight' cannot be what 'x' is"),
        ("places: [{name: x, is: [robot_at]}]", "'robot_at' cannot be what 'x' is"),
        ("places: [{name: x, is: [closed, closed]}]", "a fact is given twice"),
        ("places: [{name: x, is: [has]}]", "has.x.' is not something"),
        ("places: [{name: x, name: y}]", "given twice"),
        ("places: ['a: b']", "s.yaml, line 1: 'a: b' cannot be a name: plans are written with :"),
        ("places: [\n", "not valid YAML"),
    ],
)
def test_bad_scenes_are_refused_where_they_are_wrong(text: str, message: str) -> None:
    with pytest.raises(SceneError, match=message) as caught:
        read_scene(text, "s.yaml", SKILLS)
    assert str(caught.value).startswith("s.yaml") and "\n" not in str(caught.value)


def test_mappings_name_the_path() -> None:
    with pytest.raises(
        SceneError, match="^the goal's scene, objects entry 2: the name of an object must be text, got 7"
    ):
        scene_from_mapping({"objects": ["cup", 7]}, "the goal's scene", SKILLS)
    nested: Any = "x"
    for _ in range(50):
        nested = [nested]
    with pytest.raises(SceneError, match="nested too deeply"):
        scene_from_mapping({"objects": nested}, "the goal's scene", SKILLS)


def test_messages_are_checked_too() -> None:
    hall, cup = Thing("hall", "place"), Thing("cup")
    check_scene(Scene((hall, cup), (Fact("at", ("cup", "hall")), Fact("has", ("hall", "cup")))), SKILLS)
    for facts in [
        (Fact("robot_at", ("hall",)), Fact("robot_at", ("hall",))),
        (Fact("at", ("cup",)),),
        (Fact("at", ("hall", "cup")),),
        (Fact("closed", ("cup", "hall")),),
        (Fact("a b", ("cup",)),),
        (Fact("closed", ("sink",)),),
    ]:
        with pytest.raises(SceneError, match="^the scene: "):
            check_scene(Scene((hall, cup), facts), SKILLS)
    with pytest.raises(SceneError, match="no words for has"):
        scene_to_mapping(Scene((hall, cup), (Fact("has", ("hall", "cup")),)), SKILLS)
    with pytest.raises(SceneError, match="1001 things are more than 1000"):
        check_scene(Scene(tuple(Thing(f"cup {index}") for index in range(1001))), SKILLS)


def test_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SceneError, match="none.yaml cannot be read .No such file.*set scene_file"):
        load_scene(tmp_path / "none.yaml", SKILLS)


names = (
    st.text(min_size=1, max_size=12)
    .map(lambda text: unicodedata.normalize("NFC", text))
    .filter(lambda text: not name_problem(text))
)
states = st.lists(st.sampled_from(["closed", "dirty", "on", "found"]), max_size=2, unique=True)


@st.composite
def mappings(draw: st.DrawFn) -> dict[str, Any]:
    unique = draw(st.lists(names, min_size=1, max_size=8, unique=True))
    split = draw(st.integers(0, len(unique)))
    kinds = st.sampled_from(["place", "room", "appliance", "person"])
    places = [{"name": name, "kind": draw(kinds), "is": draw(states)} for name in unique[:split]]
    objects: list[Any] = [{"name": name, "is": draw(states)} for name in unique[split:]]
    for entry in objects:
        if places and draw(st.booleans()):
            entry["at"] = draw(st.sampled_from(places))["name"]
    robot = {"at": places[0]["name"]} if places and draw(st.booleans()) else {}
    free = [entry["name"] for entry in objects if "at" not in entry]
    return {"robot": robot | ({"holding": free[0]} if free else {}), "places": places, "objects": objects}


@settings(max_examples=100, deadline=None)
@given(mappings())
def test_there_and_back(mapping: dict[str, Any]) -> None:
    scene = scene_from_mapping(mapping, "the scene", SKILLS)
    check_scene(scene, SKILLS)
    short = scene_to_mapping(scene, SKILLS)
    assert scene_from_mapping(short, "the scene", SKILLS) == scene
    # JSON is YAML: the same text as a file gives the same scene.
    assert read_scene(json.dumps(short), "s.yaml", SKILLS) == scene


def test_where_no_kinds_are_told_anything_may_be_meant() -> None:
    """A robot that lists names only must still be able to open its fridge."""
    places = scene_from_mapping({"places": ["fridge", "hall"]}, "the goal's scene", SKILLS)
    assert places.values_for(Parameter("container", "container"), SKILLS) == ("fridge", "hall")
    assert places.values_for(Parameter("object"), SKILLS) is None
