"""What TensorRT's builder says while it works, and how it is stopped.

TensorRT calls Python from its own code and drops whatever is raised there, a KeyboardInterrupt included. So what a
progress report raises is kept here, the builder asked to end, and the exception raised once it has. Ctrl-C itself
never arrives in such a call: the builder works in a thread of its own, and Python interrupts the main one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

Progress = Callable[[float, str], None]  # share done of the whole build, and what is being done
Result = TypeVar("Result")
_LOOK_S = 0.5  # how often the waiting thread looks up, where a signal did not wake it


@dataclass
class _Phase:
    parent: str | None
    steps: int
    done: int = 0


class BuildWatch:
    """Args: ``interrupted``: asked after every step; the build ends when it says so."""

    def __init__(self, progress: Progress, interrupted: Callable[[], bool]) -> None:
        self._progress, self._interrupted = progress, interrupted
        self._phases: dict[str, _Phase] = {}  # those that run; TensorRT nests them
        self._share = 0.0
        self._asked = False
        self._raised: BaseException | None = None

    def call(self, work: Callable[[], Result]) -> Result:
        """``work()``, in a thread of its own, stopped when this one is interrupted."""
        with ThreadPoolExecutor(1) as thread:
            try:
                future = thread.submit(work)
                while not future.done():
                    wait([future], timeout=_LOOK_S)
            except BaseException:
                self._asked = True
                raise  # once the thread has ended
            return future.result()

    def check(self) -> None:
        """Raises what a progress report raised, or ``KeyboardInterrupt`` where the build was stopped otherwise."""
        if self._raised is not None:
            raise self._raised
        if self._asked or self._interrupted():
            raise KeyboardInterrupt

    def monitor(self, api: Any) -> Any:
        """What tells TensorRT's builder to call this watch."""
        return _monitor_class(api.IProgressMonitor)(self)

    def started(self, phase: str, parent: str | None, steps: int) -> None:
        self._phases[phase] = _Phase(parent, max(steps, 1))

    def stepped(self, phase: str, step: int) -> bool:
        """Whether the builder is to go on."""
        try:
            if phase in self._phases:
                self._phases[phase].done = step + 1
                roots = [name for name, entry in self._phases.items() if entry.parent not in self._phases]
                self._share = max(self._share, *(self._share_of(name) for name in roots))
            self._progress(self._share, phase)
            self._asked = self._asked or self._interrupted()
        except BaseException as error:  # raised again by ``check``
            self._raised = error
        return self._raised is None and not self._asked

    def finished(self, phase: str) -> None:
        self._phases.pop(phase, None)

    def _share_of(self, phase: str) -> float:
        entry = self._phases[phase]
        below = [self._share_of(name) for name, other in self._phases.items() if other.parent == phase]
        return min(1.0, (entry.done + max(below, default=0.0)) / entry.steps)


@functools.cache
def _monitor_class(base: Any) -> Any:
    """A class, because TensorRT calls methods of its own base class; made once per TensorRT."""

    class Monitor(base):  # type: ignore[misc]
        def __init__(self, watch: BuildWatch) -> None:
            base.__init__(self)
            self._watch = watch

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._watch.started(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return self._watch.stepped(phase_name, step)

        def phase_finish(self, phase_name: str) -> None:
            self._watch.finished(phase_name)

    return Monitor
