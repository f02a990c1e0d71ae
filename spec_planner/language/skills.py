"""Skill lists: from ``config/skills/*.yaml`` or from signatures such as ``pick(object)``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..resources import shared_file
from .plan import Skill

DEFAULT_SKILLS = "config/skills/household.yaml"
_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
_SIGNATURE = re.compile(rf"\s*({_IDENTIFIER})\s*\(\s*((?:{_IDENTIFIER}(?:\s*,\s*{_IDENTIFIER})*)?)\s*\)\s*")


class SkillError(ValueError):
    """A skill list that cannot be used; the message names the file and the entry."""


def parse_signature(signature: str, description: str = "") -> Skill:
    """``"place(object, place)"`` → Skill.

    Raises:
        SkillError: it is not of that form, or a parameter appears twice.
    """
    match = _SIGNATURE.fullmatch(signature)
    if match is None:
        raise SkillError(f"{signature[:80]!r} is not a skill: write a name and its parameters, such as pick(object)")
    parameters = tuple(name.strip() for name in match.group(2).split(",")) if match.group(2) else ()
    if len(set(parameters)) < len(parameters):
        raise SkillError(f"skill {signature[:80]!r} names a parameter twice: give each its own name")
    return Skill(match.group(1), parameters, " ".join(description.split()))


def load_skills(path: str | os.PathLike[str] | None = None) -> tuple[Skill, ...]:
    """Read a YAML list of ``{name, parameters: [..], description}``; None or "" reads the default household skills.

    Raises:
        SkillError: the file is missing, is not such a list, or two skills share a name.
    """
    file = Path(path) if path else shared_file(DEFAULT_SKILLS)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not UTF-8 text"
        raise SkillError(
            f"skills file {file} cannot be read ({reason}): set skills_file to a YAML list of skills"
        ) from error
    return read_skills(text, str(file))


def read_skills(text: str, source: str) -> tuple[Skill, ...]:
    """Parse the YAML ``text``; ``source`` is what errors call it. Raises ``SkillError``."""
    import yaml

    try:
        entries = yaml.safe_load(text)
        lines = _entry_lines(yaml.compose(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "unreadable character"
        raise SkillError(f"{source}{where}: not valid YAML ({problem})") from error
    if not isinstance(entries, list) or not entries:
        raise SkillError(f"{source}: must be a list of skills, each with name, parameters and description")
    skills: dict[str, Skill] = {}
    for index, (entry, line) in enumerate(zip(entries, lines, strict=True)):
        where = f"{source}, line {line}, entry {index + 1}"
        skill = _read_entry(entry, where)
        if skill.name in skills:
            raise SkillError(f"{where}: skill {skill.name!r} appears twice: remove or rename one")
        skills[skill.name] = skill
    return tuple(skills.values())


def _entry_lines(node: Any) -> Sequence[int]:
    """Line numbers, from 1, of the entries of a YAML list; empty for anything else."""
    import yaml

    return [entry.start_mark.line + 1 for entry in node.value] if isinstance(node, yaml.SequenceNode) else []


def _read_entry(entry: Any, where: str) -> Skill:
    if not isinstance(entry, dict):
        raise SkillError(f"{where}: a skill is a mapping with name, parameters and description, got {entry!r:.80}")
    unknown = sorted(str(key) for key in set(entry) - {"name", "parameters", "description"})
    if unknown:
        raise SkillError(f"{where}: unknown key {', '.join(unknown)}; a skill has name, parameters and description")
    name, parameters, description = entry.get("name"), entry.get("parameters", []), entry.get("description", "")
    if not _is_identifier(name):
        raise SkillError(f"{where}: name must be an identifier such as go_to, got {name!r:.80}")
    if not isinstance(parameters, list) or not all(map(_is_identifier, parameters)):
        raise SkillError(f"{where} ({name}): parameters must be a list of identifiers, got {parameters!r:.80}")
    if not isinstance(description, str):
        raise SkillError(f"{where} ({name}): description must be text, got {description!r:.80}")
    try:
        return parse_signature(f"{name}({', '.join(parameters)})", description)
    except SkillError as error:
        raise SkillError(f"{where}: {error}") from error


def _is_identifier(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(_IDENTIFIER, value) is not None
