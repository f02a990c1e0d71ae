"""The planner node as a child process that never outlives the demo. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

EXECUTABLE = "planner_node"
GRACE_S = ((signal.SIGINT, 5.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 3.0))
_PR_SET_PDEATHSIG = 1
_LOG_PREFIX = re.compile(r"^\[(\w+)\] \[[\d.]+\] \[[^\]]*\]: ")  # severity, time, node


class DemoError(Exception):
    """The demo failed; the message is one sentence."""


class NodeProcess:
    """Starts in its own process group, so a terminal's Ctrl-C reaches only the demo, which then stops it in order.

    Args:
        arguments: after the executable's name, as ROS takes them.
        environment: of the process.

    Raises:
        DemoError: the executable is not installed.
    """

    def __init__(self, arguments: Sequence[str], environment: dict[str, str]) -> None:
        command = [str(find_executable()), *arguments]
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in stop)
        # The kernel's help for a demo that is killed outright: its node gets SIGTERM. Looked up before the fork.
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise DemoError when the process has ended."""
        code = self._process.poll()
        if code is not None:
            how = f"code {code}" if code >= 0 else signal.Signals(-code).name
            last = self.last_line()
            raise DemoError(f"the planner node ended with {how}{': ' + last if last else ''}")

    def last_line(self) -> str:
        """The last thing the node said that looks like a complaint, else the last thing it said; may be empty."""
        lines = [line.strip() for line in self.output().splitlines() if line.strip()]
        complaints = [line for line in lines if "ERROR" in line or "Error" in line or line.startswith("planner_node:")]
        return _LOG_PREFIX.sub("[\\1] ", (complaints or lines or [""])[-1])[:300]

    def said(self, beginning: str) -> str:
        """What followed ``beginning`` on the last line of its log that began so; empty where none did."""
        lines = [_LOG_PREFIX.sub("", line) for line in self.output().splitlines()]
        return next((line.removeprefix(beginning) for line in reversed(lines) if line.startswith(beginning)), "")

    def output(self) -> str:
        """All it has printed so far."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode("utf-8", "replace")

    def stop(self) -> int:
        """SIGINT, then SIGTERM, then SIGKILL, to the whole group, each with time to act; returns the exit code."""
        for number, seconds in GRACE_S:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # whatever else was left in its group
        self._log.close()
        return self._process.wait()


def find_executable() -> Path:
    """Where pip or colcon put it: beside this Python, or in ``<prefix>/lib/spec_planner`` of a sourced workspace."""
    prefixes = [path for path in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if path]
    places = [Path(sys.prefix, "lib", "spec_planner"), *(Path(path, "lib", "spec_planner") for path in prefixes)]
    for place in places:
        if (place / EXECUTABLE).is_file():
            return place / EXECUTABLE
    raise DemoError(f"{EXECUTABLE} is not in {' or '.join(map(str, dict.fromkeys(places)))}: run make setup first")
