"""A few made-up tasks with a skill file of their own, and random training sequences."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np

from spec_planner.learning.packing import Example

_SKILLS = """\
skills:
- {name: go_to, parameters: [place], description: Drive to a place.}
- {name: pick, parameters: [object], description: Grasp an object.}
- {name: put, parameters: [object, place], description: Put the held object down.}
- {name: wave, parameters: [], description: Wave.}
- {name: wait, parameters: [], description: Wait.}
"""
_THINGS, _PLACES = ("cup", "spoon", "tool box"), ("table", "drawer", "door")


def write_tasks(directory: Path, count: int = 24, seed: int = 0) -> Path:
    """``count`` fetch tasks, two per scene, every sixth for validation."""
    rng = random.Random(seed)
    (directory / "skills").mkdir(parents=True)
    (directory / "skills" / "toy.yaml").write_text(_SKILLS)
    lines = []
    for index in range(count):
        if index % 2 == 0:
            start = rng.choice(_PLACES)
            scene = {"places": list(_PLACES), "objects": [{"name": name, "at": start} for name in _THINGS]}
        thing, end = rng.choice(_THINGS), rng.choice(_PLACES)
        lines.append(
            {
                "id": f"toy-{index}",
                "domain": "toy",
                "activity": "bring",
                "wording": "plain",
                "split": "validation" if index % 6 == 5 else "train",
                "instruction": f"Bring the {thing} to the {end}.",
                "scene": scene,
                "goal": [f"at({thing}, {end})"],
                "plan": [f"go_to({start})", f"pick({thing})", f"go_to({end})", f"put({thing}, {end})"],
            }
        )
    (directory / "toy.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def random_examples(seed: int, vocabulary: int = 320) -> list[Example]:
    """Sequences that share a system part, some a scene too, two their first answer tokens; and one alone."""
    rng = np.random.default_rng(seed)

    def ids(length: int) -> list[int]:
        return rng.integers(3, vocabulary, length).tolist()

    system, scene, task, answer = ids(30), ids(25), ids(14), ids(16)
    sequences = [(system + scene + ids(6), ids(9)) for _ in range(3)]
    sequences += [(system + ids(20), ids(7)), (ids(17), ids(5)), (system + ids(1), ids(3))]
    sequences += [(system + scene + task, answer + ids(4)), (system + scene + task, answer + ids(6))]
    sequences += [(system + scene + task, answer), sequences[0]]  # one ends early, one comes twice
    return [Example(np.array(prompt + rest, np.int32), len(prompt)) for prompt, rest in sequences]
