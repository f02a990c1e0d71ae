"""The demo's ROS side: drives the node's lifecycle and sends goals, all over DDS from this process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import rclpy
from action_msgs.msg import GoalStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.action import ActionClient
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.signals import SignalHandlerOptions

from spec_planner_msgs.action import GeneratePlan
from spec_planner_msgs.msg import EngineInfo, Scene

from .node_process import DemoError
from .report import Run

TURN_S = 0.05  # longest wait before the node's health is looked at again


class PlannerClient:
    """One client for a whole demo; ``check_node`` is called while waiting and raises when the node has died."""

    def __init__(self, node_name: str, check_node: Callable[[], None]) -> None:
        rclpy.init(signal_handler_options=SignalHandlerOptions.NO)  # Ctrl-C is the demo's to handle
        self._node = rclpy.create_node("planner_demo", start_parameter_services=False)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self._node)
        self._check_node = check_node
        self._change_state = self._node.create_client(ChangeState, f"{node_name}/change_state")
        self._goals = ActionClient(self._node, GeneratePlan, f"{node_name}/generate_plan")
        self._info: EngineInfo | None = None
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self._node.create_subscription(EngineInfo, f"{node_name}/engine_info", self._take_info, latched)

    def close(self) -> None:
        self._goals.destroy()
        self._executor.shutdown()
        self._node.destroy_node()
        rclpy.try_shutdown()

    def wait_for_node(self, seconds: float) -> None:
        """Until the node's services and action are there."""
        ready = self._change_state.service_is_ready
        self._spin_until(lambda: ready() and self._goals.server_is_ready(), seconds, "the planner node did not appear")

    def configure(self, seconds: float) -> None:
        self._transition(Transition.TRANSITION_CONFIGURE, "configure", seconds)

    def activate(self, seconds: float) -> EngineInfo:
        """Activate, and wait for what the node says it runs."""
        self._transition(Transition.TRANSITION_ACTIVATE, "activate", seconds)
        self._spin_until(lambda: self._info is not None, 10.0, "the planner node published no engine_info")
        assert self._info is not None
        return self._info

    def plan(self, instruction: str, scene: Scene, *, plain: bool, seconds: float,
             on_step: Callable[[float, Any], None] = lambda elapsed_s, step: None) -> Run:  # fmt: skip
        """Send one goal and wait for its end; ``on_step`` gets each plan step as it arrives.

        Raises:
            DemoError: the goal was rejected, aborted, or took too long.
        """
        goal = GeneratePlan.Goal(instruction=instruction, scene=scene, plain=plain)
        began = time.monotonic()

        def feedback(message: Any) -> None:
            for step in message.feedback.new_steps:
                on_step(time.monotonic() - began, step)

        sent = self._goals.send_goal_async(goal, feedback_callback=feedback)
        self._spin_until(sent.done, seconds, "the planner node did not answer the goal")
        handle = sent.result()
        if not handle.accepted:
            raise DemoError("the planner node rejected the goal")
        ended = handle.get_result_async()
        self._spin_until(ended.done, seconds, "the goal did not end")
        total_ms = 1000.0 * (time.monotonic() - began)
        answer = ended.result()
        if answer.status != GoalStatus.STATUS_SUCCEEDED:
            raise DemoError(
                f"the goal ended {answer.result.outcome or 'aborted'}: {answer.result.detail or 'no reason given'}"
            )
        return read_run(answer.result, total_ms)

    def _transition(self, number: int, name: str, seconds: float) -> None:
        request = ChangeState.Request(transition=Transition(id=number))
        answer = self._change_state.call_async(request)
        self._spin_until(answer.done, seconds, f"the planner node did not finish '{name}'")
        if not answer.result().success:
            raise DemoError(f"the planner node refused to {name}")

    def _take_info(self, message: EngineInfo) -> None:
        self._info = message

    def _spin_until(self, done: Callable[[], bool], seconds: float, otherwise: str) -> None:
        limit = time.monotonic() + seconds
        while not done():
            self._check_node()
            if time.monotonic() > limit:
                raise DemoError(f"{otherwise} within {seconds:.0f} s")
            self._executor.spin_once(timeout_sec=TURN_S)


def read_run(result: Any, total_ms: float) -> Run:
    """The result message as plain data."""
    first_step_ms = result.time_to_first_step_ms
    return Run(
        tokens=tuple(result.tokens),
        num_steps=len(result.plan.steps),
        acceptance_length=result.metrics.acceptance_length,
        verify_passes=result.metrics.verify_passes,
        time_per_output_token_ms=result.metrics.time_per_output_token_ms,
        time_to_first_token_ms=result.metrics.time_to_first_token_ms,
        time_to_first_step_ms=None if math.isnan(first_step_ms) else first_step_ms,
        total_ms=total_ms,
        exact=result.metrics.exact,
        prompt_tokens=result.metrics.prompt_tokens,
        reused_tokens=result.metrics.reused_tokens,
    )
