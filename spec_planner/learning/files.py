"""Files that are there whole or not at all, and folders that one run at a time writes to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path


class RunError(ValueError):
    """A run that cannot start or continue; the message says why and what to do."""


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make the file under another name, then put it in place: a kill leaves the old file or the new."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(scratch)
        with scratch.open("rb") as file:
            os.fsync(file.fileno())  # or a power cut could leave the new name over missing content
        scratch.chmod(0o644)  # safetensors writes for the owner only
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_folder(directory: Path, name: str) -> Iterator[Path]:
    """A new folder in ``directory`` that goes when the block ends."""
    folder = directory / f".{name}.{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def sweep(directory: Path) -> None:
    """Delete what killed runs left unfinished there; for the only one who writes to ``directory``."""
    for path in directory.glob(".*"):
        if not re.fullmatch(r"\..+\.\d+", path.name):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Be the only one who writes to ``directory``, which is made if need be.

    Raises:
        RunError: another process is at it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go when the file closes, a killed process included
        except BlockingIOError as error:
            raise RunError(f"another run is writing to {directory}: wait for it, or name another directory") from error
        yield
