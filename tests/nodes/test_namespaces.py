"""Two planners side by side: each answers its own clients only."""

from __future__ import annotations

from pathlib import Path

from spec_planner.nodes import qos
from spec_planner_msgs.msg import Plan
from tests.nodes.planner_process import PlannerProcess
from tests.nodes.support import PlannerClient


def test_two_nodes_in_two_namespaces(scripted: PlannerClient, namespace: str, tiny_model: Path) -> None:
    nested = f"{scripted.namespace}{namespace}"  # below the other's own namespace
    settings = {"script": "scripted_node.py", "model": str(tiny_model)}
    with PlannerClient(nested) as other, PlannerProcess(nested, **settings):
        assert (scripted.state(), other.state()) == ("active", "unconfigured")
        assert not other.send("tidy up").handle.accepted
        other.bring_up()
        with other.listening(Plan, "plan", qos.latched()) as plans:
            left, right = scripted.send("go left"), other.send("go right")
            assert scripted.finish(left)[1].plan.instruction == "go left"
            assert other.finish(right)[1].plan.instruction == "go right"
            other.until(lambda: plans, "the right plan")
        assert [plan.instruction for plan in plans] == ["go right"]
        assert scripted.transition("deactivate")
        assert other.state() == "active"
