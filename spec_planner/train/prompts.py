"""What the target is asked: tasks as the node would ask them, or plain instructions.

*.jsonl of `spec-planner tasks`      the node's prompt, grammar and preconditions; splits as the tasks have them
*.txt                                an instruction per line, answered as free text under the chat template
*.jsonl of {"prompt": "…"}           the same
        or {"messages": [{"role": "user", "content": "…"}, …]}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..language.plan import SkillSet
from ..learning.corpus import CorpusError, Lesson, read_corpus
from ..tasks.task import TRAIN, VALIDATION

PLAIN = "plain"  # the domain of prompts that are no tasks
VALIDATION_EVERY = 20  # of plain prompts, which bring no splits


@dataclass(frozen=True)
class Prompt:
    """One thing to ask.

    Attributes:
        key: unique.
        messages: of a plain prompt, role and content each; empty for a task.
        lesson: the task; None for a plain prompt.
    """

    key: str
    domain: str
    split: str
    messages: tuple[Mapping[str, str], ...] = ()
    lesson: Lesson | None = None

    @property
    def order(self) -> tuple[str, ...]:
        """Prompts sorted by it begin like the one before, so that little is fed twice."""
        if self.lesson is None:
            return self.domain, json.dumps(self.messages)
        return self.domain, str(self.lesson.scene), str(self.lesson.history), self.lesson.instruction


@dataclass(frozen=True)
class Prompts:
    """All prompts, the robots' skills by domain, and a hash of the files they were read from."""

    all: tuple[Prompt, ...]
    skills: Mapping[str, SkillSet]
    fingerprint: str

    def of(self, split: str) -> list[Prompt]:
        return [prompt for prompt in self.all if prompt.split == split]


def read_prompts(place: Path) -> Prompts:
    """Read a file, or every ``*.jsonl`` of a directory of tasks.

    Raises:
        CorpusError: nothing to ask, or no prompt is left for validation; one sentence.
        ValueError: a line, a skill file or a scene is wrong; the message names it.
    """
    place = Path(place)
    if not place.exists():
        raise CorpusError(f"{place} does not exist: name a file of prompts, or a directory of `spec-planner tasks`")
    prompts = _read_plain(place) if _is_plain(place) else _read_tasks(place)
    if not prompts.of(TRAIN) or not prompts.of(VALIDATION):
        raise CorpusError(
            f"{place} has {len(prompts.of(TRAIN))} prompts to learn from and {len(prompts.of(VALIDATION))} to validate "
            f"with: name the directory with the tasks of both splits, or {VALIDATION_EVERY} plain prompts or more"
        )
    return prompts


def _read_tasks(place: Path) -> Prompts:
    corpus = read_corpus(place)
    found: dict[str, Prompt] = {}
    for lesson in corpus.lessons:
        key = f"{lesson.domain}/{lesson.id}"
        if key in found:
            raise CorpusError(f"two tasks in {place} are called {lesson.id!r}: make the tasks again")
        found[key] = Prompt(key, lesson.domain, lesson.split, lesson=lesson)
    return Prompts(tuple(found.values()), corpus.skills, corpus.fingerprint)


def _is_plain(place: Path) -> bool:
    if place.is_dir() or place.suffix == ".txt":
        return not place.is_dir()
    with place.open(encoding="utf-8") as file:
        first = next((line for line in file if line.strip()), "")
    return '"instruction"' not in first


def _read_plain(place: Path) -> Prompts:
    content = place.read_bytes()
    found: dict[str, Prompt] = {}
    try:
        lines = content.decode("utf-8").split("\n")  # splitlines would also cut at U+2028 and others inside of text
    except UnicodeDecodeError as error:
        raise CorpusError(f"{place} is not UTF-8 text ({error}): write it again") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        is_text = place.suffix == ".txt"
        messages = ({"role": "user", "content": line.strip()},) if is_text else _messages(line, place, number)
        key = f"{PLAIN}/{hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:16]}"
        if key not in found:
            split = VALIDATION if len(found) % VALIDATION_EVERY == VALIDATION_EVERY - 1 else TRAIN
            found[key] = Prompt(key, PLAIN, split, messages)
    return Prompts(tuple(found.values()), {}, hashlib.sha256(content).hexdigest()[:16])


def _messages(line: str, place: Path, number: int) -> tuple[dict[str, str], ...]:
    try:
        content: dict[str, Any] = json.loads(line)
        given = content["messages"] if "messages" in content else [{"role": "user", "content": content["prompt"]}]
        messages = tuple({"role": message["role"], "content": message["content"]} for message in given)
        if not messages or not all(isinstance(text, str) for message in messages for text in message.values()):
            raise TypeError("role and content must be text")
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(
            f'{place}, line {number} is no prompt ({error!r}): write {{"prompt": "…"}}, or {{"messages": [{{"role": '
            f'"user", "content": "…"}}]}}'
        ) from error
    return messages
