"""Real nodes in their own processes, real DDS, kept to this machine and to a domain of this test run's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
os.environ["ROS_DOMAIN_ID"] = str(1 + os.getpid() % 100)  # DDS has ports for domains up to 101

import rclpy  # noqa: E402  (reads the variables above)

from tests.models import make_tiny_model  # noqa: E402
from tests.nodes.support import PlannerClient, active_planner, fresh_namespace  # noqa: E402


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
    return fresh_namespace()


@pytest.fixture
def client(namespace: str) -> Iterator[PlannerClient]:
    with PlannerClient(namespace) as planner_client:
        yield planner_client


@pytest.fixture(scope="module")
def planner(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlannerClient]:
    """An active planner on the tiny random model: its answers are gibberish, everything else is real.

    Its first layer drafts, because prompt lookup finds nothing to repeat in gibberish. A module's tests share it, so a
    test that changes its state or parameters changes them back.
    """
    settings = {"model": str(tiny_model), "drafter": "draft-model", "draft_layers": 1, "num_draft_tokens": 4}
    with active_planner(fresh_namespace(), tmp_path_factory.mktemp("planner"), **settings) as client:
        yield client


@pytest.fixture(scope="module")
def scripted(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlannerClient]:
    """An active planner whose target says a fixed plan of four steps, 0.05 s per pass; shared like ``planner``."""
    settings = {"script": "scripted_node.py", "model": str(tiny_model)}
    with active_planner(fresh_namespace(), tmp_path_factory.mktemp("scripted"), **settings) as client:
        yield client
