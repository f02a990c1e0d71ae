"""A scene in the making: things placed one by one, then shuffled into the mapping that ``language.scene`` reads."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..language.plan import Condition, Fact
from .domain import ANY, Domain, PlaceSort


class Dead(Exception):
    """This draw leads nowhere: draw again."""


@dataclass
class Draft:
    """What is placed so far.

    Attributes:
        places: name → its sort.
        objects: name → the sort of thing it is.
        at: object → place. states: name → what it is (closed, dirty).
        fixed: facts that chance must leave alone, true or not.
    """

    domain: Domain
    random: random.Random
    places: dict[str, PlaceSort] = field(default_factory=dict)
    objects: dict[str, str] = field(default_factory=dict)
    at: dict[str, str] = field(default_factory=dict)
    states: dict[str, set[str]] = field(default_factory=dict)
    fixed: set[Fact] = field(default_factory=set)
    reserved: set[str] = field(default_factory=set)  # places where chance puts nothing
    robot_at: str = ""
    holding: str = ""

    def copy(self) -> Draft:
        """A snapshot for ``restore``."""
        states = {name: set(words) for name, words in self.states.items()}
        return replace(
            self,
            places=dict(self.places),
            objects=dict(self.objects),
            at=dict(self.at),
            states=states,
            fixed=set(self.fixed),
            reserved=set(self.reserved),
        )

    def restore(self, snapshot: Draft) -> None:
        """Back to how things were when ``snapshot`` was taken."""
        for part in ("places", "objects", "at", "states", "fixed", "reserved"):
            setattr(self, part, getattr(snapshot, part))

    # -- drawing things ------------------------------------------------------------------------------------------------

    def add_place(self, sorts: tuple[str, ...], avoid: tuple[str, ...] = ()) -> str:
        """A new place of one of ``sorts``. Raises ``Dead``."""
        choices = [(sort, name) for sort in sorts for name in self.domain.places[sort].names]
        choices = [(s, n) for s, n in choices if n not in self.places and n not in self.objects and n not in avoid]
        if not choices:
            raise Dead
        sort, name = self.random.choice(choices)
        return self.keep_place(name, self.domain.places[sort])

    def keep_place(self, name: str, sort: PlaceSort) -> str:
        self.places[name] = sort
        return name

    def some_place(self, sorts: tuple[str, ...], avoid: tuple[str, ...] = (), reuse: float = 0.4) -> str:
        """A place of one of ``sorts``, one that is there already with chance ``reuse``. Raises ``Dead``."""
        there = [n for n, s in self.places.items() if s.name in sorts and n not in avoid and n not in self.reserved]
        only = bool(there) and any(sort in self.domain.single for sort in sorts)
        if there and (only or self.random.random() < reuse):
            return self.random.choice(there)
        try:
            return self.add_place(sorts, avoid)
        except Dead:
            if there:
                return self.random.choice(there)
            raise

    def add_object(self, sorts: tuple[str, ...], like: str = "") -> str:
        """A new object of one of ``sorts``; like ``like``: the same noun with another adjective. Raises ``Dead``."""
        domain = self.domain
        sort = self.objects[like] if like else self.random.choice(sorts)
        adjectives = domain.adjectives.get(sort, ())
        for _ in range(20):
            noun = like.split(" ", 1)[-1] if like else self.random.choice(domain.things[sort])
            name = noun
            if adjectives and (like or self.random.random() < 0.45):
                adjective = self.random.choice(adjectives)
                # "old empty bottle" and "blue empty bottle" would be odd: one word before a noun of one or two.
                name = f"{adjective} {noun}" if noun.count(" ") < 1 and not noun.startswith(adjective) else noun
            nouns = {other.split(" ", 1)[-1] for other in self.objects} | set(self.objects)
            unclear = not like and (name in nouns or noun in self.objects)
            if name not in self.objects and name not in self.places and not unclear:
                self.objects[name] = sort
                return name
        raise Dead

    def sorts_of_things(self, expression: Any) -> tuple[str, ...]:
        names = [expression] if isinstance(expression, str) else list(expression)
        return tuple(self.domain.things) if ANY in names else tuple(names)

    def spots_for(self, thing: str, homes: bool = False) -> tuple[str, ...]:
        """Sorts of place for ``thing``: where it may be, or where it is put away."""
        return (self.domain.homes if homes else self.domain.spots)[self.objects[thing]]

    # -- facts ---------------------------------------------------------------------------------------------------------

    def set(self, condition: Condition) -> None:
        """Make ``condition`` so. Raises ``Dead`` where the opposite was asked for before."""
        fact = condition.fact
        holds = self.holds(fact)
        if fact in self.fixed and holds != condition.holds:
            raise Dead
        self.fixed.add(fact)
        if len(fact.arguments) == 1 and condition.holds:
            self.states.setdefault(fact.arguments[0], set()).add(fact.predicate)
        elif len(fact.arguments) == 1:
            self.states.get(fact.arguments[0], set()).discard(fact.predicate)
        elif fact.predicate == "at" and condition.holds:
            self.at[fact.arguments[0]] = fact.arguments[1]

    def holds(self, fact: Fact) -> bool:
        if fact.predicate == "at":
            return self.at.get(fact.arguments[0]) == fact.arguments[1]
        if fact.predicate == "open":
            return fact.arguments[0] in self.places and "closed" not in self.states.get(fact.arguments[0], set())
        return fact.predicate in self.states.get(fact.arguments[0], set())

    def put_somewhere(self, thing: str, avoid: tuple[str, ...] = (), reuse: float = 0.5) -> None:
        """Give ``thing`` a place, unless it has one. Raises ``Dead``."""
        if thing not in self.at and thing != self.holding:
            self.at[thing] = self.some_place(self.spots_for(thing), avoid, reuse)

    # -- the rest of the scene -----------------------------------------------------------------------------------------

    def fill(self, objects: int, places: int) -> None:
        """Add what nobody asked for: places, objects, states by chance, and where the robot is."""
        for _ in range(30):
            if len(self.places) >= places:
                break
            sort = self.random.choice(list(self.domain.places))
            single = sort in self.domain.single and any(s.name == sort for s in self.places.values())
            if sort != "user" and not single:
                self._try(lambda sort=sort: self.add_place((sort,)))
        for _ in range(30):
            if len(self.objects) >= objects:
                break
            self._try(self._add_distractor)
        for name, place in self.places.items():
            self._chance(name, place.kind, place.name)
        for name, sort_name in self.objects.items():
            self._chance(name, self.domain.kinds.get(sort_name, "object"), sort_name)
        if not self.robot_at:
            self.robot_at = self.random.choice([n for n, s in self.places.items() if s.kind != "person"] or [""])
        if not self.robot_at:
            raise Dead

    def _try(self, action: Any) -> None:
        with contextlib.suppress(Dead):
            action()

    def _add_distractor(self) -> None:
        nouns = [name.split(" ", 1)[-1] for name in self.objects]
        twins = [
            name
            for name, noun in zip(self.objects, nouns, strict=True)
            if name.split(" ", 1)[0] in self.domain.adjectives.get(self.objects[name], ()) and nouns.count(noun) == 1
        ]
        if twins and self.random.random() < 0.2:
            name = self.add_object((), like=self.random.choice(twins))
        else:
            # The place first, or most would crowd into the one place that takes everything.
            place = self.random.choice([n for n in self.places if n not in self.reserved] or [""])
            sorts = [s for s in self.domain.spots if place and self.places[place].name in self._found(s)]
            if not sorts:
                raise Dead
            name = self.add_object(tuple(sorts))
            self.at[name] = place
            return
        spots = self.spots_for(name)
        there = [n for n, s in self.places.items() if s.name in spots and n not in self.reserved]
        if not there:
            del self.objects[name]
            raise Dead
        self.at[name] = self.random.choice(there)

    def _found(self, sort: str) -> tuple[str, ...]:
        return (*self.domain.spots[sort], *self.domain.also.get(sort, ()))

    def _chance(self, name: str, kind: str, sort: str) -> None:
        for key in dict.fromkeys((kind, sort)):
            for state in self.domain.states.get(key, ()):
                word, _, share = state.partition(" ")
                if Fact(word, (name,)) not in self.fixed and self.random.random() < float(share or 0.5):
                    self.states.setdefault(name, set()).add(word)

    def mapping(self) -> Mapping[str, Any]:
        """The scene as task files hold it, things in random order."""
        places, objects = list(self.places), list(self.objects)
        self.random.shuffle(places)
        self.random.shuffle(objects)
        robot = {"at": self.robot_at} | ({"holding": self.holding} if self.holding else {})
        listed: dict[str, list[Any]] = {"places": [], "objects": []}
        for name in places:
            kind = self.places[name].kind
            listed["places"].append(_entry(name, kind, "place", "", self.states.get(name, set())))
        for name in objects:
            kind = self.domain.kinds.get(self.objects[name], "object")
            listed["objects"].append(_entry(name, kind, "object", self.at.get(name, ""), self.states.get(name, set())))
        return {"robot": robot, **{key: entries for key, entries in listed.items() if entries}}


def _entry(name: str, kind: str, basic: str, at: str, states: set[str]) -> Any:
    entry: dict[str, Any] = {"name": name}
    entry |= {"kind": kind} if kind != basic else {}
    entry |= {"at": at} if at else {}
    entry |= {"is": sorted(states)} if states else {}
    return entry if len(entry) > 1 else name
