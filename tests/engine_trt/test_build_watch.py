"""How far a build is, and what ends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine_trt.build_watch import BuildWatch

ROOT = Path(__file__).resolve().parents[2]


def test_the_share_is_that_of_the_whole_build_and_never_falls():
    seen: list[tuple[float, str]] = []
    watch = BuildWatch(lambda share, what: seen.append((share, what)), lambda: False)
    watch.started("building", None, 2)
    watch.started("tactics", "building", 2)
    watch.started("nodes", "tactics", 4)
    for step in range(4):
        assert watch.stepped("nodes", step)
    watch.finished("nodes")
    watch.stepped("tactics", 0)
    watch.stepped("tactics", 1)
    watch.finished("tactics")
    watch.stepped("building", 0)
    watch.started("writing", "building", 0)  # TensorRT may announce a phase without steps
    watch.stepped("writing", 0)
    assert [share for share, _ in seen] == [0.0625, 0.125, 0.1875, 0.25, 0.25, 0.5, 0.5, 1.0]
    assert [what for _, what in seen][-1] == "writing"
    watch.check()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokenPipeError("nobody listens")])
def test_what_a_report_raises_ends_the_build_and_comes_out_of_it(error):
    def report(share, what):
        raise error

    watch = BuildWatch(report, lambda: False)
    watch.started("building", None, 3)
    assert watch.stepped("building", 0) is False
    with pytest.raises(type(error)):
        watch.check()


def test_who_is_asked_can_end_it():
    asked = [False]
    watch = BuildWatch(lambda share, what: None, lambda: asked[0])
    watch.started("building", None, 3)
    assert watch.stepped("building", 0)
    asked[0] = True
    assert not watch.stepped("building", 1)
    with pytest.raises(KeyboardInterrupt):
        watch.check()


_INTERRUPTED = """
import os, signal, threading
from engine_trt.build_watch import BuildWatch

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may have it ignored
watch, ended = BuildWatch(lambda share, what: None, lambda: False), threading.Event()

def work():
    watch.started("building", None, 1000)
    os.kill(os.getpid(), signal.SIGINT)
    for step in range(1000):
        if not watch.stepped("building", step):
            return
        ended.wait(0.01)
    ended.set()

try:
    watch.call(work)
except KeyboardInterrupt:
    print("to the end" if ended.is_set() else "stopped")
"""


def test_ctrl_c_reaches_a_build_that_only_asks_between_steps():
    """A real signal, while the work goes on in code that takes no exception; in a process without other libraries,
    which may have handlers of their own.
    """
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "stopped\n", done.stderr


def test_what_the_work_returns_or_raises_comes_back():
    watch = BuildWatch(lambda share, what: None, lambda: False)
    assert watch.call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        watch.call(lambda: 1 // 0)
