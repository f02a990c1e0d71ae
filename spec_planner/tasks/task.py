"""One task, and files of them: JSON, one task per line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..language.plan import History

TRAIN, VALIDATION = "train", "validation"
WORDING_HELD_OUT, ACTIVITY_HELD_OUT = "wording_held_out", "activity_held_out"
SPLITS = (TRAIN, VALIDATION, WORDING_HELD_OUT, ACTIVITY_HELD_OUT)


class TaskError(ValueError):
    """Tasks that cannot be read or made; the message names the file and the line, or what to change."""


@dataclass(frozen=True)
class Task:
    """An instruction, the scene it is given in, what is true when it is done, and a plan that does it.

    Attributes:
        id: unique in a corpus.
        domain: stem of the skill file, such as ``household``.
        activity: what sort of task it is; activities of the split ``activity_held_out`` occur in no other.
        wording: which phrases the instruction is made of; ``wording_held_out`` has phrases that occur in no other.
        split: one of ``SPLITS``.
        instruction: what the user says.
        scene: the mapping ``language.scene`` reads; empty where the robot knows nothing but the instruction.
        goal: conditions such as ``not closed(fridge)``; empty where there is no scene to check them in.
        plan: lines such as ``put(milk, table)``.
        history: what was done before and what failed.
    """

    id: str
    domain: str
    activity: str
    wording: str
    split: str
    instruction: str
    scene: Mapping[str, Any]
    goal: tuple[str, ...]
    plan: tuple[str, ...]
    history: History = field(default_factory=History)

    def to_json(self) -> str:
        """One line, without the line break."""
        content: dict[str, Any] = {
            "id": self.id,
            "domain": self.domain,
            "activity": self.activity,
            "wording": self.wording,
            "split": self.split,
            "instruction": self.instruction,
            "scene": self.scene,
        }
        if self.history != History():
            content["history"] = {
                "done": list(self.history.done),
                "failed": self.history.failed,
                "failure": self.history.failure,
            }
        content |= {"goal": list(self.goal), "plan": list(self.plan)}
        return json.dumps(content, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str, where: str = "task") -> Task:
        """Read what ``to_json`` wrote. Raises ``TaskError``, which calls the line ``where``."""
        try:
            content = json.loads(line)
            history = content.get("history", {})
            return cls(
                **{key: _text(content[key]) for key in _TEXTS},
                scene=dict(content["scene"]),
                goal=tuple(map(_text, content["goal"])),
                plan=tuple(map(_text, content["plan"])),
                history=History(
                    tuple(map(_text, history.get("done", ()))),
                    _text(history.get("failed", "")),
                    _text(history.get("failure", "")),
                ),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise TaskError(f"{where} is no task ({reason}): write it with `spec-planner tasks`") from error


_TEXTS = ("id", "domain", "activity", "wording", "split", "instruction")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is not text")
    return value


def read_tasks(path: str | os.PathLike[str]) -> Iterator[Task]:
    """Tasks of a file, in order. Raises ``TaskError`` (a bad line) and ``OSError``."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield Task.from_json(line, f"{path}, line {number}")


def write_tasks(tasks: Iterable[Task], path: str | os.PathLike[str]) -> int:
    """Write a file at once: readers see the old one or the whole new one. Returns the number of tasks."""
    target = Path(path)
    part = target.with_name(f"{target.name}.part{os.getpid()}")
    count = 0
    try:
        with open(part, "w", encoding="utf-8") as file:
            for task in tasks:
                file.write(task.to_json() + "\n")
                count += 1
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return count
