"""What a test may do to a scripted node's target from outside, by files in a folder that both know.

Files, because a pass sees at once what the test has written before: no message has to arrive first.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

FOLDER_VARIABLE = "SPEC_PLANNER_TEST_FOLDER"
_HOLD, _FAULT = "hold", "fault"
_POLL_S = 0.005


def hold(folder: Path, after: int) -> None:
    """Passes that begin with at least ``after`` tokens of the answer committed wait until ``clear``."""
    scratch = folder / "scratch"
    scratch.write_text(str(after))
    scratch.rename(folder / _HOLD)


def make_faulty(folder: Path) -> None:
    (folder / _FAULT).touch()


def clear(folder: Path) -> None:
    for name in (_HOLD, _FAULT):
        (folder / name).unlink(missing_ok=True)


def wait_while_held(committed: int) -> None:
    """In the node, at the beginning of a pass."""
    file = Path(os.environ[FOLDER_VARIABLE], _HOLD)
    with suppress(FileNotFoundError):  # not held, or no longer
        while committed >= int(file.read_text()):
            time.sleep(_POLL_S)


def is_faulty() -> bool:
    return Path(os.environ[FOLDER_VARIABLE], _FAULT).exists()
