"""A domain's vocabulary, clauses and activities: ``config/tasks/<domain>.yaml``, ready to draw from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ..language.plan import Condition, SkillSet
from ..language.skills import load_skills, parse_condition
from ..resources import shared_file

DOMAINS = ("household", "warehouse", "lab", "field")
ANY, USER = "any", "user"


@dataclass(frozen=True)
class PlaceSort:
    """Places of one sort: ``{kind: appliance, prep: in, names: [fridge]}``."""

    name: str
    kind: str
    preposition: str
    names: tuple[str, ...]
    exceptions: Mapping[str, str] = field(default_factory=dict)

    def preposition_of(self, name: str) -> str:
        return self.exceptions.get(name, self.preposition)


@dataclass(frozen=True)
class Each:
    """A clause's goal holds for each thing of which ``pattern`` holds: ``[x, 'at(x, s)', 2, 3]``, 2 to 3 of them."""

    role: str
    pattern: Condition
    low: int
    high: int


@dataclass(frozen=True)
class Phrases:
    """Ways to say a clause: imperatives and statements."""

    say: tuple[str, ...]
    state: tuple[str, ...]


@dataclass(frozen=True)
class Clause:
    """One thing to want.

    Attributes:
        roles: names that the conditions and phrases speak of.
        start: what is true before; made so unless an earlier clause speaks of it.
        by: what to make true on the way, in this order, so that plans are of one form.
        goal: what is true then.
        each, but: for all things of a pattern; ``but`` is the role of the exception.
        blind: steps where nothing is known about the scene. ``go_to(s)?`` only if the instruction says s, ``!`` must be
            said.
        steps: plan lines for what no fact tells, such as ``report(m)``; only in an activity's last clause.
        phrases, held_out: of training, and never in it.
    """

    name: str
    roles: tuple[str, ...]
    start: tuple[Condition, ...]
    by: tuple[Condition, ...]
    goal: tuple[Condition, ...]
    each: Each | None
    but: str
    blind: tuple[str, ...]
    steps: tuple[str, ...]
    phrases: Phrases
    held_out: Phrases


@dataclass(frozen=True)
class Activity:
    """A sort of task: things by role, and the clauses over them in order.

    ``roles``: role → what to draw. ``at``: role → role or sort of place where the thing is at the start.
    """

    name: str
    roles: Mapping[str, Any]
    at: Mapping[str, str]
    clauses: tuple[tuple[Clause, tuple[str, ...]], ...]  # with the activity's roles in the clause's order
    held_out: bool


@dataclass(frozen=True)
class Domain:
    """Everything tasks of one domain are drawn from. See the comments in ``config/tasks/household.yaml``."""

    name: str
    skills: SkillSet
    things: Mapping[str, tuple[str, ...]]
    kinds: Mapping[str, str]  # sort of thing → kind, where it is not object
    states: Mapping[str, tuple[str, ...]]  # kind or sort → states it may be in at random
    adjectives: Mapping[str, tuple[str, ...]]
    plural: frozenset[str]
    bare: frozenset[str]
    places: Mapping[str, PlaceSort]
    groups: Mapping[str, tuple[str, ...]]
    spots: Mapping[str, tuple[str, ...]]
    also: Mapping[str, tuple[str, ...]]  # where chance may put things besides
    homes: Mapping[str, tuple[str, ...]]
    values: Mapping[str, tuple[str, ...]]
    constants: Mapping[str, str]  # parameter of a skill → what it is unless the instruction says otherwise
    failures: Mapping[str, tuple[str, ...]]
    single: frozenset[str]  # sorts of place of which a scene has one at most
    clauses: Mapping[str, Clause]
    activities: Mapping[str, Activity]

    def place_sorts(self, expression: str) -> tuple[str, ...]:
        """A group or a sort of place → sorts of place."""
        return self.groups.get(expression, (expression,))

    def the(self, name: str, person: bool = False) -> str:
        """``name`` with the article people would use: the fridge, Anna, shelf B4."""
        bare = name in self.bare or (person and name[:1].isupper()) or re.search(r"\d|\b[A-Z]$", name)
        return name if bare else f"the {name}"


@lru_cache
def load_domain(name: str) -> Domain:
    """Read a domain. Raises ``ValueError`` for a name that is none."""
    if name not in DOMAINS:
        raise ValueError(f"{name!r} is no domain: use one of {', '.join(DOMAINS)}")
    data = read_data(f"config/tasks/{name}.yaml")
    clauses = {key: _clause(key, entry) for key, entry in data["clauses"].items()}
    return Domain(
        name=name,
        skills=load_skills(shared_file(f"config/skills/{data['skills']}.yaml")),
        things={key: _expand(names) for key, names in data["things"].items()},
        kinds=data.get("kinds", {}),
        states=_lists(data.get("states", {})),
        adjectives=_lists(data.get("adjectives", {})),
        plural=frozenset(data.get("plural", ())),
        bare=frozenset(data.get("bare", ())),
        places={
            key: PlaceSort(key, entry["kind"], entry["prep"], _expand(entry["names"]), entry.get("but", {}))
            for key, entry in data["places"].items()
        },
        groups=_lists(data.get("groups", {})),
        spots=_lists(data["spots"]),
        also=_lists(data.get("also", {})),
        homes=_lists(data["homes"]),
        values=_lists(data.get("values", {})),
        constants={key: str(value) for key, value in data.get("constants", {}).items()},
        failures=_lists(data.get("failures", {})),
        single=frozenset(data.get("single", ())),
        clauses=clauses,
        activities={key: _activity(key, entry, clauses) for key, entry in data["activities"].items()},
    )


@lru_cache
def read_data(relative: str) -> dict[str, Any]:
    """A YAML mapping of this package, once."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content: dict[str, Any] = yaml.load(shared_file(relative).read_text(encoding="utf-8"), Loader=loader)
    return content


def _lists(entries: Mapping[str, Sequence[Any]]) -> dict[str, tuple[str, ...]]:
    return {str(key): tuple(map(str, values)) for key, values in entries.items()}


def _expand(names: Sequence[Any]) -> tuple[str, ...]:
    """``shelf <A-B><1-2>`` → shelf A1, shelf A2, shelf B1, shelf B2."""
    found: list[str] = []
    for name in map(str, names):
        match = re.search(r"<(\w+)-(\w+)>", name)
        if match is None:
            found.append(name)
            continue
        low, high = match.groups()
        letters = [chr(c) for c in range(ord(low), ord(high) + 1)] if low.isalpha() else []
        values = letters or [str(number) for number in range(int(low), int(high) + 1)]
        found += _expand([name.replace(match.group(0), value, 1) for value in values])
    return tuple(found)


def _clause(name: str, entry: Mapping[str, Any]) -> Clause:
    conditions = {key: tuple(map(parse_condition, entry.get(key, ()))) for key in ("start", "by", "goal")}
    each = entry.get("each")
    return Clause(
        name,
        tuple(entry["roles"]),
        conditions["start"],
        conditions["by"],
        conditions["goal"],
        Each(each[0], parse_condition(each[1]), each[2], each[3]) if each else None,
        entry.get("but", ""),
        tuple(entry.get("blind", ())),
        tuple(entry.get("steps", ())),
        _phrases(entry),
        _phrases(entry.get("held_out", {})),
    )


def _phrases(entry: Mapping[str, Any]) -> Phrases:
    return Phrases(tuple(entry.get("say", ())), tuple(entry.get("state", ())))


def _activity(name: str, entry: Mapping[str, Any], clauses: Mapping[str, Clause]) -> Activity:
    roles = {key: value for key, value in entry.items() if key not in ("do", "at", "held_out")}
    done = []
    for line in entry["do"]:
        word, *arguments = line.split()
        if len(arguments) != len(clauses[word].roles):
            raise ValueError(f"activity {name}: {line!r} needs the roles {', '.join(clauses[word].roles)}")
        done.append((clauses[word], tuple(arguments)))
    return Activity(name, roles, entry.get("at", {}), tuple(done), bool(entry.get("held_out", False)))
