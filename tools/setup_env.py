#!/usr/bin/env python3
"""Bring .venv up to date: Python packages, ROS messages, this package, the default model. Standard library only.

    python3 tools/setup_env.py [--until STAGE]    python3 tools/setup_env.py --clean

Each stage leaves a stamp with a hash of all it was made from (its inputs and the stages before it) and is skipped
while that hash is the same, so a second run costs almost nothing. It may be interrupted anywhere: a stage has a
"started" mark until its stamp is written, and one found half done is done again from a clean state. One run at a time:
an advisory lock on the repository folder, which the child processes share, so that it lasts until the last one ended.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import setup_checks
import setup_stages
from setup_progress import Progress
from setup_state import SetupError, State

ROOT = Path(__file__).resolve().parent.parent


def lock(root: Path, progress: Progress) -> int:
    """Wait for our turn; returns the file descriptor that holds the lock."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress.say("another make is setting up .venv: waiting for it to end")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def bring_up_to_date(root: Path, progress: Progress, until: str | None, descriptor: int) -> None:
    """Run every stage whose stamp does not hold, in order, up to and including ``until``.

    Raises:
        SetupError: something is missing or a stage failed; one sentence.
    """
    state = State(root, descriptor)
    stages = setup_stages.all_stages(state)
    names = [stage.name for stage in stages]
    if until is not None:
        stages = stages[: names.index(until) + 1]
    if not state.owned():
        raise SetupError(f"{state.venv} was not made by this set-up: move it away, then run make again")
    due = [stage for stage in stages if not stage.done(state)]
    if any(stage.fresh_venv and state.touched(stage.name) for stage in due):
        # pip may have left half a package and would believe it: only an empty environment is a known one.
        state.reset()
        due = stages
    if any(stage.fresh_venv for stage in due):
        progress.say(f"setting up {state.venv} (a few minutes, once)")
    for number, stage in enumerate(stages, start=1):
        if stage not in due:
            continue
        setup_checks.before(stage.name, state)
        began = time.monotonic()
        progress.begin(f"[{number}/{len(names)}] {stage.title}")
        state.start(stage.name)
        stage.action(progress)
        state.finish(stage.name, stage.key)
        progress.end(time.monotonic() - began)


def clean(root: Path) -> None:
    """Remove what make builds. Refuses a .venv that is somebody else's."""
    if not State(root, None).owned():
        raise SetupError(f"{root / '.venv'} was not made by this set-up: remove it yourself")
    for name in (".venv", "build", "install", "log", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"):
        shutil.rmtree(root / name, ignore_errors=False) if (root / name).is_dir() else None
    for folder in [path for path in root.rglob("__pycache__") if ".git" not in path.parts]:
        shutil.rmtree(folder)


def main(arguments: list[str]) -> int:
    """0 done; 1 one sentence on standard error; 130 interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--until", choices=setup_stages.NAMES, help="stop after this stage")
    parser.add_argument("--clean", action="store_true", help="remove .venv and everything built")
    options = parser.parse_args(arguments)
    progress = Progress(sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        setup_checks.use_right_python([__file__, *arguments])
        descriptor = lock(ROOT, progress)
        if options.clean:
            clean(ROOT)
        else:
            bring_up_to_date(ROOT, progress, options.until, descriptor)
    except SetupError as error:
        progress.fail()
        print(f"make: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        progress.fail()
        print(f"make: {setup_checks.explain(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        progress.fail()
        print("make: interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
