"""A planner node as its own process, and a client that talks to it over DDS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rclpy
from action_msgs.msg import GoalStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.msg import SetParametersResult
from rcl_interfaces.srv import DescribeParameters, GetParameters, ListParameters, SetParameters
from rclpy.action import ActionClient
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile

from spec_planner_msgs.action import GeneratePlan

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 30.0  # for things that take well under a second on a quiet machine
SETTLE_S = 0.2  # DDS matches the two ends separately: an answer is lost while the server does not know its reader yet
NODE = "import sys; from spec_planner.nodes.planner_node import main; sys.exit(main())"


def fresh_namespace() -> str:
    return f"/test_{uuid.uuid4().hex[:8]}"


class PlannerProcess:
    """``planner_node`` with parameters, from entering to leaving; leaving ends it and checks that nothing crashed."""

    def __init__(
        self, namespace: str, folder: Path, *, script: str = "", arguments: tuple[str, ...] = (), **parameters: Any
    ):
        program = [str(Path(__file__).with_name(script))] if script else ["-c", NODE]
        overrides = [part for name, value in parameters.items() for part in ("-p", f"{name}:={json.dumps(value)}")]
        self._command = [sys.executable, *program, "--ros-args", "-r", f"__ns:={namespace}", *overrides, *arguments]
        self._log_file = folder / f"{namespace.strip('/').replace('/', '_')}.log"

    def __enter__(self) -> PlannerProcess:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with self._log_file.open("w") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            code = self.end(signal.SIGINT)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        if kind is None:
            assert code == 0, f"the node ended with code {code}:\n{self.log}"

    @property
    def log(self) -> str:
        return self._log_file.read_text()

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


@dataclass
class Goal:
    """A goal as its client sees it."""

    handle: Any
    feedback: list[GeneratePlan.Feedback]
    result: Any  # future


@dataclass
class PlannerClient:
    """Everything a robot would ask of a planner in ``namespace``; each call spins until its answer is there."""

    namespace: str

    def __enter__(self) -> PlannerClient:
        self._proxies: dict[str, Any] = {}
        self.node = rclpy.create_node("client", namespace=self.namespace)
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self.actions = ActionClient(self.node, GeneratePlan, self.name("generate_plan"))
        return self

    def __exit__(self, *_: Any) -> None:
        self.actions.destroy()
        self.executor.shutdown()
        self.node.destroy_node()

    def name(self, topic: str) -> str:
        return f"{self.namespace}/planner/{topic}"

    def until(self, condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> None:
        end = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < end, f"waited {patience_s} s in vain for {what}"
            self.executor.spin_once(timeout_sec=0.05)

    def spin(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.executor.spin_once(timeout_sec=min(left, 0.05))

    def done(self, future: Any, what: str) -> Any:
        self.until(future.done, what)
        return future.result()

    def call(self, kind: type, service: str, request: Any) -> Any:
        proxy = self._proxies.get(service)
        if proxy is None:
            proxy = self._proxies[service] = self.node.create_client(kind, self.name(service))
            self.until(proxy.service_is_ready, f"service {service}")
            self.spin(SETTLE_S)
        return self.done(proxy.call_async(request), f"an answer from {service}")

    # --- Lifecycle and parameters ---

    def transition(self, name: str) -> bool:
        request = ChangeState.Request(transition=Transition(label=name))
        return self.call(ChangeState, "change_state", request).success

    def state(self) -> str:
        return self.call(GetState, "get_state", GetState.Request()).current_state.label

    def bring_up(self) -> None:
        assert self.transition("configure") and self.transition("activate")
        self.until(self.actions.server_is_ready, "the action server")

    def set(self, **values: Any) -> list[SetParametersResult]:
        parameters = [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
        return self.call(SetParameters, "set_parameters", SetParameters.Request(parameters=parameters)).results

    def parameter_names(self) -> list[str]:
        return list(self.call(ListParameters, "list_parameters", ListParameters.Request()).result.names)

    def describe(self, *names: str) -> list[Any]:
        request = DescribeParameters.Request(names=list(names))
        return self.call(DescribeParameters, "describe_parameters", request).descriptors

    def get(self, *names: str) -> list[Any]:
        return self.call(GetParameters, "get_parameters", GetParameters.Request(names=list(names))).values

    # --- Goals and topics ---

    def send(self, instruction: str, **fields: Any) -> Goal:
        """Send a goal; ``handle.accepted`` says whether it was taken."""
        self.until(self.actions.server_is_ready, "the action server")
        feedback: list[GeneratePlan.Feedback] = []
        request = GeneratePlan.Goal(instruction=instruction, **fields)
        sent = self.actions.send_goal_async(request, feedback_callback=lambda news: feedback.append(news.feedback))
        handle = self.done(sent, "the goal to be answered")
        return Goal(handle, feedback, handle.get_result_async() if handle.accepted else None)

    def finish(self, goal: Goal) -> tuple[str, GeneratePlan.Result]:
        """Wait for the goal's end: (status, result)."""
        answer = self.done(goal.result, "the goal to end")
        names = {
            GoalStatus.STATUS_SUCCEEDED: "succeeded",
            GoalStatus.STATUS_CANCELED: "canceled",
            GoalStatus.STATUS_ABORTED: "aborted",
        }
        return names[answer.status], answer.result

    def plan(self, instruction: str, **fields: Any) -> tuple[str, GeneratePlan.Result]:
        return self.finish(self.send(instruction, **fields))

    def status(self, messages: list[Any]) -> list[Any]:
        """This planner's own among the messages of /diagnostics."""
        own = f"{self.namespace}/planner: ".lstrip("/")
        return [status for message in messages for status in message.status if status.name.startswith(own)]

    @contextmanager
    def listening(self, kind: type, topic: str, qos: QoSProfile | int) -> Iterator[list[Any]]:
        """Messages of ``topic`` (absolute, or below the node) as they come, once the publisher is matched."""
        messages: list[Any] = []
        path = topic if topic.startswith("/") else self.name(topic)
        subscription = self.node.create_subscription(kind, path, messages.append, qos)
        try:
            self.until(lambda: self.node.count_publishers(path), f"a publisher on {path}")
            yield messages
        finally:
            self.node.destroy_subscription(subscription)


@contextmanager
def active_planner(namespace: str, folder: Path, **settings: Any) -> Iterator[PlannerClient]:
    """A client of a planner process that has been brought to active."""
    with PlannerClient(namespace) as client, PlannerProcess(namespace, folder, **settings):
        client.bring_up()
        yield client
