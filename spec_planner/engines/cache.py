"""What the engines make once per machine and keep: converted models and exported graphs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from .decoder_config import ModelError


def cache_directory() -> Path:
    """``$SPEC_PLANNER_CACHE``, else ``$XDG_CACHE_HOME/spec_planner``, else ``~/.cache/spec_planner``."""
    chosen = os.environ.get("SPEC_PLANNER_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spec_planner"


def make_once(directory: Path, make: Callable[[Path], None], what: str) -> Path:
    """``directory``, filled by ``make(scratch)`` if it is not there yet.

    Safe to interrupt and to call from several processes: one of them makes it while the others wait, and the
    directory appears complete or not at all.

    Args:
        what: "the default model", for the error.

    Raises:
        ModelError: the cache cannot be written.
    """
    if directory.is_dir():
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with locked(directory.parent / ".lock"):
            if not directory.is_dir():
                _fill(directory, make)
    except OSError as error:
        raise ModelError(
            f"cannot write {what} to {directory.parent} ({error}): free space or set SPEC_PLANNER_CACHE"
        ) from error
    return directory


def _fill(directory: Path, make: Callable[[Path], None]) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=directory.parent))
    try:
        make(scratch)
        scratch.chmod(0o755)  # others may use a shared cache
        for path in scratch.rglob("*"):
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
        scratch.rename(directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # gone already after the rename


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``; others wait."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file closes, a killed process included
        yield
