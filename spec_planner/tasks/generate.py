"""Tasks: activities and their things, a scene around them, an expert's plan, an instruction."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ..language.plan import Condition, History, Scene
from ..language.scene import scene_from_mapping
from ..world.state import State, start
from . import behavior
from .blind import blind_plan
from .domain import DOMAINS, Activity, Domain, load_domain
from .draft import Dead, Draft
from .drawing import Drawing, about
from .histories import interrupted
from .planning import MAX_STEPS, Expert
from .subgoals import all_matter, final_goal, subgoals
from .task import ACTIVITY_HELD_OUT, SPLITS, TRAIN, VALIDATION, WORDING_HELD_OUT, Task, TaskError
from .wording import Said, Speaker

BLIND, INTERRUPTED, PLAIN = "blind", "interrupted", "plain"  # no scene; a history; a scene only
SHARES = {BLIND: 0.12, INTERRUPTED: 0.15, PLAIN: 0.73}
BEHAVIOR_SHARE = 0.35  # of household activities
MOST_OBJECTS, MOST_PLACES = 9, 8
_ACTIVITIES = {1: 0.25, 2: 0.45, 3: 0.3}  # in one scene, and how often
_SECOND_WORDING, _TITLE = 0.4, 0.2
_TRIES = 3000  # draws in a row that may come to nothing


def generate(
    count: int,
    domain: str | None = None,
    seed: int = 0,
    split: str = TRAIN,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Task]:
    """``count`` tasks of one split; the same arguments give the same tasks.

    Tasks in one scene follow each other: a trainer that packs them computes the scene once.

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
    parts = {domain: 1} if domain else {name: 2 if name == DOMAINS[0] else 1 for name in DOMAINS}
    made = dict.fromkeys(parts, 0)
    forms = dict.fromkeys(SHARES, 0)
    seen: set[str] = set()
    fruitless = total = 0
    while total < count:
        name = min(parts, key=lambda part: made[part] / parts[part])  # whoever is furthest behind
        form = min(SHARES, key=lambda form: forms[form] / SHARES[form])
        drawn: list[Task] = []
        with contextlib.suppress(Dead):
            drawn = _Scene(load_domain(name), expert_for(name), chance, split, form).tasks()
        # The same text in the same scene teaches nothing new, and one scene must not be in two splits.
        different = {_key(task): task for task in drawn}
        group = [task for key, task in different.items() if key not in seen and _belongs(task, split)]
        fruitless = 0 if group else fruitless + 1
        if fruitless > _TRIES:
            raise TaskError(f"no more different tasks of {name} for {split}: ask for fewer than {count}")
        for task in group[: count - total]:
            seen.add(_key(task))
            made[name] += 1
            forms[form] += 1
            total += 1
            yield replace(task, id=f"{name}-{split}-{seed}-{total}")
            if progress:
                progress(total)


def _key(task: Task) -> str:
    return f"{task.instruction} {task.scene} {task.history}"


def _belongs(task: Task, split: str) -> bool:
    """Training and validation draw from the same activities and phrases: a tenth of all scenes is validation's."""
    if split not in (TRAIN, VALIDATION):
        return True
    key = str(task.scene or task.instruction)
    return (hashlib.sha256(key.encode()).digest()[0] < 26) == (split == VALIDATION)


@lru_cache
def expert_for(domain: str) -> Expert:
    return Expert(load_domain(domain).skills)


@dataclass(frozen=True)
class _Wish:
    """An activity in the scene: its name, its name in words where that says something, its clauses."""

    activity: str
    title: str
    said: tuple[Said, ...]


@dataclass(frozen=True)
class _Solved:
    """A wish with its plan and what must hold in the end."""

    wish: _Wish
    plan: tuple[str, ...]
    goal: tuple[Condition, ...]
    stages: tuple[Condition | str, ...]
    constants: Mapping[str, str]


class _Scene:
    """One scene and the tasks in it."""

    def __init__(self, domain: Domain, expert: Expert, chance: random.Random, split: str, form: str) -> None:
        self.domain, self.expert, self.random, self.split, self.form = domain, expert, chance, split, form
        self.draft = Draft(domain, chance)
        self.drawing = Drawing(domain, self.draft)

    def tasks(self) -> list[Task]:
        """Raises ``Dead`` where this draw leads nowhere."""
        if self.form == BLIND:
            return [self._blind(self._wish())]
        chance, draft = self.random, self.draft
        wishes = [self._wish()]
        if self.form == PLAIN:
            for _ in range(chance.choices(list(_ACTIVITIES), list(_ACTIVITIES.values()))[0] - 1):
                wishes += self._another()
        if len(wishes) == 1:
            self.drawing.hold(list(wishes[0].said))
        draft.fill(about(chance, 3, 7, len(draft.objects) + 1), about(chance, 4, 7, len(draft.places) + 1))
        mapping = draft.mapping()
        scene = scene_from_mapping(mapping, self.domain.name, self.domain.skills)
        state = start(scene, self.domain.skills)
        tasks: list[Task] = []
        for wish in wishes:
            try:
                tasks += self._in_words(self._solve(wish, scene, state), mapping, scene)
            except Dead:
                continue
        return tasks

    def _wish(self) -> _Wish:
        held_out = self.split == ACTIVITY_HELD_OUT
        if self.domain.name == DOMAINS[0] and self.form != BLIND and self.random.random() < BEHAVIOR_SHARE:
            name, title, said = behavior.draw(self.draft, self.random, self.domain.clauses, held_out)
        else:
            activities = _activities(self.domain, held_out)
            # Short ones fit into every scene; drawn alike they would crowd out the others.
            activity = self.random.choices(activities, [1 + 0.4 * (len(a.clauses) > 1) for a in activities])[0]
            name, title, said = activity.name, "", self.drawing.add(activity)
        return _Wish(name, title, tuple(self._with_sources(said)))

    def _another(self) -> list[_Wish]:
        """One more activity in the same scene, if one fits."""
        for _ in range(6):
            before = self.draft.copy()
            try:
                wish = self._wish()
                if len(self.draft.objects) <= MOST_OBJECTS and len(self.draft.places) <= MOST_PLACES:
                    return [wish]
            except Dead:
                pass
            self.draft.restore(before)
        return []

    def _with_sources(self, said: Sequence[Said]) -> Iterator[Said]:
        """Each clause with where its thing is, as long as no earlier clause moves it."""
        moved: set[str] = set()
        for s in said:
            things = set(s.names.get("x", ()))
            places = {self.draft.at.get(name, "") for name in things}
            yield replace(s, source=next(iter(places)) if len(places) == 1 and not moved & things else "")
            if any(c.fact.predicate in ("at", "has", "holding") for c in (*s.clause.by, *s.clause.goal)):
                moved |= things

    def _solve(self, wish: _Wish, scene: Scene, state: State) -> _Solved:
        goals = subgoals(wish.said, scene, state)
        constants = dict(self.domain.constants)
        for s in wish.said:  # a role named like a skill's parameter is that parameter's value
            constants |= {role: group[0] for role, group in s.names.items() if role in constants}
        stages = tuple(stage for goal in goals for stage in goal.stages)
        found = self.expert.plan(scene, state, stages, constants)
        if not found or not found[0] or not all_matter(goals, state):
            raise Dead
        goal = final_goal(goals, found[1])
        if not goal:
            raise Dead
        return _Solved(wish, found[0], goal, stages, constants)

    def _in_words(self, solved: _Solved, mapping: Mapping[str, Any], scene: Scene) -> list[Task]:
        wish, plan, past = solved.wish, solved.plan, History()
        if self.form == INTERRUPTED:
            everything = any(s.clause.each for s in wish.said)
            later = interrupted(
                self.domain,
                self.expert,
                scene,
                plan,
                solved.stages,
                solved.goal,
                solved.constants,
                everything,
                self.random,
            )
            if later is None:
                raise Dead
            mapping, plan, past = later
        wordings = 2 if self.random.random() < _SECOND_WORDING else 1
        return [self._task(wish, mapping, tuple(map(str, solved.goal)), plan, past) for _ in range(wordings)]

    def _task(
        self, wish: _Wish, mapping: Mapping[str, Any], goal: tuple[str, ...], plan: tuple[str, ...], past: History
    ) -> Task:
        instruction = Speaker(self.domain, self.draft, self.split == WORDING_HELD_OUT).say(wish.said)
        text = instruction.text
        if wish.title and instruction.wording.startswith("frame") and self.random.random() < _TITLE:
            text = f"{wish.title}: {text}"
        return Task(
            "", self.domain.name, wish.activity, instruction.wording, self.split, text, mapping, goal, plan, past
        )

    def _blind(self, wish: _Wish) -> Task:
        constants = dict(self.domain.constants)
        for s in wish.said:
            constants |= {role: group[0] for role, group in s.names.items() if role in constants}
        for _ in range(20):  # until the words say what the plan needs to know
            instruction = Speaker(self.domain, self.draft, self.split == WORDING_HELD_OUT, True).say(wish.said)
            plan = blind_plan(self.domain, wish.said, instruction, self.draft, constants)
            if plan and len(plan) <= MAX_STEPS:
                return Task(
                    "",
                    self.domain.name,
                    wish.activity,
                    instruction.wording,
                    self.split,
                    instruction.text,
                    {},
                    (),
                    plan,
                )
        raise Dead


def _activities(domain: Domain, held_out: bool) -> list[Activity]:
    return [activity for activity in domain.activities.values() if activity.held_out == held_out]
