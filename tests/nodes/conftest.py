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


@pytest.fixture(scope="session")
def shared_planner(tiny_model: Path) -> Iterator[PlannerClient]:
    settings = {"model": str(tiny_model), "drafter": "draft-model", "draft_layers": 1, "num_draft_tokens": 4}
    settings["engine"] = "torch"  # auto would first try every engine
    settings["draft_budget"] = "fixed"  # on a model this small drafting loses, and a measured one turns it off
    with active_planner(fresh_namespace(), **settings) as client:
        yield client


@pytest.fixture(scope="session")
def shared_scripted(tiny_model: Path) -> Iterator[PlannerClient]:
    with active_planner(fresh_namespace(), script="scripted_node.py", model=str(tiny_model)) as client:
        yield client


@pytest.fixture
def planner(shared_planner: PlannerClient) -> PlannerClient:
    """An active planner on the tiny random model: its answers are gibberish, everything else is real.

    Its first layer drafts, because prompt lookup finds nothing to repeat in gibberish. All tests share its process, so
    a test that changes parameters changes them back; the state is seen to here.
    """
    shared_planner.make_active()
    return shared_planner


@pytest.fixture
def scripted(shared_scripted: PlannerClient) -> PlannerClient:
    """An active planner whose target says a fixed plan of four steps, and can be held; shared like ``planner``."""
    shared_scripted.make_active()
    return shared_scripted
