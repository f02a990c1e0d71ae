"""Two planners side by side: each answers its own clients only."""

from __future__ import annotations

from pathlib import Path

from spec_planner.nodes import qos
from spec_planner_msgs.msg import Plan
from tests.nodes.support import PlannerClient, PlannerProcess


def test_two_nodes_in_two_namespaces(namespace: str, tiny_model: Path, tmp_path: Path) -> None:
    left, right = f"{namespace}/left", f"{namespace}/right"
    settings = {"script": "scripted_node.py", "model": str(tiny_model)}
    with (
        PlannerClient(left) as left_client,
        PlannerClient(right) as right_client,
        PlannerProcess(left, tmp_path, **settings),
        PlannerProcess(right, tmp_path, **settings),
    ):
        left_client.bring_up()
        assert right_client.state() == "unconfigured"
        assert not right_client.send("tidy up").handle.accepted
        right_client.bring_up()
        with right_client.listening(Plan, "plan", qos.latched()) as right_plans:
            goal, other = left_client.send("go left"), right_client.send("go right")
            assert left_client.finish(goal)[1].plan.instruction == "go left"
            assert right_client.finish(other)[1].plan.instruction == "go right"
            right_client.until(lambda: right_plans, "the right plan")
        assert [plan.instruction for plan in right_plans] == ["go right"]
        assert left_client.transition("deactivate")
        assert right_client.state() == "active"
