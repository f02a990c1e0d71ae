"""Tasks (JSON lines) → training sequences, exactly as the node would feed them and the model would answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..language.plan import History, Scene, SkillSet
from ..language.prompt import build_prompt, plan_text
from ..language.scene import scene_from_mapping
from ..language.skills import load_skills
from ..language.tokenizer import Tokenizer
from ..resources import shared_file
from ..tasks.task import TRAIN, read_tasks
from .packing import Example


class CorpusError(ValueError):
    """Tasks that cannot be trained on; the message names file and line."""


@dataclass(frozen=True)
class Lesson:
    """What of a task is learned from, its scene read: the plan is ``go_to(fridge)``, one skill per entry."""

    id: str
    domain: str
    split: str
    instruction: str
    scene: Scene
    history: History
    plan: tuple[str, ...]

    @property
    def skill_names(self) -> set[str]:
        """Skills that the plan and the history speak of."""
        lines = [*self.plan, *self.history.done, self.history.failed]
        return {line.split("(", 1)[0].strip() for line in lines if line}


@dataclass(frozen=True)
class Corpus:
    """All lessons, their robots' skills by domain, and a hash of the files they were read from."""

    lessons: tuple[Lesson, ...]
    skills: Mapping[str, SkillSet]
    fingerprint: str

    def of(self, split: str) -> list[Lesson]:
        return [lesson for lesson in self.lessons if lesson.split == split]


def read_corpus(place: Path) -> Corpus:
    """Read a file, or every ``*.jsonl`` of a directory; skill files come from ``skills`` beside, else the package.

    Raises:
        CorpusError: there is none, or nothing to learn from.
        ValueError: a line, a skill file or a scene is wrong; the message names it.
    """
    directory = place.parent if place.is_file() else place
    files = [place] if place.is_file() else sorted(place.glob("*.jsonl"))
    if not files:
        raise CorpusError(f"{directory} holds no task file (*.jsonl): make the tasks first, or name another directory")
    digest = hashlib.sha256()
    skills: dict[str, SkillSet] = {}
    lessons: list[Lesson] = []
    for path in files:
        digest.update(path.read_bytes())
        for task in read_tasks(path):
            where = f"task {task.id} in {path}"
            if task.domain not in skills:
                skills[task.domain] = _load_skills(directory, task.domain, where, digest.update)
            if not task.plan:
                raise CorpusError(f"{where} has no plan to learn: make the tasks again")
            scene = scene_from_mapping(task.scene, where, skills[task.domain])
            lessons.append(Lesson(task.id, task.domain, task.split, task.instruction, scene, task.history, task.plan))
    if not any(lesson.split == TRAIN for lesson in lessons):
        raise CorpusError(f"no task in {place} is of split {TRAIN!r}: there is nothing to learn from")
    return Corpus(tuple(lessons), skills, digest.hexdigest()[:16])


class Encoder:
    """Task → ids, with one model's tokenizer and chat template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.end_of_turn = end_of_turn(tokenizer)

    def encode(self, lesson: Lesson, skills: SkillSet) -> Example:
        """Prompt ids as the node feeds them, then the answer's ids and the end of the turn."""
        prompt = build_prompt(lesson.instruction, skills, lesson.scene, lesson.history, examples=False)
        answer = plan_text(lesson.plan)
        if not answer.startswith(prompt.answer_start):
            raise CorpusError(f"the answer {answer[:40]!r} does not begin with {prompt.answer_start!r}")
        ids = self._tokenizer.encode_chat(prompt.messages, prompt.answer_start)
        rest = continuation(self._tokenizer, prompt.answer_start, answer[len(prompt.answer_start) :])
        return Example(np.array([*ids, *rest, self.end_of_turn], np.int32), len(ids))

    def encode_chat(self, user: str) -> tuple[int, ...]:
        return self._tokenizer.encode_chat([{"role": "user", "content": user}])

    def encode_text(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)


def continuation(tokenizer: Tokenizer, start: str, rest: str) -> list[int]:
    """Ids of ``rest`` behind ``start``, whose own ids are given: the text's usual ids where the boundary allows."""
    whole, head = tokenizer.encode(start + rest), tokenizer.encode(start)
    return whole[len(head) :] if whole[: len(head)] == head else tokenizer.encode(rest)


def end_of_turn(tokenizer: Tokenizer) -> int:
    """The stop token with which the chat template ends an assistant's turn.

    Raises:
        CorpusError: the model has no stop token.
    """
    ids = tokenizer.encode_chat([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    found = [i for i in ids if i in tokenizer.stop_ids] or sorted(tokenizer.stop_ids)
    if not found:
        raise CorpusError("the target's tokenizer names no end-of-sequence token, so no answer could ever end")
    return found[-1]


def _load_skills(directory: Path, domain: str, where: str, update: Callable[[bytes], None]) -> SkillSet:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", domain):
        raise CorpusError(f"{where} is of domain {domain!r}, which is no skill file's name: make the tasks again")
    path = Path(directory) / "skills" / f"{domain}.yaml"
    if not path.is_file():
        path = shared_file(f"config/skills/{domain}.yaml")
    update(path.read_bytes())
    return load_skills(path)
