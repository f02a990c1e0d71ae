"""The service ``~/certify``: the loaded planner against plain decoding, compared on a thread of its own.

Everything here runs on the executor's thread, except ``_work``. A request is awaited, so the node goes on answering
meanwhile; as with goals, the other thread only leaves its outcome and triggers a guard condition.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node
from rclpy.task import Future

from spec_planner_msgs.srv import Certify

from ..certify.certificate import Settings, Subject
from ..certify.document import write
from ..certify.planner import certify_planner, read_instructions, settings_for, subject_for
from ..config import ConfigError, PlannerConfig
from ..drafter_choice import chosen, drafter_files
from ..factory import make_request, model_directory
from ..language.plan import Scene
from ..pipeline.plan_pipeline import PlanPipeline
from ..pipeline.types import PlanRequest
from . import conversions, parameters
from .diagnostics import PlannerDiagnostics


@dataclass(frozen=True)
class Order:
    """What is to be compared."""

    pipeline: PlanPipeline
    config: PlannerConfig
    subject: Subject
    requests: list[PlanRequest]
    settings: Settings
    out: Path | None


@dataclass(eq=False)
class Certification:
    """A comparison under way."""

    order: Order
    ended: Future  # of the service's response
    stopped: str = ""  # why it must end without a verdict, one sentence
    response: Certify.Response | None = None
    trace: str = ""  # of a comparison that broke down


class CertifyServer:
    """Service ``~/certify`` of ``node``.

    Args:
        diagnostics: told what is under way and how it ended.
        scene: what the node's goals plan in.
        inactive_pipeline: the loaded pipeline; raises ValueError, one sentence, unless the node is inactive.
    """

    def __init__(
        self,
        node: Node,
        diagnostics: PlannerDiagnostics,
        scene: Callable[[], Scene],
        inactive_pipeline: Callable[[], PlanPipeline],
    ) -> None:
        self._node, self._diagnostics, self._scene, self._inactive_pipeline = (
            node,
            diagnostics,
            scene,
            inactive_pipeline,
        )
        self._logger = node.get_logger()
        self._running: Certification | None = None
        self._thread: threading.Thread | None = None
        self._unanswered = 0
        self._ended = node.create_guard_condition(self._on_ended)
        # Reentrant, because the awaited request would otherwise keep the next one from being refused.
        node.create_service(Certify, "~/certify", self._on_request, callback_group=ReentrantCallbackGroup())

    @property
    def busy(self) -> bool:
        """A request has not been answered yet."""
        return self._unanswered > 0

    def cancel(self, reason: str) -> None:
        """End a comparison under way without a verdict; returns within one decoding step."""
        if self._running:
            self._running.stopped = reason
            self._finish()

    async def _on_request(self, request: Certify.Request, _: Certify.Response) -> Certify.Response:
        try:
            order = self._order(request)
        except (ValueError, OSError) as problem:  # OSError: the list of instructions is not installed
            self._logger.warning(f"certify refused: {problem}")
            return conversions.no_certificate(f"refused: {problem}")
        self._unanswered += 1
        response = await self._start(order)
        self._unanswered -= 1
        return response

    def _order(self, request: Certify.Request) -> Order:
        """Raises ValueError or FileNotFoundError: the request cannot be carried out, or not now."""
        pipeline = self._inactive_pipeline()
        if self._running:
            raise ConfigError("a certification is running; wait for its end, or end it with a lifecycle transition")
        config = parameters.read_config(self._node)
        config = chosen(config, model_directory(config.model))
        return Order(
            pipeline,
            config,
            subject_for(config, pipeline.drafter, pipeline.rule),
            [make_request(config, instruction, self._scene()) for instruction in read_instructions()],
            settings_for(config, request.tokens or None, request.temperatures, config.seed),
            _directory(request.out) if request.out else None,
        )

    def _start(self, order: Order) -> Future:
        running = Certification(order, Future(executor=self._node.executor))
        self._logger.info(f"certifying {order.subject.name}: {order.settings.tokens} tokens against plain decoding")
        self._diagnostics.certification_started()
        self._running = running
        self._thread = threading.Thread(target=self._work, args=(running,), name="certify")
        self._thread.start()
        return running.ended

    def _work(self, running: Certification) -> None:
        """On a thread of its own: compare, and leave the response."""
        try:
            running.response = _certify(running.order, self._diagnostics.certification_news, lambda: running.stopped)
        except InterruptedError:
            running.response = conversions.no_certificate(f"cancelled: {running.stopped}; nothing was written")
        except Exception as error:  # a broken engine must not take the node down: it is what the client asked about
            said = f"certification broke down with {type(error).__name__}: {error}"
            running.response, running.trace = conversions.no_certificate(said), traceback.format_exc()
        self._ended.trigger()

    def _on_ended(self) -> None:
        if self._running and self._running.response:  # or ``cancel`` was faster
            self._finish()

    def _finish(self) -> None:
        """Wait for the thread, which has ended or has been told to, and answer the request."""
        running = self._running
        assert running is not None and self._thread is not None
        self._thread.join()
        self._running = self._thread = None
        assert running.response is not None
        if running.trace:
            self._logger.error(running.trace)
        response = running.response
        if response.passed:  # two calls: rclpy allows one severity per line of code
            self._logger.info(f"certification {response.message}")
        else:
            self._logger.warning(f"certification {response.message}")
        self._diagnostics.certification_done(response.success, response.passed, response.message)
        running.ended.set_result(response)


def _certify(order: Order, report: Callable[[float, str], None], cancelled: Callable[[], Any]) -> Certify.Response:
    config = order.config
    directory = model_directory(config.model)
    files = drafter_files(config, directory)
    certificate, content = certify_planner(
        order.pipeline,
        [order.subject],
        order.requests,
        order.settings,
        directory,
        {config.drafter: files} if files else {},
        report,
        lambda: bool(cancelled()),
    )
    unwritten = ""
    if order.out:
        try:
            write(content, order.out)
        except OSError as error:  # the verdict stands all the same
            unwritten = f"; the files could not be written to {order.out} ({error})"
    return conversions.certificate(certificate, content, unwritten)


def _directory(out: str) -> Path:
    """The directory ``out``, made if need be.

    Raises:
        ConfigError: it cannot be used; said before the comparison rather than after.
    """
    if not os.path.isabs(out):
        raise ConfigError(f"out {out!r} is relative to wherever the node was started: give an absolute directory")
    directory = Path(out)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"out {out!r} cannot be made ({error}): give a directory the node may write to") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigError(f"out {out!r} is not writable for the node: give another directory")
    return directory
