"""Directories that appear complete or not at all, whatever interrupts their making."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from spec_planner.engines.decoder_config import ModelError

from .bindings import MANIFEST_FILE


def written_whole(directory: Path, make: Callable[[Path], None]) -> None:
    """``directory``, filled by ``make(scratch)``; takes the place of an earlier export or engine, and of nothing else.

    Raises:
        ModelError: something else is there, or the disk does not take it.
    """
    if (
        directory.exists()
        and not (directory / MANIFEST_FILE).is_file()
        and (not directory.is_dir() or any(directory.iterdir()))
    ):
        raise ModelError(f"{directory} is there already and holds something else: give another --out")
    directory = directory.absolute()
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        new, old = scratch / "new", scratch / "old"
        try:
            new.mkdir()
            make(new)
            if directory.exists():
                directory.rename(old)
            new.rename(directory)
        finally:
            if old.exists() and not directory.exists():  # interrupted between the two
                old.rename(directory)
            shutil.rmtree(scratch)
    except OSError as error:
        raise ModelError(f"cannot write {directory} ({error}): free space or give another --out") from error
