"""A planner node as its own process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.nodes import control

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0  # for things that take well under a second on a quiet machine, and loading torch
NODE = "import sys; from spec_planner.nodes.planner_node import main; sys.exit(main())"


class PlannerProcess:
    """``planner_node`` with parameters, from entering to leaving; leaving ends it and checks that nothing crashed.

    Args:
        script: a file beside this one to run instead, ``scripted_node.py``.
    """

    def __init__(self, namespace: str, *, script: str = "", arguments: tuple[str, ...] = (), **parameters: Any):
        program = [str(Path(__file__).with_name(script))] if script else ["-c", NODE]
        overrides = [part for name, value in parameters.items() for part in ("-p", f"{name}:={json.dumps(value)}")]
        self._command = [sys.executable, *program, "--ros-args", "-r", f"__ns:={namespace}", *overrides, *arguments]

    def __enter__(self) -> PlannerProcess:
        self._log_file = tempfile.TemporaryFile()  # without a name, so that nobody can clean it away
        self._controls = Path(tempfile.mkdtemp(prefix="spec_planner_test_"))
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            control.FOLDER_VARIABLE: str(self._controls),
        }
        self._process = subprocess.Popen(
            self._command, stdout=self._log_file, stderr=subprocess.STDOUT, env=environment
        )
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        control.clear(self._controls)
        try:
            code = self.end(signal.SIGINT)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            shutil.rmtree(self._controls)
        log = self.log
        self._log_file.close()
        if kind is None:
            assert code == 0, f"the node ended with code {code}:\n{log}"

    @property
    def log(self) -> str:
        """What the node has written so far; read without moving the position it shares with the node."""
        return os.pread(self._log_file.fileno(), 1 << 24, 0).decode()

    @contextmanager
    def holding(self, after: int = 0) -> Iterator[Callable[[int], None]]:
        """Passes of a scripted node stand still once ``after`` tokens are committed, and go on afterwards.

        ``after`` -1 holds the prompt's own passes.

        Gives a function that moves the mark.
        """
        control.hold(self._controls, after)
        try:
            yield lambda later: control.hold(self._controls, later)
        finally:
            control.clear(self._controls)

    @contextmanager
    def slowed(self, seconds: float) -> Iterator[None]:
        """Each pass of a scripted node takes ``seconds`` longer meanwhile."""
        control.slow_down(self._controls, seconds)
        try:
            yield
        finally:
            control.clear(self._controls)

    @contextmanager
    def faulty(self) -> Iterator[None]:
        """A scripted node that is configured meanwhile gets a target that commits wrongly."""
        control.make_faulty(self._controls)
        try:
            yield
        finally:
            control.clear(self._controls)

    def end(self, number: int) -> int:
        """Send signal ``number``, unless the node has ended already, and wait for the exit code."""
        self.signal(number)
        return self.wait()

    def signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait(timeout=PATIENCE_S)

    def cpu_seconds(self) -> float:
        """Processor time used so far."""
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
