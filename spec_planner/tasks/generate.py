"""Tasks drawn one by one: an activity, its things, a scene around them, an expert's plan, an instruction."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..language.plan import Condition, Fact, History, Scene
from ..language.scene import scene_from_mapping
from ..world.state import State, reached, start
from . import behavior
from .blind import blind_plan
from .domain import DOMAINS, USER, Activity, Clause, Domain, load_domain
from .draft import Dead, Draft
from .histories import interrupted
from .planning import Expert
from .task import ACTIVITY_HELD_OUT, SPLITS, TRAIN, WORDING_HELD_OUT, Task, TaskError
from .wording import Instruction, Said, Speaker

BLIND_SHARE, HISTORY_SHARE, BEHAVIOR_SHARE = 0.12, 0.15, 0.35
BLIND, INTERRUPTED, PLAIN = "blind", "interrupted", "plain"  # without a scene; with a history; with a scene only
_TRIES = 2000  # draws in a row that may come to nothing


@dataclass(frozen=True)
class SubGoal:
    """One ground thing to want: what to make true on the way, then the goal, then steps that no fact tells of."""

    by: tuple[Condition, ...]
    goal: tuple[Condition, ...]
    steps: tuple[str, ...] = ()


def generate(
    count: int,
    domain: str | None = None,
    seed: int = 0,
    split: str = TRAIN,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Task]:
    """``count`` tasks of one split; the same arguments give the same tasks.

    Args:
        domain: household (BEHAVIOR's activities among them), warehouse, lab or field; None deals them out 2:1:1:1.
        progress: called with the number of tasks made so far.

    Raises:
        TaskError: no such split or domain, or the planner is not installed.
    """
    if split not in SPLITS:
        raise TaskError(f"{split!r} is no split: use one of {', '.join(SPLITS)}")
    if domain is not None and domain not in DOMAINS:
        raise TaskError(f"{domain!r} is no domain: use one of {', '.join(DOMAINS)}")
    chance = random.Random(f"{seed} {split} {domain}")
    dealt = [domain] if domain else [DOMAINS[0], *DOMAINS]
    seen: set[str] = set()
    made = fruitless = 0
    form = _form(chance)
    while made < count:
        name = dealt[made % len(dealt)]
        try:
            drawing = _Drawing(load_domain(name), expert_for(name), chance, split)
            task = drawing.task(f"{name}-{split}-{seed}-{made}", form)
        except Dead:
            task = None
        # The same text in the same scene teaches nothing new, and one task must not be in two splits.
        key = f"{task.instruction} {task.scene} {task.history}" if task else ""
        if task is None or key in seen or not _belongs(key, split):
            fruitless += 1
            if fruitless > _TRIES:
                raise TaskError(f"no more different tasks of {name} for {split}: ask for fewer than {count}")
            continue
        fruitless, form = 0, _form(chance)
        seen.add(key)
        made += 1
        yield task
        if progress:
            progress(made)


def _form(chance: random.Random) -> str:
    return chance.choices((BLIND, INTERRUPTED, PLAIN), (BLIND_SHARE, HISTORY_SHARE, 1 - BLIND_SHARE - HISTORY_SHARE))[0]


def _belongs(key: str, split: str) -> bool:
    """Training and validation draw from the same activities and phrases: a tenth of all texts is validation's."""
    if split not in (TRAIN, "validation"):
        return True
    return (hashlib.sha256(key.encode()).digest()[0] < 26) == (split != TRAIN)


@lru_cache
def expert_for(domain: str) -> Expert:
    return Expert(load_domain(domain).skills)


class _Drawing:
    """One draw. Every step may raise ``Dead``: then draw again."""

    def __init__(self, domain: Domain, expert: Expert, chance: random.Random, split: str) -> None:
        self.domain, self.expert, self.random, self.split = domain, expert, chance, split
        self.draft = Draft(domain, chance)

    def task(self, identity: str, form: str) -> Task:
        chance, draft = self.random, self.draft
        held_out = self.split == ACTIVITY_HELD_OUT
        if self.domain.name == "household" and chance.random() < BEHAVIOR_SHARE and form != BLIND:
            name, title, said = behavior.draw(draft, chance, self.domain.clauses, held_out)
        else:
            title = ""
            activity = chance.choice(_activities(self.domain, held_out))
            name = activity.name
            said = self._draw(activity)
        if form == BLIND:
            return self._blind(identity, name, said)
        self._hold(said)
        draft.fill(_about(chance, 3, 7, len(draft.objects) + 1), _about(chance, 4, 7, len(draft.places) + 1))
        mapping = draft.mapping()
        scene = scene_from_mapping(mapping, name, self.domain.skills)
        state = start(scene, self.domain.skills)
        said = [self._with_source(s, moved) for s, moved in _moved_before(said)]
        goals = [goal for s in said for goal in self._subgoals(s, scene, state)]
        constants = self._constants(said)
        stages = [stage for goal in goals for stage in (*goal.by, *goal.goal, *goal.steps)]
        found = self.expert.plan(scene, state, stages, constants)
        goal = _final_goal(goals, found[1]) if found else ()
        if not found or len(found[0]) < 2 or not goal or not self._each_matters(goals, state):
            raise Dead
        plan, past = found[0], History()
        instruction = Speaker(self.domain, draft, self.split == WORDING_HELD_OUT).say(said)
        text = f"{title}: {instruction.text}" if title and "frame" in instruction.wording and chance.random() < 0.2 else instruction.text
        if form == INTERRUPTED:
            later = interrupted(self.domain, self.expert, scene, mapping, plan, stages, goal, constants, any(s.clause.each for s in said), chance)
            if later is None:
                raise Dead
            mapping, plan, past = later
        return Task(
            identity,
            self.domain.name,
            name,
            instruction.wording,
            self.split,
            text,
            mapping,
            tuple(map(str, goal)),
            plan,
            past,
        )

    def _blind(self, identity: str, name: str, said: list[Said]) -> Task:
        for _ in range(20):
            instruction = Speaker(self.domain, self.draft, self.split == WORDING_HELD_OUT, True).say(
                [self._with_source(s, moved) for s, moved in _moved_before(said)]
            )
            plan = blind_plan(self.domain, said, instruction, self.draft, self._constants(said))
            if plan and 1 < len(plan) <= 14:
                return Task(
                    identity, self.domain.name, name, instruction.wording, self.split, instruction.text, {}, (), plan
                )
        raise Dead

    # -- things --------------------------------------------------------------------------------------------------------

    def _draw(self, activity: Activity) -> list[Said]:
        """Things for every role, where they must be, and what must be so before."""
        names: dict[str, tuple[str, ...]] = {}
        for role, wanted in activity.roles.items():
            names[role] = self._things(wanted, names)
        spread = self.random.random() < 0.5
        for role, where in activity.at.items():
            for name in names[role]:
                place = names[where][0] if where in names else self._at_sort(where)
                self.draft.at[name] = place
        said = []
        mentioned: set[str] = set()
        for clause, arguments in activity.clauses:
            filled = {role: names[argument] for role, argument in zip(clause.roles, arguments, strict=True)}
            said.append(Said(clause, filled, ""))
            self._prepare(clause, filled, mentioned, spread)
            mentioned |= {name for group in filled.values() for name in group}
        return said

    def _at_sort(self, sort: str) -> str:
        there = [n for n, s in self.draft.places.items() if s.name == sort]
        return there[0] if there else self.draft.add_place(self.domain.place_sorts(sort))

    def _things(self, wanted: Any, names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        draft, domain = self.draft, self.domain
        if isinstance(wanted, list) and len(wanted) == 2 and isinstance(wanted[1], int):
            sorts = draft.sorts_of_things(wanted[0])
            sort = self.random.choice(sorts)  # several of one sort: the cup and the plate
            return tuple(draft.add_object((sort,)) for _ in range(wanted[1]))
        taken = tuple(name for group in names.values() for name in group if name in draft.places)
        if isinstance(wanted, str):
            word, _, role = wanted.rstrip(")").partition("(")
            if wanted == USER:
                return (draft.keep_place(USER, domain.places[USER]),)
            if wanted in domain.values:
                return (self.random.choice(domain.values[wanted]),)
            if word == "like":
                return (draft.add_object((draft.objects[names[role][0]],)),)
            if word in ("home", "spot", "store"):
                spots = draft.spots_for(names[role][0], homes=word != "spot")
                if word == "store":
                    spots = tuple(s for s in spots if domain.skills.is_a(domain.places[s].kind, "container"))
                if not spots:
                    raise Dead
                return (draft.some_place(spots, taken, 0.0),)
            if wanted in domain.places or wanted in domain.groups:
                return (draft.some_place(domain.place_sorts(wanted), taken, 0.0),)
        if isinstance(wanted, list) and all(w in domain.places or w in domain.groups for w in wanted):
            sorts = tuple(sort for w in wanted for sort in domain.place_sorts(w))
            return (draft.some_place(sorts, taken, 0.0),)
        return (draft.add_object(draft.sorts_of_things(wanted)),)

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
                if fact.arguments[0] not in mentioned or condition.fact.predicate == "dirty":
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

    def _hold(self, said: list[Said]) -> None:
        """Now and then the robot has the first thing in its hand already."""
        first = said[0]
        things = first.names.get("x", ())
        if len(said) != len({id(s.clause) for s in said}) or self.random.random() > 0.08 or len(things) != 1:
            return
        target = first.names.get("p", first.names.get("a", ("",)))[0]
        other = any(things[0] in group for s in said[1:] for group in s.names.values())
        if first.clause.name in ("move", "give", "bring_me") and things[0] in self.draft.objects and not other:
            if first.clause.by:
                self.draft.set(Condition(Fact("closed", (target,)), False))
            self.draft.at.pop(things[0], None)
            self.draft.holding = things[0]

    # -- goals ---------------------------------------------------------------------------------------------------------

    def _with_source(self, said: Said, moved: set[str]) -> Said:
        places = {self.draft.at.get(name, "") for name in said.names.get("x", ())}
        known = len(places) == 1 and not moved & set(said.names.get("x", ()))
        return Said(said.clause, said.names, next(iter(places)) if known else "")

    def _subgoals(self, said: Said, scene: Scene, state: State) -> Iterator[SubGoal]:
        clause, names = said.clause, dict(said.names)
        if clause.each:
            things = [thing.name for thing in scene.things if self._matches(clause, names, thing.name, state)]
            things = [thing for thing in things if thing not in names.get(clause.but, ())]
            if not clause.each.low <= len(things) <= clause.each.high + 1:
                raise Dead
            names[clause.each.role] = tuple(things)
        groups = [role for role, group in names.items() if len(group) > 1]
        for index in range(max(len(group) for group in names.values())) if names else ():
            binding = {role: group[index if role in groups else 0] for role, group in names.items()}
            by, goal = (tuple(_bind(c, binding) for c in part) for part in (clause.by, clause.goal))
            steps = tuple(re.sub(r"\b[a-z]+\b(?=[,)])", lambda m, b=binding: b[m.group()], s) for s in clause.steps)
            yield SubGoal(by, goal, steps)

    def _matches(self, clause: Clause, names: Mapping[str, tuple[str, ...]], thing: str, state: State) -> bool:
        assert clause.each is not None
        binding = {role: group[0] for role, group in names.items()} | {clause.each.role: thing}
        return _bind(clause.each.pattern, binding).fact in state

    def _constants(self, said: Sequence[Said]) -> dict[str, str]:
        """Numbers and choices that no goal speaks of, from roles named like the skill's parameter."""
        constants = dict(self.domain.constants)
        for s in said:
            constants |= {role: group[0] for role, group in s.names.items() if role in constants}
        return constants

    def _each_matters(self, goals: list[SubGoal], state: State) -> bool:
        """Nothing is asked for that is so already, but to close what must be opened on the way."""
        return all(
            not goal.goal or not reached(state, goal.goal) or goal.goal[0].fact.predicate == "closed" for goal in goals
        )


def _activities(domain: Domain, held_out: bool) -> list[Activity]:
    return [activity for activity in domain.activities.values() if activity.held_out == held_out]


def _about(chance: random.Random, low: int, high: int, least: int) -> int:
    return max(least, min(chance.randint(low, high), chance.randint(low, high) + 1))


def _moved_before(said: Sequence[Said]) -> Iterator[tuple[Said, set[str]]]:
    moved: set[str] = set()
    for s in said:
        yield s, set(moved)
        if any(condition.fact.predicate in ("at", "has", "holding") for condition in s.clause.goal):
            moved |= set(s.names.get("x", ()))


def _ground(fact: Fact, names: Mapping[str, tuple[str, ...]]) -> Iterator[Fact]:
    longest = max(len(names[argument]) for argument in fact.arguments)
    for index in range(longest):
        yield Fact(fact.predicate, tuple(names[a][min(index, len(names[a]) - 1)] for a in fact.arguments))


def _bind(condition: Condition, binding: Mapping[str, str]) -> Condition:
    fact = condition.fact
    return Condition(Fact(fact.predicate, tuple(binding.get(a, a) for a in fact.arguments)), condition.holds)


def _final_goal(goals: Sequence[SubGoal], state: State) -> tuple[Condition, ...]:
    """What must hold in the end: every sub-goal that a later one does not undo. Empty where a later one undoes it all."""
    wanted = list(dict.fromkeys(condition for goal in goals for condition in goal.goal))
    return tuple(condition for condition in wanted if reached(state, (condition,)))


__all__ = ["Instruction", "SubGoal", "expert_for", "generate"]
