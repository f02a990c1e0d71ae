"""The robot's scene as the node knows it: the latest good one of ``~/scene``, else the one of ``scene_file``.

Everything here runs on the executor's thread. A goal takes the scene when it begins and keeps it to its end.
"""

from __future__ import annotations

from rclpy.node import Node

from spec_planner_msgs.msg import Scene as SceneMessage

from ..language.plan import Scene, SkillSet
from . import incoming, qos
from .diagnostics import PlannerDiagnostics

WHERE = "the scene on ~/scene"  # what errors call it


class SceneTopic:
    """Topic ``~/scene`` of ``node``. A scene can only be judged by the skills it is for, so one that comes while the
    node is unconfigured is judged at configure, and the latest good one again at every later configure.

    Args:
        diagnostics: told which scene goals get, and why one was refused.
    """

    def __init__(self, node: Node, diagnostics: PlannerDiagnostics) -> None:
        self._diagnostics, self._logger = diagnostics, node.get_logger()
        self._skills: SkillSet | None = None  # None: unconfigured
        self._from_file = Scene()
        self._message: SceneMessage | None = None  # the latest good one, or one still to be judged
        self._from_topic: Scene | None = None
        node.create_subscription(SceneMessage, "~/scene", self._on_scene, qos.latched())

    @property
    def scene(self) -> Scene:
        """For goals that bring none; nothing listed where nobody said anything."""
        return self._from_file if self._from_topic is None else self._from_topic

    def open(self, skills: SkillSet, from_file: Scene) -> None:
        """Take scenes of these skills from now on; ``from_file`` holds until one comes."""
        self._skills, self._from_file, self._from_topic = skills, from_file, None
        if self._message is not None:
            waiting, self._message = self._message, None
            self._take(waiting, skills)
        self._report()

    def close(self) -> None:
        self._skills, self._from_file, self._from_topic = None, Scene(), None

    def _on_scene(self, message: SceneMessage) -> None:
        if self._skills is None:
            self._message = message
            return
        self._take(message, self._skills)
        self._report()

    def _take(self, message: SceneMessage, skills: SkillSet) -> None:
        """An empty scene withdraws the one before."""
        try:
            taken = None if incoming.is_empty(message) else incoming.scene(message, skills, WHERE)
        except ValueError as problem:
            self._logger.warning(f"scene refused, the former one stays: {problem}")
            self._diagnostics.scene_problem = str(problem)
            return
        self._message = None if taken is None else message
        self._from_topic = taken
        self._diagnostics.scene_problem = ""

    def _report(self) -> None:
        source = "scene_file" if self._from_topic is None else "~/scene"
        count = len(self.scene.things)
        self._diagnostics.scene = f"{count} things from {source}" if self.scene != Scene() else "none: names are free"
