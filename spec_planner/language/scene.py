"""Scenes: what the robot can name and what holds, from ``config/scenes/*.yaml``, task lines and messages.

Names are data that go into a prompt and come back in a plan, so whatever would break either is refused. Letters of
every script, accents and emoji are fine. Names are kept in Unicode's composed form (NFC): two spellings that look the
same are one name, and tokenizers that compose give back the name that went in.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from .plan import OBJECT, PLACE, Fact, Scene, SkillSet, Thing
from .yaml_source import Piece, SourceError, from_plain, listing, read_text, read_yaml, shown

MAX_NAME_CHARACTERS, MAX_THINGS, MAX_STATES = 64, 1000, 16
_SYNTAX = '(),;:"\\=<>[]{}'  # what plan lines, prompts and chat markers are written with
_QUOTES = "'`‘’“”«»"
_STATE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_RESERVED = ("at", "robot_at", "holding")
_ROBOT = ""  # no thing has this name


class SceneError(ValueError):
    """A scene that cannot be used; the message names the place and the thing."""


def name_problem(name: str) -> str:
    """Why ``name`` cannot name a thing, as the end of a sentence that starts with it; "" if it can."""
    if not 0 < len(name) <= MAX_NAME_CHARACTERS:
        return f"cannot be a name: use 1 to {MAX_NAME_CHARACTERS} characters"
    # Cn: in no version of Unicode that this Python knows, such as an emoji of next year. The plan parser lets it pass.
    categories = {unicodedata.category(character) for character in name if not character.isprintable()}
    if categories - {"Cn"}:
        return "cannot be a name: it has a line break, a tab or another invisible character"
    if found := [character for character in name if character in _SYNTAX]:
        return f"cannot be a name: plans are written with {found[0]}, so leave it out"
    if name != name.strip() or "  " in name:
        return "cannot be a name: remove blanks at its ends and double blanks"
    if name[0] in _QUOTES:
        return "cannot be a name: remove the quote it starts with"
    if not any(character.isalnum() or unicodedata.category(character) in ("So", "Cn") for character in name):
        return "cannot be a name: it has no letter or digit"
    if not unicodedata.is_normalized("NFC", name):
        return "cannot be a name: it is not in Unicode's composed form (NFC)"
    return ""


def load_scene(path: str | os.PathLike[str], skills: SkillSet) -> Scene:
    """Read a scene file. Raises ``SceneError``: it is missing, or no scene of these skills."""
    try:
        text = read_text(path, "scene file", "set scene_file to a YAML scene")
    except SourceError as error:
        raise SceneError(str(error)) from error
    return read_scene(text, str(path), skills)


def read_scene(text: str, source: str, skills: SkillSet) -> Scene:
    """Parse the YAML ``text``; ``source`` is what errors call it. Raises ``SceneError``."""
    try:
        return _read(read_yaml(text, source), skills)
    except SourceError as error:
        raise SceneError(str(error)) from error


def scene_from_mapping(mapping: Mapping[str, Any], where: str, skills: SkillSet) -> Scene:
    """A scene from parsed JSON of the same shape as the YAML; errors call it ``where``. Raises ``SceneError``."""
    try:
        return _read(from_plain(mapping, where), skills)
    except SourceError as error:
        raise SceneError(str(error)) from error


def scene_to_mapping(scene: Scene, skills: SkillSet) -> dict[str, Any]:
    """The mapping that ``scene_from_mapping`` reads as ``scene`` (a checked one), short forms where they do.

    Raises:
        SceneError: a fact that a scene file has no words for.
    """
    names = {thing.name for thing in scene.things}
    robot: dict[str, str] = {}
    located: dict[str, str] = {}
    states: dict[str, list[str]] = {}
    for fact in scene.facts:
        if fact.predicate in ("robot_at", "holding") and len(fact.arguments) == 1:
            robot["at" if fact.predicate == "robot_at" else "holding"] = fact.arguments[0]
        elif fact.predicate == "at" and len(fact.arguments) == 2:
            located[fact.arguments[0]] = fact.arguments[1]
        elif len(fact.arguments) == 1 and fact.arguments[0] in names:
            states.setdefault(fact.arguments[0], []).append(fact.predicate)
        else:
            raise SceneError(f"a scene file has no words for {fact}: leave it out")
    mapping: dict[str, Any] = {"robot": robot} if robot else {}
    for thing in scene.things:
        sort, basic = ("places", PLACE) if skills.is_a(thing.kind, PLACE) else ("objects", OBJECT)
        entry: dict[str, Any] = {"name": thing.name}
        entry |= {"kind": thing.kind} if thing.kind != basic else {}
        entry |= {"at": located[thing.name]} if thing.name in located else {}
        entry |= {"is": states[thing.name]} if thing.name in states else {}
        mapping.setdefault(sort, []).append(entry if len(entry) > 1 else thing.name)
    return mapping


def check_scene(
    scene: Scene, skills: SkillSet, where: str = "the scene", lines: Mapping[str, str] | None = None
) -> None:
    """Refuse a scene that plans could not speak of or that cannot be.

    Args:
        scene: from a file or a message.
        skills: whose kinds it may use.
        where: what errors call it.
        lines: for a thing's name, where it was written; "" for the robot.

    Raises:
        SceneError: a name that breaks syntax or appears twice, an unknown kind, a fact about something that is not
            listed or in a state that no skill speaks of, something in two places at once.
    """
    spots = lines or {}
    if len(scene.things) > MAX_THINGS:
        raise SceneError(f"{where}: {len(scene.things)} things are more than {MAX_THINGS}: list what the task needs")
    kinds: dict[str, str] = {}
    for thing in scene.things:
        spot = spots.get(thing.name, where)
        if problem := name_problem(thing.name):
            raise SceneError(f"{spot}: {shown(thing.name)} {problem}")
        if thing.name in kinds:
            raise SceneError(f"{spot}: {shown(thing.name)} is listed twice: give each thing its own name")
        if not skills.knows(thing.kind):
            known = listing([OBJECT, PLACE, *skills.kinds])
            raise SceneError(f"{spot}: {thing.name} is of unknown kind {shown(thing.kind)}: use one of {known}")
        kinds[thing.name] = thing.kind
    arities = _arities(skills)
    whereabouts: dict[str, Fact] = {}
    for fact in scene.facts:
        subject = _ROBOT if fact.predicate in ("robot_at", "holding") else next(iter(fact.arguments), _ROBOT)
        spot = spots.get(subject, where)
        missing = [argument for argument in fact.arguments if argument not in kinds]
        if missing:
            raise SceneError(f"{spot}: {fact} speaks of {shown(missing[0])}, which is not listed: list it")
        if not _STATE.fullmatch(fact.predicate) or arities.get(fact.predicate, 1) != len(fact.arguments):
            raise SceneError(f"{spot}: {shown(str(fact))} is not something the skills or a scene can say: leave it out")
        if len(arities) > len(_ALWAYS) and fact.predicate not in arities:  # a typo here would leave a door open
            states = listing(sorted(name for name, count in arities.items() if count == 1 and name not in _ALWAYS))
            raise SceneError(
                f"{spot}: {fact}: no skill speaks of {shown(fact.predicate)}, only of {states}: correct it"
            )
        for argument, sort in zip(fact.arguments, _sorts(fact.predicate), strict=False):
            if skills.is_a(kinds[argument], PLACE) != (sort == PLACE):
                raise SceneError(f"{spot}: in {fact}, {argument} is no {sort}: name one that is listed as {sort}")
        # One robot, one hand, one whereabouts for each object: held or somewhere.
        slots = {"robot_at": ("(robot)",), "holding": ("(hand)", *fact.arguments), "at": fact.arguments[:1]}
        for slot in slots.get(fact.predicate, ()):
            if slot in whereabouts:
                raise SceneError(f"{spot}: {fact} and {whereabouts[slot]} cannot both hold: remove one")
            whereabouts[slot] = fact
    if len(set(scene.facts)) < len(scene.facts):
        raise SceneError(f"{where}: a fact is given twice: keep one")


_ALWAYS = {"at": 2, "robot_at": 1, "holding": 1}  # what every scene can say, and how many names it takes


def _sorts(predicate: str) -> tuple[str, ...]:
    return {"at": (OBJECT, PLACE), "robot_at": (PLACE,), "holding": (OBJECT,)}.get(predicate, ())


def _arities(skills: SkillSet) -> dict[str, int]:
    """Number of names of every predicate that a scene or the skills use."""
    conditions = [condition for skill in skills for condition in (*skill.preconditions, *skill.effects)]
    arities = {condition.fact.predicate: len(condition.fact.arguments) for condition in conditions}
    return arities | _ALWAYS


def _read(root: Piece, skills: SkillSet) -> Scene:
    """Things in their order, places first; the robot's facts, then each thing's."""
    parts = root.keys("a scene", ("robot", "places", "objects"))
    things: list[Thing] = []
    facts: list[Fact] = []
    lines: dict[str, str] = {}
    if "robot" in parts:
        lines[_ROBOT] = parts["robot"].where
        for key, piece in parts["robot"].keys("robot", ("at", "holding")).items():
            facts.append(Fact("robot_at" if key == "at" else "holding", (_name(piece, f"robot's {key}"),)))
    for part, sort, keys in (
        ("places", PLACE, ("name", "kind", "is")),
        ("objects", OBJECT, ("name", "kind", "at", "is")),
    ):
        for entry in parts[part].items(part) if part in parts else []:
            thing, about = _read_thing(entry, sort, keys, skills)
            if thing.name in lines:
                raise entry.fail(f"{shown(thing.name)} is listed twice: give each thing its own name")
            lines[thing.name] = entry.where
            things.append(thing)
            facts += about
    # The robot's place before what it holds, in whichever order they were written.
    facts.sort(key=lambda fact: {"robot_at": 0, "holding": 1}.get(fact.predicate, 2))
    scene = Scene(tuple(things), tuple(facts))
    try:
        check_scene(scene, skills, root.where, lines)
    except SceneError as error:
        raise SourceError(str(error)) from error
    return scene


def _read_thing(entry: Piece, sort: str, keys: tuple[str, ...], skills: SkillSet) -> tuple[Thing, list[Fact]]:
    if not isinstance(entry.value, dict):
        return Thing(_name(entry, f"the name of {_a(sort)}"), sort), []
    parts = entry.keys(_a(sort), keys)
    if "name" not in parts:
        raise entry.fail(f"{_a(sort)} needs a name")
    name = _name(parts["name"], f"the name of {_a(sort)}")
    kind = parts["kind"].text(f"the kind of {shown(name)}") if "kind" in parts else sort
    if skills.knows(kind) and not skills.is_a(kind, sort):
        raise entry.fail(f"{shown(name)} is of kind {kind}, which is no {sort}: list it elsewhere or change its kind")
    facts = [Fact("at", (name, _name(parts["at"], f"where {shown(name)} is")))] if "at" in parts else []
    states = parts.get("is", Piece(None, entry.where))
    pieces = [states] if isinstance(states.value, str) else states.items(f"what {shown(name)} is")
    if len(pieces) > MAX_STATES:
        raise entry.fail(f"{shown(name)} is {len(pieces)} things at once, more than {MAX_STATES}: shorten the list")
    for piece in pieces:
        state = piece.text(f"what {shown(name)} is")
        if not _STATE.fullmatch(state) or state in _RESERVED:
            raise piece.fail(f"{shown(state)} cannot be what {shown(name)} is: use one word such as closed or dirty")
        facts.append(Fact(state, (name,)))
    return Thing(name, kind), facts


def _a(sort: str) -> str:
    return "an object" if sort == OBJECT else "a place"


def _name(piece: Piece, what: str) -> str:
    name = unicodedata.normalize("NFC", piece.text(what))
    if problem := name_problem(name):
        raise piece.fail(f"{shown(name)} {problem}")
    return name
