"""Tasks (JSON lines) → training sequences, exactly as the node would feed them and the model would answer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..language.plan import History, Scene, Skill, SkillSet
from ..language.prompt import build_prompt, plan_text
from ..language.tokenizer import Tokenizer
from ..resources import shared_file
from .packing import Example

TRAIN, VALIDATION = "train", "validation"
DROP_SHARE = 1 / 3  # of varied skill lists: half of the skills that no plan needs are left out


class CorpusError(ValueError):
    """Tasks that cannot be trained on; the message names file and line."""


@dataclass(frozen=True)
class Task:
    """One instruction in one scene, with the plan to be learned (``go_to(fridge)``, one skill per entry)."""

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
    """All tasks, their robots' skills by domain, and a hash of the files they were read from."""

    tasks: tuple[Task, ...]
    skills: Mapping[str, SkillSet]
    fingerprint: str

    def of(self, split: str) -> list[Task]:
        return [task for task in self.tasks if task.split == split]


def read_corpus(directory: Path) -> Corpus:
    """Read every ``*.jsonl`` of ``directory``; skill files come from its folder ``skills``, else from the package.

    Raises:
        CorpusError: there is none, or a line is not a task.
        ValueError: a skill file or a scene is wrong; the message names it.
    """
    files = sorted(Path(directory).glob("*.jsonl"))
    if not files:
        raise CorpusError(f"{directory} holds no task file (*.jsonl): make the tasks first, or name another directory")
    digest = hashlib.sha256()
    skills: dict[str, SkillSet] = {}
    tasks: list[Task] = []
    for path in files:
        content = path.read_bytes()
        digest.update(content)
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
            if line.strip():
                tasks.append(_task(line, f"{path}, line {number}", directory, skills, digest.update))
    if not any(task.split == TRAIN for task in tasks):
        raise CorpusError(f"no task in {directory} is of split {TRAIN!r}: there is nothing to learn from")
    return Corpus(tuple(tasks), skills, digest.hexdigest()[:16])


class Encoder:
    """Task → ids, with one model's tokenizer and chat template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.end_of_turn = end_of_turn(tokenizer)

    def encode(self, task: Task, skills: SkillSet) -> Example:
        """Prompt ids as the node feeds them, then the answer's ids and the end of the turn."""
        prompt = build_prompt(task.instruction, skills, task.scene, task.history, examples=False)
        answer = plan_text(task.plan)
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


def _task(line: str, where: str, directory: Path, skills: dict[str, SkillSet], update: Callable[[bytes], None]) -> Task:
    from ..language.scene import scene_from_mapping

    try:
        raw: dict[str, Any] = json.loads(line)
        domain, history, plan = raw["domain"], raw.get("history") or {}, tuple(raw["plan"])
        if domain not in skills:
            skills[domain] = _load_skills(directory, domain, update)
        texts = [*plan, raw["instruction"], raw["split"]]
        if not plan or not isinstance(raw["plan"], list) or not all(isinstance(text, str) for text in texts):
            raise TypeError("plan must be a list of steps, instruction and split a text")
        return Task(
            domain,
            raw["split"],
            raw["instruction"],
            scene_from_mapping(raw["scene"], where, skills[domain]),
            History(tuple(history.get("done", ())), history.get("failed", ""), history.get("failure", "")),
            plan,
        )
    except json.JSONDecodeError as error:
        raise CorpusError(f"{where} is not JSON ({error}): make the tasks again") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise CorpusError(f"{where} is not a task ({error!r}): make the tasks again") from error


def _load_skills(directory: Path, domain: str, update: Callable[[bytes], None]) -> SkillSet:
    from ..language.skills import load_skills

    if not re.fullmatch(r"[A-Za-z0-9_-]+", domain):
        raise TypeError(f"domain {domain!r} is no skill file's name")
    path = Path(directory) / "skills" / f"{domain}.yaml"
    if not path.is_file():
        path = shared_file(f"config/skills/{domain}.yaml")
    update(path.read_bytes())
    return load_skills(path)
