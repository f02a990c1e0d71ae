"""How far a build is, and what ends it."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from engine_trt.build_watch import BuildWatch


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


def test_ctrl_c_reaches_a_build_that_only_asks_between_steps():
    """A real signal, while the work goes on in code that takes no exception."""
    watch, steps, ended = BuildWatch(lambda share, what: None, lambda: False), 0, threading.Event()

    def work():
        nonlocal steps
        watch.started("building", None, 1000)
        os.kill(os.getpid(), signal.SIGINT)
        while watch.stepped("building", steps) and not ended.wait(0.01):
            steps += 1
            if steps == 1000:
                ended.set()

    with pytest.raises(KeyboardInterrupt):
        watch.call(work)
    assert not ended.is_set()


def test_what_the_work_returns_or_raises_comes_back():
    watch = BuildWatch(lambda share, what: None, lambda: False)
    assert watch.call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        watch.call(lambda: 1 // 0)
