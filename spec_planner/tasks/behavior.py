"""Household activities of BEHAVIOR: ``config/tasks/behavior.jsonl``, written once by ``tools/extract_behavior.py``."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ..language.plan import Condition, Fact
from ..language.skills import parse_condition
from ..resources import shared_file
from .domain import Clause, PlaceSort
from .draft import Dead, Draft
from .wording import Said

DATA = "config/tasks/behavior.jsonl"
SORT = "behavior"
_CLAUSES = {  # of a condition: predicate, whether it must hold, whether its thing is an object
    ("closed", True): ("close", "c"),
    ("closed", False): ("open", "c"),
    ("on", True): ("turn_on", "d"),
    ("on", False): ("turn_off", "d"),
}
_IN = re.compile(
    r"\b(sink|bin|can|basket|box|bag|car|cart|tub|pool|truck|fireplace|hutch|vehicle|backpack|suitcase|jar|bucket|cage"
    r"|carton|pot|pan|casserole|bowl|cup|glass|bathtub|garden|case|vase|container|crib|wheelbarrow|tank|folder|package"
    r"|wardrobe|cooler|toolbox|chest|mailbox|trailer)( \d+)?$"
)
MOST_GOALS = 4
_TITLES = re.compile(  # names of activities that make sense before an instruction: "Putting away toys: ..."
    r"(putting|packing|pack|clean|cleaning|store|storing|stock|unloading|loading|unpacking|collecting|sorting|organizing"
    r"|picking_up|clearing|tidying|bringing|dispose|disposing|recycling|wash|washing|buying|moving|laying|serving)_"
)


def draw(
    draft: Draft, chance: random.Random, clauses: Mapping[str, Clause], held_out: bool
) -> tuple[str, str, list[Said]]:
    """An activity's things, put into the draft, and some of its goals as clauses. Raises ``Dead``.

    Returns:
        Its name, its name in words, the clauses in order.
    """
    activity = chance.choice([a for a in _activities() if is_held_out(a["activity"]) == held_out])
    goals = [parse_condition(text) for text in activity["goal"]]
    wanted = min(len(goals), chance.choices((1, 2, 3, MOST_GOALS), (2, 4, 3, 2))[0])
    first = chance.randrange(len(goals) - wanted + 1)
    goals = sorted(goals[first : first + wanted], key=lambda goal: goal.fact.predicate == "closed" and goal.holds)
    activity, goals = _without_lone_numbers(activity, goals)
    objects = {entry["name"]: entry for entry in activity["objects"]}
    places = {entry["name"]: entry for entry in activity["places"]}
    used = dict.fromkeys(name for goal in goals for name in goal.fact.arguments)
    used |= dict.fromkeys(objects[name]["at"] for name in list(used) if name in objects)
    if any(name in draft.objects or (name in objects and name in draft.places) for name in used):
        raise Dead  # the scene has another thing of that name
    for name in used:
        entry = places.get(name)
        if entry and name in draft.places:
            if draft.places[name].kind != entry["kind"]:
                raise Dead
        elif entry:
            draft.keep_place(name, _sort(name, entry["kind"]))
        else:
            draft.objects[name], draft.at[name] = SORT, objects[name]["at"]
    said: list[Said] = []
    for goal in goals:
        predicate, arguments = goal.fact.predicate, goal.fact.arguments
        if predicate == "at":
            _group(said, clauses["move"], "x", arguments[0], p=(arguments[1],))
        elif predicate == "dirty" and arguments[0] in objects:
            _group(said, clauses["clean"], "x", arguments[0])
        elif predicate == "dirty":
            said.append(Said(clauses["wipe"], {"p": (arguments[0],)}, ""))
        else:
            name, role = _CLAUSES[predicate, goal.holds]
            said.append(Said(clauses[name], {role: (arguments[0],)}, ""))
    mentioned: set[str] = set()
    for s in said:
        names = [name for group in s.names.values() for name in group]
        for condition in s.clause.start:
            for name in names:
                if name not in mentioned or condition.fact.predicate == "dirty":
                    draft.set(Condition(Fact(condition.fact.predicate, (name,)), condition.holds))
        mentioned |= set(names)
    if not said:
        raise Dead
    title = activity["activity"].replace("_", " ").capitalize() if _TITLES.match(activity["activity"]) else ""
    return activity["activity"], title, said


def _without_lone_numbers(activity: dict[str, Any], goals: list[Condition]) -> tuple[dict[str, Any], list[Condition]]:
    """ "candle 2" is "the candle" where no other candle is in the scene."""
    at = {entry["name"]: entry["at"] for entry in activity["objects"]}
    used = {name for goal in goals for name in goal.fact.arguments}
    used |= {at[name] for name in used if name in at}
    nouns = [re.sub(r" \d+$", "", name) for name in used]
    short = {name: noun for name, noun in zip(used, nouns, strict=True) if nouns.count(noun) == 1}
    renamed = {
        key: [{k: short.get(v, v) if isinstance(v, str) else v for k, v in entry.items()} for entry in activity[key]]
        for key in ("objects", "places")
    }
    bound = [
        Condition(Fact(g.fact.predicate, tuple(short.get(a, a) for a in g.fact.arguments)), g.holds) for g in goals
    ]
    return {**activity, **renamed}, bound


def _group(said: list[Said], clause: Clause, role: str, name: str, **others: tuple[str, ...]) -> None:
    """ "Put candle 1 and candle 2 on the table": neighbours with one target are one clause."""
    last = said[-1] if said else None
    if last and last.clause is clause and all(last.names.get(k) == v for k, v in others.items()):
        said[-1] = Said(clause, {**last.names, role: (*last.names[role], name)}, "")
    else:
        said.append(Said(clause, {role: (name,), **others}, ""))


def _sort(name: str, kind: str) -> PlaceSort:
    opens = kind in ("container", "appliance") and not re.search(r"\b(window|door|gate)( \d+)?$", name)
    inside = opens or _IN.search(name)
    at = re.search(r"\b(window|door|gate|switch|radio|TV|fan|lamp|alarm)( \d+)?$", name)
    return PlaceSort(SORT, kind, "at" if at else "in" if inside else "on", (name,))


def is_held_out(activity: str) -> bool:
    """About one in seven, by name."""
    return hashlib.sha256(activity.encode()).digest()[0] % 7 == 0


@lru_cache
def _activities() -> tuple[dict[str, Any], ...]:
    lines = shared_file(DATA).read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line) for line in lines if line)
