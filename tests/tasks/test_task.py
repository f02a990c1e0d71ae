"""Task files: what is written is read back, and bad lines say where they are."""

from __future__ import annotations

import pytest

from spec_planner.language.plan import History
from spec_planner.tasks.task import Task, TaskError, read_tasks, write_tasks

TASK = Task(
    "household-train-0-1",
    "household",
    "put_away",
    "frame1.0 move.2",
    "train",
    "Put the milk in the fridge.",
    {"robot": {"at": "hall"}, "places": ["hall", {"name": "fridge", "kind": "appliance", "is": ["closed"]}]},
    ("at(milk, fridge)",),
    ("go_to(fridge)", "open(fridge)"),
)
HISTORY = History(("go_to(fridge)",), "open(fridge)", "the handle slipped")


@pytest.mark.parametrize("history", [History(), HISTORY])
def test_a_task_survives_its_file(tmp_path, history):
    task = Task(**{**TASK.__dict__, "history": history})
    assert write_tasks([task, TASK], tmp_path / "tasks.jsonl") == 2
    assert list(read_tasks(tmp_path / "tasks.jsonl")) == [task, TASK]
    assert ("history" in task.to_json()) == (history != History())


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"id": 1}', TASK.to_json().replace('"put_away"', "3")])
def test_a_bad_line_is_named(tmp_path, line):
    file = tmp_path / "tasks.jsonl"
    file.write_text(f"{TASK.to_json()}\n{line}\n", encoding="utf-8")
    with pytest.raises(TaskError, match="line 2"):
        list(read_tasks(file))


def test_a_file_is_whole_or_as_it_was(tmp_path):
    file = tmp_path / "tasks.jsonl"
    write_tasks([TASK], file)

    def broken():
        yield TASK
        yield TASK
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError):
        write_tasks(broken(), file)
    assert list(read_tasks(file)) == [TASK]
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.jsonl"]
