"""A whole corpus: one file per split, and what is in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from .generate import generate
from .task import SPLITS, TRAIN, Task, write_tasks

Progress = Callable[[str, int, int], None]


def write_corpus(
    folder: Path, count: int, domain: str | None, seed: int, progress: Progress, held_out_share: int = 8
) -> dict[str, dict[str, float]]:
    """Write ``<split>.jsonl`` for every split: ``count`` tasks of training, ``count / held_out_share`` of each other.

    Args:
        progress: called with the split, tasks made, tasks wanted.

    Returns:
        For each split: tasks, activities, steps (mean of a plan), histories, blind.

    Raises:
        TaskError: see ``generate``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report = {}
    for split in SPLITS:
        wanted = count if split == TRAIN else max(1, count // held_out_share)
        tally = _Tally()
        made = generate(wanted, domain, seed, split, lambda done, s=split, w=wanted: progress(s, done, w))  # type: ignore[misc]
        write_tasks(tally.count(made), folder / f"{split}.jsonl")
        report[split] = tally.report()
    return report


class _Tally:
    def __init__(self) -> None:
        self.tasks = self.steps = self.histories = self.blind = 0
        self.activities: set[tuple[str, str]] = set()

    def count(self, tasks: Iterator[Task]) -> Iterator[Task]:
        for task in tasks:
            self.tasks += 1
            self.steps += len(task.plan)
            self.histories += bool(task.history.failed)
            self.blind += not task.scene
            self.activities.add((task.domain, task.activity))
            yield task

    def report(self) -> dict[str, float]:
        return {
            "tasks": self.tasks,
            "activities": len(self.activities),
            "steps": round(self.steps / max(1, self.tasks), 2),
            "histories": self.histories,
            "blind": self.blind,
        }
