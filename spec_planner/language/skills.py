"""Skill lists: from ``config/skills/*.yaml`` or from signatures such as ``pick(object)``.

A skill file is a mapping of ``kinds``, ``initially`` and ``skills``, or a plain list of skills. Preconditions and
effects are ``predicate(name, ...)`` or ``not predicate(name, ...)`` over a skill's parameters and variables: plain
STRIPS with negative preconditions, which any classical planner takes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from ..resources import shared_file
from .plan import ENUM, NUMBER, OBJECT, PLACE, TEXT, Condition, Fact, Parameter, Skill, SkillSet
from .scene import name_problem
from .yaml_source import Piece, SourceError, listing, read_text, read_yaml, shown

DEFAULT_SKILLS = "config/skills/household.yaml"
MAX_SKILLS, MAX_KINDS, MAX_PARAMETERS, MAX_CONDITIONS = 1000, 200, 8, 32
_MAX_WAYS_UP = 64  # paths from a kind to object or place; ``SkillSet.is_a`` walks them all
_MAX_NUMBER = 1e9
IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
_SIGNATURE = re.compile(rf"\s*({IDENTIFIER})\s*\(\s*((?:{IDENTIFIER}(?:\s*,\s*{IDENTIFIER})*)?)\s*\)\s*")
_CONDITION = re.compile(rf"\s*(not\s+)?({IDENTIFIER})\s*\(([^()]*)\)\s*")
_NUMERAL = re.compile(r"-?[0-9]{1,10}(\.[0-9]{1,6})?")
_PARAMETER_KEYS = ("name", "kind", "low", "high", "decimals", "unit", "choices")
_SKILL_KEYS = ("name", "parameters", "description", "variables", "preconditions", "effects")
_SCENE_FACTS = {"at": 2, "robot_at": 1, "holding": 1}  # arguments of the facts every scene speaks of
# What an untyped parameter of this name is; every other name is a thing, an object unless the skill set has that kind.
_PLACE_NAMES = {"location", "destination", "target_place", "spot", "room", "start", "goal"}
_TEXT_NAMES = {"text", "message", "phrase", "sentence", "question", "number", "count", "amount", "value", "seconds"}
_TEXT_NAMES |= {"minutes", "duration", "speed", "temperature", "height", "distance", "angle", "volume", "level", "mode"}


class SkillError(ValueError):
    """A skill list that cannot be used; the message names the file and the entry."""


def parse_signature(signature: str, description: str = "", skills: SkillSet | None = None) -> Skill:
    """``"place(object, place)"`` → Skill, unmodelled unless ``skills`` has this very skill: then that one.

    A signature has no kinds, so a parameter's name decides: the kind of that name, if ``skills`` (or the two basic
    kinds) know one; a place for ``location``, ``destination`` and the like; free text for ``message``, ``seconds`` and
    other words for what is no thing; else an object, as ``lift(crate)`` suggests.

    Raises:
        SkillError: it is not of that form, or a parameter appears twice.
    """
    match = _SIGNATURE.fullmatch(signature)
    if match is None:
        raise SkillError(f"{signature[:80]!r} is not a skill: write a name and its parameters, such as pick(object)")
    names = [name.strip() for name in match.group(2).split(",")] if match.group(2) else []
    if len(set(names)) < len(names):
        raise SkillError(f"skill {signature[:80]!r} names a parameter twice: give each its own name")
    known = skills.by_name.get(match.group(1)) if skills is not None else None
    if known is not None and list(known.parameter_names) == names:
        return known
    parameters = tuple(Parameter(name, _guess_kind(name, skills or SkillSet(()))) for name in names)
    return Skill(match.group(1), parameters, " ".join(description.split()))


def parse_condition(text: str) -> Condition:
    """``"not at(red cup, table)"`` → Condition; arguments may contain blanks.

    Raises:
        SkillError: it is not of that form, or an argument cannot be a name.
    """
    match = _CONDITION.fullmatch(text)
    if match is None or match.group(2) == "not":
        raise SkillError(f"{shown(text)} is not a condition: write at(object, place) or not closed(place)")
    arguments = [argument.strip() for argument in match.group(3).split(",")] if match.group(3).strip() else []
    for argument in arguments:
        if problem := name_problem(argument):
            raise SkillError(f"{shown(text)} is not a condition: {shown(argument)} {problem}")
    return Condition(Fact(match.group(2), tuple(arguments)), holds=match.group(1) is None)


def load_skills(path: str | os.PathLike[str] | None = None) -> SkillSet:
    """Read a skill file; None or "" reads the default household skills.

    Raises:
        SkillError: the file is missing, or is not a usable skill file.
    """
    file = path or shared_file(DEFAULT_SKILLS)
    try:
        text = read_text(file, "skills file", "set skills_file to a YAML list of skills")
    except SourceError as error:
        raise SkillError(str(error)) from error
    return read_skills(text, str(file))


def read_skills(text: str, source: str) -> SkillSet:
    """Parse the YAML ``text``; ``source`` is what errors call it. Raises ``SkillError``."""
    try:
        root = read_yaml(text, source)
        if isinstance(root.value, list):
            return _read_set(root, {}, (), _guess_kind)
        if not isinstance(root.value, dict) or not {"kinds", "initially", "skills"} & set(root.value):
            raise SourceError(f"{source}: must be a list of skills, or a mapping with kinds, initially and skills")
        parts = root.keys("a skill file", ("kinds", "initially", "skills"))
        kinds = _read_kinds(parts["kinds"]) if "kinds" in parts else {}
        initially = (
            tuple(map(_read_fact, _whole(parts["initially"].items("initially")))) if "initially" in parts else ()
        )
        return _read_set(parts.get("skills", Piece(None, source)), kinds, initially, None)
    except SourceError as error:
        raise SkillError(str(error)) from error


Guess = Callable[[str, SkillSet], str]


def _guess_kind(name: str, skills: SkillSet) -> str:
    if skills.knows(name):
        return name
    return PLACE if name in _PLACE_NAMES else TEXT if name in _TEXT_NAMES else OBJECT


def _read_kinds(piece: Piece) -> dict[str, tuple[str, ...]]:
    """Kind → parents; every kind ends in ``object`` or in ``place``, not in both."""
    if not isinstance(piece.value, dict):
        raise piece.fail(f"kinds is a mapping from a kind to its parent or parents, got {shown(piece.plain())}")
    if len(piece.value) > MAX_KINDS:
        raise piece.fail(f"{len(piece.value)} kinds are more than {MAX_KINDS}: leave out those no skill needs")
    kinds: dict[str, tuple[str, ...]] = {}
    for kind, entry in piece.value.items():
        if not _is_identifier(kind) or kind in (OBJECT, PLACE, NUMBER, ENUM, TEXT):
            raise entry.fail(f"{shown(kind)} cannot be the name of a kind: use an identifier such as container")
        parents = entry.value if isinstance(entry.value, list) else [entry]
        kinds[kind] = tuple(parent.text(f"the parent of kind {kind}") for parent in parents)
        for parent in kinds[kind]:
            if parent not in piece.value and parent not in (OBJECT, PLACE):
                raise entry.fail(f"kind {kind} has the unknown parent {shown(parent)}: list it, or use object or place")
        if not parents or len(set(kinds[kind])) < len(parents):
            raise entry.fail(f"kind {kind} needs one or more different parents, such as object or place")
    for kind, entry in piece.value.items():
        ways = _ways_up(kind, kinds, (), entry)
        if len(set(ways)) > 1:
            raise entry.fail(f"kind {kind} is an object and a place at once: let it be one of them")
    return kinds


def _ways_up(kind: str, kinds: dict[str, tuple[str, ...]], below: tuple[str, ...], entry: Piece) -> list[str]:
    """The root at the end of every path up from ``kind``."""
    if kind in below:
        raise entry.fail(f"kinds form a cycle: {' is a '.join((*below[below.index(kind) :], kind))}")
    if kind in (OBJECT, PLACE):
        return [kind]
    ways: list[str] = []
    for parent in kinds[kind]:
        ways += _ways_up(parent, kinds, (*below, kind), entry)
        if len(ways) > _MAX_WAYS_UP or len(below) > _MAX_WAYS_UP:
            raise entry.fail(f"kind {(*below, kind)[0]} has too many ancestors: flatten the kinds above it")
    return ways


def _whole(pieces: list[Piece]) -> list[Piece]:
    """In ``[at(object, place), closed(place)]`` YAML splits at every comma: join what a bracket holds together."""
    whole: list[Piece] = []
    for piece in pieces:
        last = whole[-1].value if whole else None
        if isinstance(last, str) and isinstance(piece.value, str) and last.count("(") > last.count(")"):
            whole[-1] = Piece(f"{last}, {piece.value}", whole[-1].where)
        else:
            whole.append(piece)
    return whole


def _read_fact(piece: Piece) -> Fact:
    condition = _condition(piece, "an initial fact")
    if not condition.holds:
        raise piece.fail(f"initially lists what holds, got {condition}: leave it out, nothing else holds")
    return condition.fact


def _condition(piece: Piece, what: str) -> Condition:
    try:
        return parse_condition(piece.text(what))
    except SkillError as error:
        raise piece.fail(str(error)) from error


def _read_set(
    piece: Piece, kinds: dict[str, tuple[str, ...]], initially: tuple[Fact, ...], guess: Guess | None
) -> SkillSet:
    """``guess`` gives the kind for a parameter that is only a name; without it that name must be a kind."""
    entries = piece.items("skills")
    if not entries:
        raise piece.fail("must be a list of skills, each with name, parameters and description; there is none")
    if len(entries) > MAX_SKILLS:
        raise piece.fail(f"{len(entries)} skills are more than {MAX_SKILLS}: leave out those the robot does not need")
    known = SkillSet((), kinds)
    skills: dict[str, Skill] = {}
    arities = dict(_SCENE_FACTS)
    for fact in initially:
        _check_arity(fact, arities, piece)
    for index, entry in enumerate(entries, start=1):
        entry = Piece(entry.value, f"{entry.where}, entry {index}")
        skill = _read_skill(entry, known, guess)
        if skill.name in skills:
            raise entry.fail(f"skill {skill.name!r} appears twice: remove or rename one")
        skills[skill.name] = skill
        for condition in (*skill.preconditions, *skill.effects):
            _check_arity(condition.fact, arities, Piece(None, f"{entry.where} ({skill.name})"))
    return SkillSet(tuple(skills.values()), kinds, initially)


def _check_arity(fact: Fact, arities: dict[str, int], piece: Piece) -> None:
    expected = arities.setdefault(fact.predicate, len(fact.arguments))
    if expected != len(fact.arguments):
        raise piece.fail(f"{fact} has {len(fact.arguments)} names where {fact.predicate} elsewhere has {expected}")


def _read_skill(entry: Piece, known: SkillSet, guess: Guess | None) -> Skill:
    parts = entry.keys("a skill", _SKILL_KEYS)
    name = parts["name"].value if "name" in parts else None
    if not _is_identifier(name):
        raise entry.fail(f"name must be an identifier such as go_to, got {shown(name)}")
    where = f"{entry.where} ({name})"

    def listed(key: str) -> list[Piece]:
        pieces = Piece(parts[key].value if key in parts else None, where).items(key)
        return [Piece(piece.value, f"{piece.where}, {entry.where.rpartition(', ')[2]} ({name})") for piece in pieces]

    parameters = tuple(_read_parameter(piece, known, guess, "parameters") for piece in listed("parameters"))
    variables = tuple(_read_parameter(piece, known, guess, "variables") for piece in listed("variables"))
    names = [parameter.name for parameter in (*parameters, *variables)]
    if len(set(names)) < len(names):
        raise SourceError(f"{where} names a parameter twice: give each parameter and variable its own name")
    if max(len(parameters), len(variables)) > MAX_PARAMETERS:
        raise SourceError(f"{where} has more than {MAX_PARAMETERS} parameters or variables: split the skill")
    conditions = {}
    for key in ("preconditions", "effects"):
        conditions[key] = tuple(_read_condition(piece, set(names), key) for piece in _whole(listed(key)))
        facts = [condition.fact for condition in conditions[key]]
        if len(set(facts)) < len(facts):
            raise SourceError(f"{where}: {key} speak of one fact twice: keep one")
        if len(facts) > MAX_CONDITIONS:
            raise SourceError(f"{where} has more than {MAX_CONDITIONS} {key}: split the skill")
    bound = {argument for c in conditions["preconditions"] if c.holds for argument in c.fact.arguments}
    unbound = [variable.name for variable in variables if variable.name not in bound]
    if unbound:
        raise SourceError(f"{where}: nothing binds variable {unbound[0]}: use it in a precondition without not")
    description = Piece(parts["description"].value, where).text("description") if "description" in parts else ""
    return Skill(
        str(name),
        parameters,
        " ".join(description.split()),
        variables,
        conditions["preconditions"],
        conditions["effects"],
    )


def _read_condition(piece: Piece, names: set[str], key: str) -> Condition:
    condition = _condition(piece, f"an entry of {key}")
    unknown = [argument for argument in condition.fact.arguments if argument not in names]
    if unknown:
        raise piece.fail(f"{condition} speaks of {shown(unknown[0])}, which is no parameter or variable of the skill")
    return condition


def _read_parameter(piece: Piece, known: SkillSet, guess: Guess | None, key: str) -> Parameter:
    if not isinstance(piece.value, dict):
        if not _is_identifier(piece.value):
            raise piece.fail(f"{key} must be a list of identifiers or mappings, got {shown(piece.plain())}")
        word = str(piece.value)
        kind = guess(word, known) if guess else word
        if not known.knows(kind) and (guess is None or kind != TEXT):
            known_kinds = listing([OBJECT, PLACE, *known.kinds])
            raise piece.fail(
                f"{shown(kind)} is no kind: add it to kinds, use one of {known_kinds}, or write name and kind"
            )
        return Parameter(word, kind)
    parts = piece.keys("a parameter", _PARAMETER_KEYS)
    name = parts["name"].value if "name" in parts else None
    if not _is_identifier(name):
        raise piece.fail(f"the name of a parameter must be an identifier, got {shown(name)}")
    kind = parts["kind"].text(f"the kind of {name}") if "kind" in parts else str(name)
    if kind not in (NUMBER, ENUM, TEXT) and not known.knows(kind):
        known_kinds = listing([OBJECT, PLACE, *known.kinds, NUMBER, ENUM, TEXT])
        raise piece.fail(f"parameter {name} has the unknown kind {shown(kind)}: use one of {known_kinds}")
    allowed = {NUMBER: {"low", "high", "decimals", "unit"}, ENUM: {"choices"}}.get(kind, set())
    stray = sorted(set(parts) - {"name", "kind"} - allowed)
    if stray:
        raise piece.fail(f"parameter {name} of kind {kind} cannot have {stray[0]}: remove it")
    if kind == NUMBER:
        return _read_number(str(name), parts, piece)
    return Parameter(str(name), kind, choices=_read_choices(str(name), parts, piece) if kind == ENUM else ())


def _read_choices(name: str, parts: dict[str, Piece], piece: Piece) -> tuple[str, ...]:
    choices = (
        tuple(choice.text("a choice") for choice in parts["choices"].items("choices")) if "choices" in parts else ()
    )
    if not choices or len(set(choices)) < len(choices):
        raise piece.fail(f"parameter {name} needs choices, a list of different words")
    for choice in choices:
        if problem := name_problem(choice):
            raise piece.fail(f"choice {shown(choice)} of parameter {name} {problem}")
    return choices


def _read_number(name: str, parts: dict[str, Piece], piece: Piece) -> Parameter:
    decimals = parts["decimals"].text("decimals") if "decimals" in parts else "0"
    if decimals not in tuple("0123456"):
        raise piece.fail(f"decimals of parameter {name} must be 0 to 6, got {shown(decimals)}")
    limits = []
    for key in ("low", "high"):
        text = parts[key].text(key) if key in parts else ""
        if not _NUMERAL.fullmatch(text) or abs(float(text)) > _MAX_NUMBER:
            raise piece.fail(f"parameter {name} needs {key}, a number such as 0 or 2.5, got {shown(text)}")
        if len(text.partition(".")[2].rstrip("0")) > int(decimals):
            raise piece.fail(
                f"{key} of parameter {name}, {text}, has more than its {decimals} decimals: raise decimals"
            )
        limits.append(float(text))
    if limits[0] > limits[1]:
        raise piece.fail(f"parameter {name} has low above high ({limits[0]:g} > {limits[1]:g}): exchange them")
    unit = parts["unit"].text("unit") if "unit" in parts else ""
    if not unit.isprintable() or len(unit) > 40:
        raise piece.fail(f"unit of parameter {name} must be a few printable characters, got {shown(unit)}")
    return Parameter(name, NUMBER, limits[0], limits[1], int(decimals), unit)


def _is_identifier(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(IDENTIFIER, value) is not None
