"""The planner as a managed ROS 2 node: instruction in, plan out.

Threads. Everything ROS happens on the executor's single thread. Decoding happens on the decode worker's thread, which
never calls ROS: it appends its news to a queue and triggers a guard condition, and the executor's thread takes them
from there, publishes them and completes the goal. A certification has a thread of its own, under the same rule. Loading
and warming up run inside their transition, on the executor's thread. (The stock MultiThreadedExecutor loses messages
between processes in rclpy 7.1 and 9.1; nothing here needs it.)

Lifecycle. configure loads and checks, and refuses with one sentence; activate warms up and opens for goals; deactivate
aborts the running goal; cleanup frees the memory; shutdown works from every state. Leaving the inactive state ends a
certification that is under way.

Interface (``~`` is the node's name):
    action       ~/generate_plan  spec_planner_msgs/GeneratePlan     one goal at a time; a new goal preempts
    subscribes   ~/instruction    std_msgs/String                    the same path without a client
                 ~/scene          spec_planner_msgs/Scene            latched: what later goals that bring none plan in
    publishes    ~/plan_step      spec_planner_msgs/PlanStepStamped  each step the moment it is complete
                 ~/plan           spec_planner_msgs/Plan             latched, one per goal
                 ~/step_metrics   spec_planner_msgs/StepMetrics      best effort, one per decoding step
                 ~/run_metrics    spec_planner_msgs/RunMetrics       latched, one per goal
                 ~/engine_info    spec_planner_msgs/EngineInfo       latched, at activate
                 /diagnostics     diagnostic_msgs/DiagnosticArray    1 Hz, in every state
    service      ~/certify        spec_planner_msgs/Certify          in the inactive state, one at a time: drafter and
                                                                     rule as configured against plain decoding
    parameters   the fields of spec_planner.config.PlannerConfig

A goal is rejected only while the node is not active. A goal whose content cannot be used is accepted and aborted with
the reason in ``detail``, so that the client learns it. A certification that cannot run, or ends without a verdict, is
answered with ``success`` false and the reason in ``message``.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecyclePublisher, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.qos_overriding_options import QoSOverridingOptions

from spec_planner_msgs.msg import EngineInfo, Plan, PlanStepStamped, RunMetrics, StepMetrics

from ..config import ConfigError, PlannerConfig
from ..factory import build_pipeline, read_scene
from ..pipeline.plan_pipeline import PlanPipeline
from . import conversions, parameters, qos
from .certify_server import CertifyServer
from .diagnostics import PlannerDiagnostics
from .goal_server import GoalServer
from .process import ManagedNode, run
from .scene_topic import SceneTopic

BuildPipeline = Callable[[PlannerConfig, Callable[[str], None]], PlanPipeline]


class PlannerNode(ManagedNode):
    """See the module's description.

    Args:
        build: makes the pipeline at configure (``factory.build_pipeline``).
        interrupted: asked while loading; True abandons the load.

    Raises:
        ConfigError: a parameter override is out of range or of the wrong type.
    """

    def __init__(self, build: BuildPipeline, interrupted: Callable[[], bool] = lambda: False) -> None:
        super().__init__("planner")
        self._build, self._interrupted = build, interrupted
        self._pipeline: PlanPipeline | None = None
        self._outputs: dict[type, LifecyclePublisher] = {}
        self._goals: GoalServer | None = None  # rclpy destroys a node that failed before it was complete
        self._certify: CertifyServer | None = None
        parameters.declare(self)
        for sentence in parameters.misspelt(self):
            self.get_logger().warning(sentence)
        self.add_on_set_parameters_callback(self._on_set_parameters)
        self._diagnostics = PlannerDiagnostics(self.get_fully_qualified_name())
        self._diagnostics_publisher = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        # Steady, because diagnostics must not stop with a simulated clock.
        self.create_timer(1.0, self._publish_diagnostics, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self._scenes = SceneTopic(self, self._diagnostics)
        self._goals = GoalServer(self, self._diagnostics, lambda: self._scenes.scene, self._publish)
        self._certify = CertifyServer(self, self._diagnostics, lambda: self._scenes.scene, self._inactive_pipeline)

    @property
    def state(self) -> str:
        if self.finalized:
            return "finalized"
        if self._goals and self._goals.is_open:
            return "active"
        return "inactive" if self._pipeline else "unconfigured"

    @property
    def busy(self) -> bool:
        return bool((self._goals and self._goals.busy) or (self._certify and self._certify.busy))

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            config = parameters.read_config(self)
            self._pipeline = self._build(config, self._report_loading)
            from_file = read_scene(config, self._pipeline.skills)
            self._create_outputs()
        except Exception as error:  # rclpy would drop it without a word
            self._unload()
            return self._refuse("configure", error)
        self._diagnostics.problem = ""
        self._diagnostics.loaded(self._pipeline, config.exactness)
        self._scenes.open(self._pipeline.skills, from_file)
        info, rule = self._pipeline.info, self._pipeline.rule
        self.get_logger().info(f"loaded {info.name} on {info.engine} ({info.precision}, {info.device})")
        if not rule.exact:
            self.get_logger().warning(
                f"rule {rule.name} is lossy: with it, plans do not follow the model's own law; "
                f"drafter-invariant keeps its very tokens"
            )
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        assert self._pipeline is not None and self._goals is not None
        self._cancel_certification("the planner is being activated")
        try:
            self._pipeline.warm_up()
        except Exception as error:  # as above
            return self._refuse("activate", error)
        self._diagnostics.problem = ""
        returned = super().on_activate(state)  # opens the publishers
        stamp = self.get_clock().now().to_msg()
        self._publish(conversions.engine_info(self._pipeline, parameters.read_config(self), stamp))
        self._goals.open(self._pipeline)
        return returned

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._close_goals("the planner was deactivated")
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._cancel_certification("the planner is being cleaned up")
        self._unload()
        return super().on_cleanup(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._close_goals("the planner was shut down")
        self._cancel_certification("the planner is being shut down")
        self._unload()
        self.finalized = True
        return super().on_shutdown(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._close_goals("a transition of the planner failed")
        self._cancel_certification("a transition of the planner failed")
        self._unload()
        return super().on_error(state)

    def destroy_node(self) -> None:
        self._close_goals("the planner was shut down")
        self._cancel_certification("the planner was shut down")
        if self._goals:
            self._goals.destroy()
            self._goals = None
        super().destroy_node()

    def _create_outputs(self) -> None:
        """Publishers live from configure to cleanup, so that nothing latched outlives what it speaks of."""
        for kind, topic, profile in (
            (PlanStepStamped, "~/plan_step", qos.stream()),
            (Plan, "~/plan", qos.latched()),
            (StepMetrics, "~/step_metrics", qos.telemetry()),
            (RunMetrics, "~/run_metrics", qos.latched()),
            (EngineInfo, "~/engine_info", qos.latched()),
        ):
            overrides = QoSOverridingOptions.with_default_policies()
            publisher = self.create_lifecycle_publisher(kind, topic, profile, qos_overriding_options=overrides)
            self._outputs[kind] = publisher

    def _publish(self, message: Any) -> None:
        self._outputs[type(message)].publish(message)

    def _close_goals(self, reason: str) -> None:
        if self._goals:
            self._goals.close(reason)

    def _cancel_certification(self, reason: str) -> None:
        if self._certify:
            self._certify.cancel(reason)

    def _inactive_pipeline(self) -> PlanPipeline:
        """Raises ConfigError: the planner is not in the inactive state."""
        if self._pipeline is None or self.state != "inactive":
            cure = {"active": "deactivate it first", "finalized": "start the node again"}
            raise ConfigError(f"the planner is {self.state}; {cure.get(self.state, 'configure it first')}")
        return self._pipeline

    def _unload(self) -> None:
        for publisher in self._outputs.values():
            self.destroy_lifecycle_publisher(publisher)
        self._outputs.clear()
        self._diagnostics.loaded(None)
        self._scenes.close()
        if self._pipeline:
            self._pipeline.close()
            self._pipeline = None

    def _refuse(self, transition: str, error: Exception) -> TransitionCallbackReturn:
        """Say why a transition is refused and stay in the state it started from."""
        expected = isinstance(error, ValueError)  # the library's way of saying what the user must change
        sentence = str(error) if expected else f"{type(error).__name__}: {error}"
        self.get_logger().error(f"{transition} refused: {sentence}")
        if not expected:
            self.get_logger().error(traceback.format_exc())
        self._diagnostics.problem = sentence
        return TransitionCallbackReturn.FAILURE

    def _report_loading(self, line: str) -> None:
        if self._interrupted():
            raise ValueError("loading was interrupted by a signal")
        self.get_logger().info(line)

    def _on_set_parameters(self, changes: Sequence[Parameter]) -> SetParametersResult:
        return parameters.judge_change(self, changes, loaded=self._pipeline is not None)

    def _publish_diagnostics(self) -> None:
        self._diagnostics_publisher.publish(self._diagnostics.message(self.state, self.get_clock().now().to_msg()))


def main(args: Sequence[str] | None = None, build: BuildPipeline = build_pipeline) -> int:
    return run(lambda interrupted: PlannerNode(build, interrupted), args)
