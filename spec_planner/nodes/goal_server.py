"""The planner's goals: taken by action or topic, decoded on the worker's thread, answered on the executor's.

Everything here runs on the executor's thread, except ``_tell``.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.node import Node
from rclpy.task import Future
from std_msgs.msg import String
from unique_identifier_msgs.msg import UUID

from spec_planner_msgs.action import GeneratePlan

from ..language.plan import Scene
from ..pipeline.plan_pipeline import PlanPipeline
from ..pipeline.types import PlanProgress, PlanResult
from . import conversions, incoming, parameters, qos
from .decode_worker import DecodeWorker, Finished, Job, News, empty_result
from .diagnostics import PlannerDiagnostics

RESULT_TIMEOUT_S = 60  # how long an ended goal's result can still be asked for


@dataclass(eq=False)
class OpenGoal:
    """A goal that has not been answered yet."""

    goal_id: UUID
    instruction: str
    accepted_at: float  # time.monotonic()
    handle: ServerGoalHandle | None  # None when the instruction came by topic
    ended: Future  # of the action's result
    deadline_s: float = 0.0  # 0: none
    job: Job | None = None  # None when the content cannot be used


class GoalServer:
    """Action ``~/generate_plan`` and topic ``~/instruction`` of ``node``; closed until ``open``.

    Args:
        diagnostics: told of every step and every goal's end.
        scene: what goals that bring none plan in.
        publish: sends a message on the topic of its type.
    """

    def __init__(
        self,
        node: Node,
        diagnostics: PlannerDiagnostics,
        scene: Callable[[], Scene],
        publish: Callable[[Any], None],
    ) -> None:
        self._node, self._diagnostics, self._scene, self._publish = node, diagnostics, scene, publish
        self._logger = node.get_logger()
        self._pipeline: PlanPipeline | None = None
        self._worker: DecodeWorker | None = None
        self._goals: dict[bytes, OpenGoal] = {}
        self._news: deque[News] = deque()
        self._news_waiting = node.create_guard_condition(self._take_news)
        node.create_subscription(String, "~/instruction", self._on_instruction, qos.command())
        self._actions = ActionServer(
            node,
            GeneratePlan,
            "~/generate_plan",
            self._execute,
            goal_callback=self._on_goal,
            handle_accepted_callback=self._on_accepted,
            cancel_callback=self._on_cancel,
            result_timeout=RESULT_TIMEOUT_S,
        )

    @property
    def is_open(self) -> bool:
        return self._worker is not None

    @property
    def busy(self) -> bool:
        """A goal has not been answered yet."""
        return bool(self._goals)

    def open(self, pipeline: PlanPipeline) -> None:
        """Take goals from now on and run them on ``pipeline``."""
        self._pipeline = pipeline
        self._worker = DecodeWorker(pipeline, self._tell)
        self._worker.start()

    def close(self, reason: str) -> None:
        """Take no more goals and end those there are; returns within one decoding step."""
        if self._worker:
            self._worker.stop(reason)
            self._worker = self._pipeline = None
            self._take_news()

    def destroy(self) -> None:
        self._actions.destroy()

    def _on_goal(self, goal: GeneratePlan.Goal) -> GoalResponse:
        if self._worker:
            return GoalResponse.ACCEPT
        self._logger.warning("goal rejected: the planner is not active; activate it first")
        return GoalResponse.REJECT

    def _on_accepted(self, handle: ServerGoalHandle) -> None:
        self._begin(handle.request, handle.goal_id, handle)
        handle.execute()

    def _on_instruction(self, message: String) -> None:
        if not self._worker:
            self._logger.warning("instruction ignored: the planner is not active; activate it first")
            return
        self._begin(conversions.goal_for(message.data), UUID(uuid=list(uuid.uuid4().bytes)), None)

    def _begin(self, request: GeneratePlan.Goal, goal_id: UUID, handle: ServerGoalHandle | None) -> None:
        """Hand a goal to the worker, or end it at once if its content cannot be used."""
        assert self._worker is not None and self._pipeline is not None
        now = time.monotonic()
        goal = OpenGoal(goal_id, request.instruction, now, handle, Future(executor=self._node.executor))
        self._goals[bytes(goal_id.uuid)] = goal
        try:
            config = parameters.read_config(self._node)
            plan_request = incoming.plan_request(request, config, self._pipeline.skills, self._scene(), now)
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
                    self._logger.error(news.trace)
                self._end(goal, news.result, news.outcome, news.detail)
                continue
            self._on_progress(goal, news.progress)

    def _on_progress(self, goal: OpenGoal, progress: PlanProgress) -> None:
        stamp = self._node.get_clock().now().to_msg()
        for step in conversions.plan_steps(progress, goal.goal_id, stamp):  # first: the robot waits for them
            self._publish(step)
        feedback = conversions.feedback(progress, goal.goal_id, stamp)
        if goal.handle:
            goal.handle.publish_feedback(feedback)
        self._publish(feedback.metrics)
        self._diagnostics.step_done(progress.metrics)
        if progress.metrics.index == 0:
            self._foresee(goal, progress)

    def _foresee(self, goal: OpenGoal, progress: PlanProgress) -> None:
        """Say so if the goal, whose prefill is over, may be late."""
        self._diagnostics.goal_began()
        if not goal.deadline_s or progress.expected_ms is None:
            return
        gone_s = time.monotonic() - goal.accepted_at
        needed_s = gone_s + (progress.expected_ms - progress.metrics.elapsed_ms) / 1e3
        if needed_s > goal.deadline_s:
            sentence = (
                f"the goal may miss its deadline of {goal.deadline_s:.2g} s: a run like those before it "
                f"takes {needed_s:.2g} s from acceptance"
            )
            self._logger.warning(sentence)
            self._diagnostics.goal_may_be_late(sentence)

    def _end(self, goal: OpenGoal, run: PlanResult, outcome: str, detail: str) -> None:
        """Publish a goal's plan and figures and complete its action."""
        elapsed_s = time.monotonic() - goal.accepted_at
        stamp = self._node.get_clock().now().to_msg()
        result = conversions.result(run, outcome, detail, goal.instruction, goal.goal_id, stamp)
        self._diagnostics.goal_done(outcome, detail, elapsed_s, goal.deadline_s, run.metrics)
        if outcome != GeneratePlan.Result.REFUSED:
            self._publish(result.plan)
            self._publish(result.metrics)
        sentence = f"goal {outcome} after {elapsed_s:.2f} s: {detail or f'{len(run.plan.steps)} steps'}"
        if outcome == GeneratePlan.Result.SUCCEEDED:  # two calls: rclpy allows one severity per line of code
            self._logger.info(sentence)
        else:
            self._logger.warning(sentence)
        goal.ended.set_result(result)
        if goal.handle is None:
            del self._goals[bytes(goal.goal_id.uuid)]
