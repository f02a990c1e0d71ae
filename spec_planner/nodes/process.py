"""A node as a process: started, spun on one thread, and ended cleanly on SIGINT or SIGTERM with exit code 0."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode
from rclpy.signals import SignalHandlerOptions

from ..config import ConfigError

POLL_S = 0.2  # how long a signal may go unseen while the executor sleeps
FAREWELL_S = 1.0  # how long the answers to open goals and requests may take to leave


class ManagedNode(LifecycleNode):
    """What ``run`` asks of a node: how it stands, beside the lifecycle itself."""

    finalized: bool = False  # shutdown is over

    @property
    def busy(self) -> bool:
        """A goal or a request has not been answered yet."""
        raise NotImplementedError


def run(make_node: Callable[[Callable[[], bool]], ManagedNode], args: Sequence[str] | None = None) -> int:
    """Spin the node that ``make_node(interrupted)`` gives until a signal comes; returns the exit code.

    ROS's own signal handlers would take the context away at once, and the clients of open goals would never get their
    results. So the signal is only noted here; the node shuts down while it can still speak. Further signals are
    ignored: `ros2 launch` sends every Ctrl-C twice.
    """
    try:
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    except (RuntimeError, ValueError) as problem:  # RCLError, UnknownROSArgsError: the arguments cannot be used
        sentence = " ".join(str(problem).split())
        print(f"planner_node: the ROS arguments cannot be used ({sentence}): correct them", file=sys.stderr)
        return 2
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        node = make_node(stop.is_set)
    except ConfigError as problem:
        print(f"planner_node: {problem}", file=sys.stderr)
        rclpy.try_shutdown()
        return 2
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        while not stop.is_set():
            executor.spin_once(timeout_sec=POLL_S)
        _say_farewell(node, executor)
    except ExternalShutdownException:
        pass  # someone else ended the context: nothing is left to say
    finally:
        executor.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()
    return 0


def _say_farewell(node: ManagedNode, executor: SingleThreadedExecutor) -> None:
    """Shut the node down and stay until its open goals and requests have been answered."""
    if not node.finalized:
        node.trigger_shutdown()
    give_up = time.monotonic() + FAREWELL_S
    while node.busy and time.monotonic() < give_up:
        executor.spin_once(timeout_sec=POLL_S)
    for _ in range(5):  # the answers themselves go out in a few more turns
        executor.spin_once(timeout_sec=0.01)
