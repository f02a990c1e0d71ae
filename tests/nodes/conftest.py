"""Real nodes in their own processes, real DDS, kept to this machine and to a domain of this test run's own."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
os.environ["ROS_DOMAIN_ID"] = str(1 + os.getpid() % 100)  # DDS has ports for domains up to 101

import rclpy  # noqa: E402  (reads the variables above)

from tests.models import make_tiny_model  # noqa: E402
from tests.nodes.support import PlannerClient, PlannerProcess  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def ros() -> Iterator[None]:
    rclpy.init()
    yield
    rclpy.try_shutdown()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def namespace() -> str:
    return f"/test_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def client(namespace: str) -> Iterator[PlannerClient]:
    with PlannerClient(namespace) as planner_client:
        yield planner_client


@pytest.fixture
def planner(namespace: str, client: PlannerClient, tiny_model: Path, tmp_path: Path) -> Iterator[PlannerProcess]:
    """An active planner on the tiny random model: its answers are gibberish, everything else is real."""
    with PlannerProcess(namespace, tmp_path, model=str(tiny_model), context_length=4096) as process:
        client.bring_up()
        yield process


@pytest.fixture
def scripted(namespace: str, client: PlannerClient, tiny_model: Path, tmp_path: Path) -> Iterator[PlannerProcess]:
    """An active planner whose target says a fixed plan of four steps, 0.1 s per pass."""
    with PlannerProcess(namespace, tmp_path, script="scripted_node.py", model=str(tiny_model)) as process:
        client.bring_up()
        yield process
