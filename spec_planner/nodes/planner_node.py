"""The planner as a managed ROS 2 node: instruction in, plan out.

Threads. Everything ROS happens on the executor's single thread. Decoding happens on the decode worker's thread, which
never calls ROS: it appends its news to a queue and triggers a guard condition, and the executor's thread takes them
from there, publishes them and completes the goal. Loading and warming up run inside their transition, on the
executor's thread. (The stock MultiThreadedExecutor loses messages between processes in rclpy 7.1 and 9.1; nothing here
needs it.)

Lifecycle. configure loads and checks, and refuses with one sentence; activate warms up and opens for goals; deactivate
aborts the running goal; cleanup frees the memory; shutdown works from every state.

Interface (``~`` is the node's name):
    action       ~/generate_plan  spec_planner_msgs/GeneratePlan     one goal at a time; a new goal preempts
    subscribes   ~/instruction    std_msgs/String                    the same path without a client
    publishes    ~/plan           spec_planner_msgs/Plan             latched, one per goal
                 ~/step_metrics   spec_planner_msgs/StepMetrics      best effort, one per decoding step
                 ~/run_metrics    spec_planner_msgs/RunMetrics       latched, one per goal
                 ~/engine_info    spec_planner_msgs/EngineInfo       latched, at activate
                 /diagnostics     diagnostic_msgs/DiagnosticArray    1 Hz, in every state
    parameters   the fields of spec_planner.config.PlannerConfig

A goal is rejected only while the node is not active. A goal whose content cannot be used is accepted and aborted with
the reason in ``detail``, so that the client learns it.
"""

from __future__ import annotations

import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import SetParametersResult
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecyclePublisher, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.task import Future
from std_msgs.msg import String
from unique_identifier_msgs.msg import UUID

from spec_planner_msgs.action import GeneratePlan
from spec_planner_msgs.msg import EngineInfo, Plan, RunMetrics, StepMetrics

from ..config import PlannerConfig
from ..factory import build_pipeline
from ..pipeline.plan_pipeline import PlanPipeline
from ..pipeline.types import PlanResult
from . import conversions, parameters, qos
from .decode_worker import DecodeWorker, Finished, Job, News, empty_result
from .diagnostics import PlannerDiagnostics
from .process import ManagedNode, run

RESULT_TIMEOUT_S = 60  # how long an ended goal's result can still be asked for
BuildPipeline = Callable[[PlannerConfig, Callable[[str], None]], PlanPipeline]


@dataclass(eq=False)
class OpenGoal:
    """A goal that has not ended yet."""

    goal_id: UUID
    instruction: str
    accepted_at: float  # time.monotonic()
    deadline_s: float  # 0: none
    handle: ServerGoalHandle | None  # None when the instruction came by topic
    ended: Future  # of the action result
    job: Job | None = None


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
        self._worker: DecodeWorker | None = None
        self._action_server: ActionServer | None = None  # rclpy may destroy the node before it is complete
        self._news: deque[News] = deque()
        self._goals: dict[bytes, OpenGoal] = {}
        self._outputs: dict[type, LifecyclePublisher] = {}
        parameters.declare(self)
        for sentence in parameters.misspelt(self):
            self.get_logger().warning(sentence)
        self.add_on_set_parameters_callback(self._on_set_parameters)
        self._diagnostics = PlannerDiagnostics(self.get_fully_qualified_name())
        self._diagnostics_publisher = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        # Steady, because diagnostics must not stop with a simulated clock.
        self.create_timer(1.0, self._publish_diagnostics, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self._news_waiting = self.create_guard_condition(self._take_news)
        self.create_subscription(String, "~/instruction", self._on_instruction, qos.command())
        self._action_server = ActionServer(
            self,
            GeneratePlan,
            "~/generate_plan",
            self._execute,
            goal_callback=self._on_goal,
            handle_accepted_callback=self._on_accepted,
            cancel_callback=self._on_cancel,
            result_timeout=RESULT_TIMEOUT_S,
        )

    @property
    def state(self) -> str:
        if self.finalized:
            return "finalized"
        return "active" if self._worker else "inactive" if self._pipeline else "unconfigured"

    @property
    def busy(self) -> bool:
        return bool(self._goals)

    # --- Lifecycle ---

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            config = parameters.read_config(self)
            self._pipeline = self._build(config, self._report_loading)
        except Exception as error:  # rclpy would drop it without a word
            return self._refuse("configure", error)
        self._diagnostics.problem = ""
        self._diagnostics.loaded(self._pipeline)
        for kind, topic, profile in (
            (Plan, "~/plan", qos.latched()),
            (StepMetrics, "~/step_metrics", qos.telemetry()),
            (RunMetrics, "~/run_metrics", qos.latched()),
            (EngineInfo, "~/engine_info", qos.latched()),
        ):
            overrides = QoSOverridingOptions.with_default_policies()
            self._outputs[kind] = self.create_lifecycle_publisher(
                kind, topic, profile, qos_overriding_options=overrides
            )
        info = self._pipeline.info
        self.get_logger().info(f"loaded {info.name} on {info.engine} ({info.precision}, {info.device})")
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        assert self._pipeline is not None
        try:
            self._pipeline.warm_up()
        except Exception as error:
            return self._refuse("activate", error)
        self._diagnostics.problem = ""
        returned = super().on_activate(state)
        info = conversions.engine_info(self._pipeline, parameters.read_config(self), self.get_clock().now().to_msg())
        self._outputs[EngineInfo].publish(info)
        self._worker = DecodeWorker(self._pipeline, self._tell)
        self._worker.start()
        return returned

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._stop_decoding("the planner was deactivated")
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._unload()
        return super().on_cleanup(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._stop_decoding("the planner was shut down")
        self._unload()
        self.finalized = True
        return super().on_shutdown(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._stop_decoding("the planner met an error")
        self._unload()
        return super().on_error(state)

    def destroy_node(self) -> None:
        self._stop_decoding("the planner was shut down")
        if self._action_server:
            self._action_server.destroy()
            self._action_server = None
        super().destroy_node()

    def _refuse(self, transition: str, error: Exception) -> TransitionCallbackReturn:
        """Log why a transition is refused and stay in the state it started from."""
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

    def _stop_decoding(self, reason: str) -> None:
        """End the worker and answer every goal; returns within one decoding step."""
        if self._worker:
            self._worker.stop(reason)
            self._worker = None
            self._take_news()

    def _unload(self) -> None:
        for publisher in self._outputs.values():
            self.destroy_lifecycle_publisher(publisher)
        self._outputs.clear()
        self._diagnostics.loaded(None)
        if self._pipeline:
            self._pipeline.close()
            self._pipeline = None

    # --- Goals ---

    def _on_goal(self, goal: GeneratePlan.Goal) -> GoalResponse:
        if self._worker:
            return GoalResponse.ACCEPT
        self.get_logger().warning(f"goal rejected: the planner is {self.state}; activate it first")
        return GoalResponse.REJECT

    def _on_accepted(self, handle: ServerGoalHandle) -> None:
        self._open(handle.request, handle.goal_id, handle)
        handle.execute()

    def _on_instruction(self, message: String) -> None:
        if not self._worker:
            self.get_logger().warning(f"instruction ignored: the planner is {self.state}; activate it first")
            return
        goal_id = UUID(uuid=list(uuid.uuid4().bytes))
        self._open(conversions.goal_for(message.data), goal_id, None)

    def _open(self, request: GeneratePlan.Goal, goal_id: UUID, handle: ServerGoalHandle | None) -> None:
        """Hand a goal to the worker, or end it at once if its content cannot be used."""
        assert self._worker is not None and self._pipeline is not None
        now = time.monotonic()
        goal = OpenGoal(goal_id, request.instruction, now, 0.0, handle, Future(executor=self.executor))
        self._goals[bytes(goal_id.uuid)] = goal
        try:
            config = parameters.read_config(self)
            plan_request = conversions.plan_request(request, config, self._pipeline.skills, now)
        except ValueError as problem:
            self._end(goal, empty_result(), "refused", str(problem))
            return
        goal.deadline_s = plan_request.deadline - now if plan_request.deadline else 0.0
        goal.job = Job(plan_request, goal)
        self._worker.submit(goal.job)

    def _on_cancel(self, handle: ServerGoalHandle) -> CancelResponse:
        goal = self._goals.get(bytes(handle.goal_id.uuid))
        if goal and goal.job:
            goal.job.stop("cancelled", "the client cancelled the goal")
        return CancelResponse.ACCEPT

    async def _execute(self, handle: ServerGoalHandle) -> GeneratePlan.Result:
        """Wait for the goal's end without holding the executor's thread, then report it."""
        result: GeneratePlan.Result = await self._goals[bytes(handle.goal_id.uuid)].ended
        del self._goals[bytes(handle.goal_id.uuid)]
        if result.outcome == GeneratePlan.Result.SUCCEEDED:
            handle.succeed()
        elif result.outcome == GeneratePlan.Result.CANCELLED and handle.is_cancel_requested:
            handle.canceled()
        else:
            handle.abort()
        return result

    # --- News from the worker ---

    def _tell(self, news: News) -> None:
        """Called on the worker's thread."""
        self._news.append(news)
        self._news_waiting.trigger()

    def _take_news(self) -> None:
        while self._news:
            news = self._news.popleft()
            goal: OpenGoal = news.job.owner
            if isinstance(news, Finished):
                if news.trace:
                    self.get_logger().error(news.trace)
                self._end(goal, news.result, news.outcome, news.detail)
                continue
            stamp = self.get_clock().now().to_msg()
            feedback = conversions.feedback(news.progress, goal.goal_id, stamp)
            self._diagnostics.step_done(news.progress.metrics)
            self._outputs[StepMetrics].publish(feedback.metrics)
            if goal.handle:
                goal.handle.publish_feedback(feedback)

    def _end(self, goal: OpenGoal, run: PlanResult, outcome: str, detail: str) -> None:
        """Publish a goal's plan and figures and complete its action."""
        elapsed_s = time.monotonic() - goal.accepted_at
        stamp = self.get_clock().now().to_msg()
        result = conversions.result(run, outcome, detail, goal.instruction, goal.goal_id, stamp)
        self._diagnostics.goal_done(outcome, detail, elapsed_s, goal.deadline_s, run.metrics)
        if outcome != GeneratePlan.Result.REFUSED:
            self._outputs[Plan].publish(result.plan)
            self._outputs[RunMetrics].publish(result.metrics)
        sentence = f"goal {outcome} after {elapsed_s:.2f} s: {detail or f'{len(run.plan.steps)} steps'}"
        if outcome == GeneratePlan.Result.SUCCEEDED:  # two calls: rclpy allows one severity per line of code
            self.get_logger().info(sentence)
        else:
            self.get_logger().warning(sentence)
        goal.ended.set_result(result)
        if goal.handle is None:
            del self._goals[bytes(goal.goal_id.uuid)]

    # --- The rest ---

    def _on_set_parameters(self, changes: Sequence[Parameter]) -> SetParametersResult:
        return parameters.judge_change(self, changes, loaded=self._pipeline is not None)

    def _publish_diagnostics(self) -> None:
        self._diagnostics_publisher.publish(self._diagnostics.message(self.state, self.get_clock().now().to_msg()))


def main(args: Sequence[str] | None = None, build: BuildPipeline = build_pipeline) -> int:
    return run(lambda interrupted: PlannerNode(build, interrupted), args)
