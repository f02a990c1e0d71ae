"""One line per stage. A terminal sees the running stage's line redrawn in place; a file gets it twice."""

from __future__ import annotations

import shutil
import time
from typing import TextIO


class Progress:
    """Writes to ``stream``; times are seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._title = ""
        self._news = ""
        self._began = 0.0
        self._drawn = 0.0

    def say(self, text: str) -> None:
        """A line of its own."""
        self._put(f"{text}\n")

    def begin(self, title: str) -> None:
        self._title, self._news, self._began, self._drawn = title, "", time.monotonic(), 0.0
        self._draw() if self._live else self._put(f"{title} ...\n")

    def update(self, line: str) -> None:
        """News of the running stage, usually its tool's last line."""
        if line.strip():
            self._news = " ".join(line.split())
        self.tick()

    def tick(self) -> None:
        if self._live and self._title and time.monotonic() - self._drawn > 0.1:
            self._draw()

    def end(self, seconds: float) -> None:
        self._put(f"{self._erase()}{self._title:<40}{seconds:7.1f} s\n")
        self._title = ""

    def fail(self) -> None:
        """Leave the terminal on a fresh line when a stage was cut off."""
        if self._title and self._live:
            self._put(f"{self._erase()}{self._title:<40}  stopped\n")
        self._title = ""

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        text = f"{self._title:<40}{self._drawn - self._began:7.0f} s  {self._news}"
        self._put(self._erase() + text[: shutil.get_terminal_size().columns - 1])

    def _erase(self) -> str:
        return "\r\x1b[K" if self._live else ""

    def _put(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
