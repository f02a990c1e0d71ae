"""A client that talks to a planner over DDS, as a robot would.

Tests run beside other work, on two cores at worst. So nothing here waits for a time to pass where it can wait for an
event, and patience is long: it is spent only when something is wrong.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import rclpy
from action_msgs.msg import GoalStatus
from lifecycle_msgs.msg import Transition, TransitionEvent
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.msg import SetParametersResult
from rcl_interfaces.srv import DescribeParameters, GetParameters, ListParameters, SetParameters
from rclpy.action import ActionClient
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter, parameter_value_to_python
from rclpy.qos import QoSProfile

from spec_planner.nodes import qos as profiles
from spec_planner_msgs.action import GeneratePlan
from spec_planner_msgs.msg import Scene, SceneThing
from spec_planner_msgs.srv import Certify
from tests.nodes.planner_process import PATIENCE_S, PlannerProcess

ASK_AGAIN_S = 1.0


def fresh_namespace() -> str:
    return f"/test_{uuid.uuid4().hex[:8]}"


def make_scene(places: Mapping[str, str], objects: Mapping[str, str], robot_at: str = "", holding: str = "") -> Scene:
    """``places``: name → kind; ``objects``: name → where it is, "" for who knows."""
    things = [SceneThing(name=name, kind=kind) for name, kind in places.items()]
    things += [SceneThing(name=name, at=at) for name, at in objects.items()]
    return Scene(things=things, robot_at=robot_at, holding=holding)


@dataclass
class Goal:
    """A goal as its client sees it."""

    handle: Any
    feedback: list[GeneratePlan.Feedback]
    result: Any  # future


def tokens_in(goal: Goal) -> int:
    """Tokens that the feedback so far tells of."""
    return sum(news.metrics.acceptance_length for news in goal.feedback)


class PlannerClient:
    """Everything a robot would ask of a planner in ``namespace``; each call spins until its answer is there.

    Attributes:
        process: the planner's, where the client was made together with it.
    """

    process: PlannerProcess

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

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

    def ask(self, kind: type, service: str, request: Any) -> Any:
        """A future of the answer."""
        proxy = self._proxies.get(service)
        if proxy is None:
            proxy = self._proxies[service] = self.node.create_client(kind, self.name(service))
            self.until(proxy.service_is_ready, f"service {service}")
            self.settle()
        return proxy.call_async(request)

    def call(self, kind: type, service: str, request: Any) -> Any:
        return self.done(self.ask(kind, service, request), f"an answer from {service}")

    def settle(self) -> None:
        """Until the planner knows everything this client has created so far.

        DDS matches the two ends separately, and an answer is lost while the server does not know its reader. It learns
        of readers in the order of their creation: once a service asked through a new one answers, the others are known.
        """
        asking = self.node.create_client(GetState, self.name("get_state"))
        self.until(asking.service_is_ready, "service get_state")
        asked: list[Any] = []
        end = time.monotonic() + PATIENCE_S
        while not any(future.done() for future in asked):
            assert time.monotonic() < end, f"waited {PATIENCE_S} s in vain for an answer from get_state"
            asked.append(asking.call_async(GetState.Request()))
            again = time.monotonic() + ASK_AGAIN_S
            while not any(future.done() for future in asked) and time.monotonic() < again:
                self.executor.spin_once(timeout_sec=0.05)
        self.node.destroy_client(asking)

    # --- Lifecycle and parameters ---

    def begin(self, transition: str) -> Any:
        """Ask for a transition; a future of the answer."""
        return self.ask(ChangeState, "change_state", ChangeState.Request(transition=Transition(label=transition)))

    def transition(self, name: str) -> bool:
        return self.done(self.begin(name), f"the end of {name}").success

    def state(self) -> str:
        return self.call(GetState, "get_state", GetState.Request()).current_state.label

    def bring_up(self) -> None:
        assert self.transition("configure") and self.transition("activate")

    @contextmanager
    def seeing_states(self) -> Iterator[Callable[[str], bool]]:
        """Whether the planner has been in a state since, intermediate ones such as ``deactivating`` included."""
        with self.listening(TransitionEvent, "transition_event", 10) as events:
            yield lambda label: any(event.goal_state.label == label for event in events)

    @contextmanager
    def inactive(self) -> Iterator[None]:
        """An active planner is inactive meanwhile."""
        assert self.transition("deactivate")
        yield
        self.make_active()

    @contextmanager
    def reconfigured(self, **settings: Any) -> Iterator[None]:
        """An active planner is inactive with other settings meanwhile."""
        assert self.transition("deactivate") and self.transition("cleanup")
        values = map(parameter_value_to_python, self.get(*settings))
        before = dict(zip(settings, values, strict=True))
        self.set_all(**settings)
        assert self.transition("configure")
        try:
            yield
        finally:
            if self.state() == "active":
                assert self.transition("deactivate")
            if self.state() == "inactive":
                assert self.transition("cleanup")
            self.set_all(**before)
            self.make_active()

    def make_active(self) -> None:
        """From whatever state short of finalized."""
        state = self.state()
        if state == "unconfigured":
            assert self.transition("configure")
        if state != "active":
            assert self.transition("activate")

    def set(self, **values: Any) -> list[SetParametersResult]:
        parameters = [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
        return self.call(SetParameters, "set_parameters", SetParameters.Request(parameters=parameters)).results

    def set_all(self, **values: Any) -> None:
        assert all(result.successful for result in self.set(**values))

    def parameter_names(self) -> list[str]:
        return list(self.call(ListParameters, "list_parameters", ListParameters.Request()).result.names)

    def describe(self, *names: str) -> list[Any]:
        request = DescribeParameters.Request(names=list(names))
        return self.call(DescribeParameters, "describe_parameters", request).descriptors

    def get(self, *names: str) -> list[Any]:
        return self.call(GetParameters, "get_parameters", GetParameters.Request(names=list(names))).values

    # --- Goals, certificates and topics ---

    def send(self, instruction: str, **fields: Any) -> Goal:
        """Send a goal; ``handle.accepted`` says whether it was taken."""
        if not self._proxies:
            self.settle()
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

    @contextmanager
    def scene_publisher(self) -> Iterator[Callable[[Scene], None]]:
        """A function that publishes on ``~/scene`` and returns when the planner has taken the message in."""
        publisher = self.node.create_publisher(Scene, self.name("scene"), profiles.latched())
        try:
            self.until(lambda: publisher.get_subscription_count() == 1, "the scene topic")
            self.settle()

            def publish(scene: Scene) -> None:
                publisher.publish(scene)
                assert publisher.wait_for_all_acked(Duration(seconds=PATIENCE_S))
                self.state()  # the node looks at topics before services, so it has seen the scene

            yield publish
        finally:
            self.node.destroy_publisher(publisher)

    def order_certificate(self, **fields: Any) -> Any:
        """A future of the answer."""
        return self.ask(Certify, "certify", Certify.Request(**fields))

    def certify(self, **fields: Any) -> Certify.Response:
        return self.done(self.order_certificate(**fields), "a certificate")

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
            self.settle()
            yield messages
        finally:
            self.node.destroy_subscription(subscription)


@contextmanager
def active_planner(namespace: str, **settings: Any) -> Iterator[PlannerClient]:
    """A client of a planner process that has been brought to active."""
    with PlannerClient(namespace) as client, PlannerProcess(namespace, **settings) as client.process:
        client.bring_up()
        yield client
