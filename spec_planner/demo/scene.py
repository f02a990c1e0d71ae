"""The demo's scene: from a YAML file to the message that goals carry, and to lines for the eye."""

from __future__ import annotations

import textwrap
from pathlib import Path

from spec_planner_msgs.msg import Scene as SceneMessage
from spec_planner_msgs.msg import SceneThing

from ..language.plan import PLACE, Scene, SkillSet
from ..language.scene import load_scene, scene_to_mapping
from ..language.skills import load_skills
from .node_process import DemoError


def read_scene(scene_file: str, skills_file: str) -> tuple[SceneMessage, str]:
    """The scene of ``scene_file`` ("": none) as a message, and described in a few lines of at most 80 columns.

    Raises:
        DemoError: a file cannot be used.
    """
    try:
        skills = load_skills(skills_file)
        scene = load_scene(scene_file, skills) if scene_file else Scene()
    except ValueError as problem:
        raise DemoError(str(problem)) from problem
    message = scene_message(scene, skills)
    return message, _described(message, Path(scene_file).name, skills)


def scene_message(scene: Scene, skills: SkillSet) -> SceneMessage:
    mapping = scene_to_mapping(scene, skills)
    robot = mapping.get("robot", {})
    things = []
    for sort, basic in (("places", PLACE), ("objects", "")):
        for entry in mapping.get(sort, []):
            told = {"name": entry} if isinstance(entry, str) else entry
            thing = SceneThing(name=told["name"], kind=told.get("kind", basic), at=told.get("at", ""))
            thing.states = list(told.get("is", []))
            things.append(thing)
    return SceneMessage(things=things, robot_at=robot.get("at", ""), holding=robot.get("holding", ""))


def _described(message: SceneMessage, name: str, skills: SkillSet) -> str:
    if not message.things:
        return _paragraph("scene", "none: names are free")
    places, objects = [], []
    for thing in message.things:
        states = f" ({', '.join(thing.states)})" if thing.states else ""
        is_place = skills.is_a(thing.kind, PLACE)
        (places if is_place else objects).append(f"{thing.name}{states}{f' at {thing.at}' if thing.at else ''}")
    robot = [f"at {message.robot_at}"] if message.robot_at else []
    robot += [f"holding {message.holding}"] if message.holding else []
    titled = (("places", places), ("objects", objects), ("robot", robot))
    paragraphs = [_paragraph(title, ", ".join(entries)) for title, entries in titled if entries]
    return "\n".join([_paragraph("scene", name), *paragraphs])


def _paragraph(title: str, text: str) -> str:
    return textwrap.fill(text, 80, initial_indent=f"  {title:<13}", subsequent_indent=" " * 15)
