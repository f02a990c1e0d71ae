"""The order in which packs are learned from: a pure function of the seed, so that a resumed run continues in it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..language.plan import Skill, SkillSet
from ..learning.corpus import Encoder, Lesson
from ..learning.packing import Example, Pack, draw_packs, families, fill, make_pack

DROP_SHARE = 1 / 3  # of varied skill lists: half of the skills that no plan needs are left out


@dataclass(frozen=True)
class Mix:
    """What packs hold.

    Attributes:
        pack_tokens: rows per pass, about.
        vary_share: packs in which the skill list is shuffled, some of them also shortened.
        general_share: packs of general text instead of tasks.
    """

    pack_tokens: int
    vary_share: float = 0.25
    general_share: float = 0.05


@dataclass(frozen=True)
class _Plan:
    lessons: tuple[int, ...]  # their indices; empty: general text
    seed: str


class PackStream:
    """Packs of the training split, epoch after epoch."""

    def __init__(
        self,
        lessons: Sequence[Lesson],
        skills: Mapping[str, SkillSet],
        encoder: Encoder,
        general: Sequence[Example],
        mix: Mix,
        seed: int,
    ) -> None:
        self._lessons, self._skills, self._encoder, self._mix, self._seed = lessons, skills, encoder, mix, seed
        self._general = general
        self.examples = [encoder.encode(lesson, skills[lesson.domain]) for lesson in lessons]
        self._families = families(self.examples, [lesson.domain for lesson in lessons])
        self._epoch, self._plans = -1, list[_Plan]()

    def packs_in_epoch(self, epoch: int) -> int:
        return len(self._plan(epoch))

    def at(self, epoch: int, index: int) -> Pack:
        """Pack ``index`` of ``epoch``; reproducible, in any order."""
        plan = self._plan(epoch)[index]
        rng = random.Random(plan.seed)
        if not plan.lessons:
            return self._general_pack(rng)
        lessons = [self._lessons[i] for i in plan.lessons]
        if rng.random() >= self._mix.vary_share:
            return make_pack([self.examples[i] for i in plan.lessons])
        varied = {}
        for domain in sorted({lesson.domain for lesson in lessons}):
            needed = set().union(*(lesson.skill_names for lesson in lessons if lesson.domain == domain))
            varied[domain] = vary_skills(self._skills[domain], needed, rng)
        return make_pack([self._encoder.encode(lesson, varied[lesson.domain]) for lesson in lessons])

    def _plan(self, epoch: int) -> list[_Plan]:
        if epoch != self._epoch:
            self._epoch, self._plans = epoch, self._make_plan(epoch)
        return self._plans

    def _make_plan(self, epoch: int) -> list[_Plan]:
        rng = random.Random(f"{self._seed}/{epoch}")
        packs = [tuple(pack) for pack in draw_packs(self.examples, self._families, self._mix.pack_tokens, rng)]
        if self._general and self._mix.general_share > 0:
            every = max(1, round(1 / self._mix.general_share) - 1)
            for position in range(len(packs) // every, 0, -1):
                packs.insert(position * every, ())
        return [_Plan(pack, f"{self._seed}/{epoch}/{index}") for index, pack in enumerate(packs)]

    def _general_pack(self, rng: random.Random) -> Pack:
        chosen, rows = [], 0
        for example in rng.sample(self._general, len(self._general)):
            if chosen and rows + len(example) > self._mix.pack_tokens:
                break
            chosen.append(example)
            rows += len(example)
        return make_pack(chosen, distil=True)


def validation_packs(examples: Sequence[Example], pack_tokens: int, most: int) -> list[Pack]:
    """Packs of at most ``most`` of ``examples``, evenly spaced."""
    step = max(1.0, len(examples) / most)
    chosen = [examples[int(i * step)] for i in range(min(most, len(examples)))]
    chosen.sort(key=lambda example: example.order)
    return [
        make_pack([chosen[i] for i in pack]) for pack in fill(chosen, [[i] for i in range(len(chosen))], pack_tokens)
    ]


def vary_skills(skills: SkillSet, needed: Iterable[str], rng: random.Random) -> SkillSet:
    """The skills in another order and, in a third of the cases, without half of those that are not needed."""
    needed = set(needed)
    chosen: list[Skill] = list(skills)
    if rng.random() < DROP_SHARE:
        spare = [skill for skill in chosen if skill.name not in needed]
        dropped = {skill.name for skill in rng.sample(spare, len(spare) // 2)}
        chosen = [skill for skill in chosen if skill.name not in dropped]
    rng.shuffle(chosen)
    return dataclasses.replace(skills, skills=tuple(chosen))
