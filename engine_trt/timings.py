"""What the full TensorRT measured of kernels, kept for the next build on the same device.

It only makes the next build faster, so nothing that goes wrong with it stops a build or costs what was built: it is
said in one line.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Timings:
    """Args: ``path`` of the file; None: nothing is read or kept."""

    def __init__(self, path: Path | None, report: Callable[[str], None]) -> None:
        self._path, self._report = path, report

    def give(self, config: Any) -> None:
        """Let the builder of ``config`` begin with what was measured before."""
        if self._path is None:
            return
        try:
            stored = self._path.read_bytes() if self._path.is_file() else b""
            if not _taken(config, stored) and not _taken(config, b""):  # it may be of another device or version
                self._report("TensorRT takes no timings of kernels: this build keeps none")
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            self._report(f"the timings in {self._path} cannot be used ({error}): building without them")

    def keep(self, config: Any) -> None:
        """Write what ``config``'s builder has measured; several builds may end at the same time."""
        if self._path is None:
            return
        try:
            timings = config.get_timing_cache()
            if timings is None:
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, scratch = tempfile.mkstemp(prefix=f".{self._path.name}-", dir=self._path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(memoryview(timings.serialize()))
                os.replace(scratch, self._path)
            except BaseException:
                os.unlink(scratch)
                raise
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            self._report(
                f"the timings of kernels cannot be kept in {self._path} ({error}): the next build measures anew"
            )


def _taken(config: Any, stored: bytes) -> bool:
    cache = config.create_timing_cache(stored)
    return cache is not None and bool(config.set_timing_cache(cache, False))
