"""Activities drawn into a scene: their things, where those are, and what is so before."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from ..language.plan import Condition, Fact
from .domain import USER, Activity, Clause, Domain
from .draft import Dead, Draft
from .wording import Said

_HOLDING_SHARE = 0.08
_CARRYING = ("move", "give", "bring_me")  # clauses that may begin with the thing in the robot's hand


class Drawing:
    """Puts activities into one draft, one after the other. Everything may raise ``Dead``: then draw again."""

    def __init__(self, domain: Domain, draft: Draft) -> None:
        self.domain, self.draft, self.random = domain, draft, draft.random
        self._reuse = 0.0  # how readily an activity takes what others have put into the scene

    def add(self, activity: Activity) -> list[Said]:
        """Draw things for every role and make so what must be so before; the clauses, filled."""
        self._reuse = 0.6 if self.draft.places else 0.0
        names: dict[str, tuple[str, ...]] = {}
        for role, wanted in activity.roles.items():
            names[role] = self._things(wanted, names, fresh=role in activity.at)
        spread = self.random.random() < 0.5
        for role, where in activity.at.items():
            for name in names[role]:
                self.draft.at[name] = names[where][0] if where in names else self._place_of(where)
        said = []
        mentioned: set[str] = set()
        for clause, arguments in activity.clauses:
            filled = {role: names[argument] for role, argument in zip(clause.roles, arguments, strict=True)}
            said.append(Said(clause, filled, ""))
            self._prepare(clause, filled, mentioned, spread)
            mentioned |= {name for group in filled.values() for name in group}
        return said

    def hold(self, said: list[Said]) -> None:
        """Now and then the robot has the first thing in its hand already."""
        first = said[0]
        things = first.names.get("x", ())
        if self.random.random() > _HOLDING_SHARE or len(things) != 1 or things[0] not in self.draft.objects:
            return
        target = first.names.get("p", first.names.get("a", ("",)))[0]
        again = any(things[0] in group for s in said[1:] for group in s.names.values())
        if first.clause.name in _CARRYING and not again:
            if first.clause.by:
                self.draft.set(Condition(Fact("closed", (target,)), False))
            self.draft.at.pop(things[0], None)
            self.draft.holding = things[0]

    def _place_of(self, sort: str) -> str:
        sorts = self.domain.place_sorts(sort)
        there = [n for n, s in self.draft.places.items() if s.name in sorts and n not in self.draft.reserved]
        return there[0] if there else self.draft.add_place(sorts)

    def _things(self, wanted: Any, names: Mapping[str, tuple[str, ...]], fresh: bool) -> tuple[str, ...]:
        """What a role stands for, by the expression of the activity; ``fresh``: nothing that is there already."""
        draft, domain = self.draft, self.domain
        if isinstance(wanted, list) and len(wanted) == 2 and isinstance(wanted[1], int):
            sort = self.random.choice(draft.sorts_of_things(wanted[0]))  # several of one sort: the cup and the plate
            return tuple(draft.add_object((sort,)) for _ in range(wanted[1]))
        taken = tuple(name for group in names.values() for name in group)
        if isinstance(wanted, str):
            word, _, role = wanted.rstrip(")").partition("(")
            if wanted == USER:
                return (draft.keep_place(USER, domain.places[USER]),)
            if wanted in domain.values:
                return (self.random.choice(domain.values[wanted]),)
            if word == "like":
                return (draft.add_object((draft.objects[names[role][0]],)),)
            if word in ("home", "spot", "store"):
                return (draft.some_place(self._spots(word, names[role][0]), taken, self._reuse),)
            if wanted in domain.places or wanted in domain.groups:
                return (draft.some_place(domain.place_sorts(wanted), taken, self._reuse),)
        if isinstance(wanted, list) and all(w in domain.places or w in domain.groups for w in wanted):
            sorts = tuple(sort for w in wanted for sort in domain.place_sorts(w))
            return (draft.some_place(sorts, taken, self._reuse),)
        sorts = draft.sorts_of_things(wanted)
        there = [n for n, sort in draft.objects.items() if sort in sorts and n not in taken and n in draft.at]
        if there and not fresh and self.random.random() < self._reuse:
            return (self.random.choice(there),)
        return (draft.add_object(sorts),)

    def _spots(self, word: str, thing: str) -> tuple[str, ...]:
        spots = self.draft.spots_for(thing, homes=word != "spot")
        if word == "store":
            spots = tuple(s for s in spots if self.domain.skills.is_a(self.domain.places[s].kind, "container"))
        if not spots:
            raise Dead
        return spots

    def _prepare(self, clause: Clause, filled: dict[str, tuple[str, ...]], mentioned: set[str], spread: bool) -> None:
        draft = self.draft
        if clause.each:
            self._fill_pattern(clause, filled)
        targets = tuple(name for group in filled.values() for name in group if name in draft.places)
        for group in filled.values():
            things = [name for name in group if name in draft.objects]
            for index, name in enumerate(things):
                if index and not spread and things[0] in draft.at:
                    draft.at.setdefault(name, draft.at[things[0]])
                draft.put_somewhere(name, targets)
        for condition in clause.start:
            for fact in _ground(condition.fact, filled):
                # What an earlier clause speaks of is as that clause leaves it; but what is dirty was dirty before.
                if fact.arguments[0] not in mentioned or fact.predicate == "dirty":
                    draft.set(Condition(fact, condition.holds))

    def _fill_pattern(self, clause: Clause, filled: dict[str, tuple[str, ...]]) -> None:
        """Things of which the pattern holds: on the table, or switched on."""
        each = clause.each
        assert each is not None
        fact, draft = each.pattern.fact, self.draft
        for _ in range(self.random.randint(each.low, each.high)):
            if fact.predicate == "at":
                place = filled[fact.arguments[1]][0]
                sort = draft.places[place].name
                goals = [draft.places[group[0]].name for group in filled.values() if group[0] in draft.places]
                spots = self.domain.spots
                things = [s for s in spots if all(g in (*spots[s], *self.domain.homes[s]) for g in goals)]
                name = draft.add_object(tuple(things) or tuple(s for s in spots if sort in spots[s]))
                draft.at[name] = place
                draft.reserved.add(place)
            else:
                sorts = self.domain.groups.get(f"all {fact.predicate}", ())
                things = [s for s in sorts if s in self.domain.things]
                name = draft.add_object(tuple(things)) if things else draft.add_place(sorts)
                if name in draft.objects:
                    draft.put_somewhere(name)
                draft.set(Condition(Fact(fact.predicate, (name,))))


def _ground(fact: Fact, names: Mapping[str, tuple[str, ...]]) -> Iterator[Fact]:
    longest = max(len(names[argument]) for argument in fact.arguments)
    for index in range(longest):
        yield Fact(fact.predicate, tuple(names[a][min(index, len(names[a]) - 1)] for a in fact.arguments))


def about(chance: random.Random, low: int, high: int, least: int) -> int:
    """A number from ``low`` to ``high``, the middle likelier, and never below ``least``."""
    return max(least, min(chance.randint(low, high), chance.randint(low, high) + 1))
