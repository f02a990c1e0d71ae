"""What a test may do to a scripted node's target from outside, by files in a folder that both know.

Files, because a pass sees at once what the test has written before: no message has to arrive first.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

FOLDER_VARIABLE = "SPEC_PLANNER_TEST_FOLDER"
_HOLD, _FAULT, _PACE = "hold", "fault", "pace"
_POLL_S = 0.005


def hold(folder: Path, after: int) -> None:
    """Passes that begin with at least ``after`` tokens of the answer committed wait until ``clear``.

    -1 holds the passes over the prompt too.
    """
    _write(folder / _HOLD, after)


def slow_down(folder: Path, seconds: float) -> None:
    """Every pass takes ``seconds`` longer until ``clear``."""
    _write(folder / _PACE, seconds)


def make_faulty(folder: Path) -> None:
    (folder / _FAULT).touch()


def clear(folder: Path) -> None:
    for name in (_HOLD, _FAULT, _PACE):
        (folder / name).unlink(missing_ok=True)


def wait_while_held(committed: int) -> None:
    """In the node, at the beginning of a pass."""
    file = Path(os.environ[FOLDER_VARIABLE], _HOLD)
    with suppress(FileNotFoundError):  # not held, or no longer
        while committed >= int(file.read_text()):
            time.sleep(_POLL_S)
    with suppress(FileNotFoundError):
        time.sleep(float(Path(os.environ[FOLDER_VARIABLE], _PACE).read_text()))


def _write(file: Path, value: float) -> None:
    """Whole or not at all, because the node may read at any time."""
    scratch = file.with_suffix(".scratch")
    scratch.write_text(str(value))
    scratch.rename(file)


def is_faulty() -> bool:
    return Path(os.environ[FOLDER_VARIABLE], _FAULT).exists()
