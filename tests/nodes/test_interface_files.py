"""Files that must agree with the node: launch arguments, config/planner.yaml, message definitions."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from unittest.mock import MagicMock, patch

import pytest
import yaml

from spec_planner.config import ENGINES, PRECISIONS, PlannerConfig
from spec_planner.decoding.contracts import TargetInfo
from spec_planner.decoding.metrics import RunMetrics, StepMetrics
from spec_planner.language.plan import Plan, PlanStep, RejectedLine
from spec_planner.nodes import parameters
from spec_planner.shipped_drafters import DISTILLED, NAMED
from spec_planner_msgs import msg as messages
from spec_planner_msgs.action import GeneratePlan
from tests.nodes.planner_process import ROOT, PlannerProcess
from tests.nodes.support import PlannerClient

LAUNCH_FILE = ROOT / "launch" / "planner.launch.py"
ABOUT_THE_PROCESS = {"params_file", "namespace", "autostart", "use_sim_time", "log_level"}  # no setting of the planner
SETTINGS = {entry.name for entry in fields(PlannerConfig)}
DEFINITIONS = [
    path for kind in ("msg", "srv", "action") for path in sorted((ROOT / "spec_planner_msgs").glob(f"{kind}/*.{kind}"))
]


def launch_arguments() -> dict[str, dict[str, str]]:
    """Declared arguments and their keywords; with stand-ins, as the ROS wheels on PyPI have no ``launch``."""
    names = [f"launch{part}" for part in ("", ".actions", ".conditions", ".events", ".substitutions")]
    names += [f"launch_ros{part}" for part in ("", ".actions", ".event_handlers", ".events", ".events.lifecycle")]
    names += ["launch_ros.parameter_descriptions", "launch_ros.substitutions"]
    with patch.dict(sys.modules, {name: MagicMock() for name in names}):
        spec = importlib.util.spec_from_file_location("planner_launch", LAUNCH_FILE)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.generate_launch_description()
    return {call.args[0]: call.kwargs for call in module.DeclareLaunchArgument.call_args_list}


def test_launch_arguments_are_described_and_known() -> None:
    arguments = launch_arguments()
    assert (
        set(arguments) == {"model", "drafter", "engine", "precision", "engine_file", "scene_file"} | ABOUT_THE_PROCESS
    )
    for name, keywords in arguments.items():
        assert len(keywords["description"]) > 20 and keywords["description"].endswith("."), name
        assert "default_value" in keywords, f"{name} must be optional"


def test_settings_are_described_alike_everywhere() -> None:
    comments = re.sub(r"\s*\n\s*# ?", " ", (ROOT / "config" / "planner.yaml").read_text())
    arguments = launch_arguments()
    for entry in fields(PlannerConfig):
        doc = entry.metadata["doc"]
        assert doc.rstrip(".") in comments, f"{entry.name} in config/planner.yaml: {doc}"  # there it may say more
    for choices in (arguments["drafter"]["description"], PlannerConfig.__dataclass_fields__["drafter"].metadata["doc"]):
        assert all(name in choices for name in ("auto", "none", "lookup", *NAMED, DISTILLED, "directory", "lookup+"))
    for name, known in (("engine", ENGINES), ("precision", PRECISIONS)):
        assert all(choice in arguments[name]["description"] for choice in known)


def test_launch_arguments_that_become_parameters_are_declared_by_the_node(
    namespace: str, client: PlannerClient
) -> None:
    with PlannerProcess(namespace):
        declared = set(client.parameter_names())
        assert (set(launch_arguments()) - ABOUT_THE_PROCESS) | {"use_sim_time"} <= declared
        assert declared >= SETTINGS
        described = {d.name: d for d in client.describe(*sorted(SETTINGS))}
    for entry in fields(PlannerConfig):
        assert entry.metadata["doc"] in described[entry.name].description
        ranged = described[entry.name].integer_range or described[entry.name].floating_point_range
        assert bool(ranged) == (entry.metadata["low"] is not None), entry.name
        if ranged:
            assert (ranged[0].from_value, ranged[0].to_value) == (entry.metadata["low"], entry.metadata["high"])


def test_launch_starts_the_installed_executable() -> None:
    source = LAUNCH_FILE.read_text()
    assert 'package="spec_planner"' in source and 'executable="planner_node"' in source
    assert '"planner_node": "spec_planner.nodes.planner_node:main"' in (ROOT / "setup.py").read_text()


def test_the_config_file_lists_every_setting_at_its_default() -> None:
    content = yaml.safe_load((ROOT / "config" / "planner.yaml").read_text())
    given = content["/**"]["ros__parameters"]
    assert set(given) == SETTINGS
    assert PlannerConfig.from_mapping(given) == PlannerConfig()


def test_ros_reads_the_config_file(namespace: str, client: PlannerClient) -> None:
    arguments = ("--params-file", str(ROOT / "config" / "planner.yaml"))
    with PlannerProcess(namespace, arguments=arguments):
        stops, free_text, model = client.get("stop_sequences", "free_text", "model")
    assert list(stops.string_array_value) == [] and free_text.bool_value is False
    assert model.string_value == "default"


def test_live_settings_exist() -> None:
    assert parameters.LIVE < SETTINGS


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (PlanStep, messages.PlanStep),
        (RejectedLine, messages.RejectedLine),
        (Plan, messages.Plan),
        (StepMetrics, messages.StepMetrics),
        (RunMetrics, messages.RunMetrics),
        (TargetInfo, messages.EngineInfo),
    ],
)
def test_messages_carry_every_field_of_their_record(record: type, message: type) -> None:
    assert {entry.name for entry in fields(record)} <= set(message.get_fields_and_field_types())


def test_the_goal_can_override_every_sampling_setting() -> None:
    goal = GeneratePlan.Goal()
    assert {"temperature", "top_k", "top_p", "seed", "max_tokens", "max_steps", "free_text"} <= SETTINGS
    assert {"temperature", "top_k", "top_p", "seed", "max_tokens", "max_steps", "free_text"} <= set(
        goal.get_fields_and_field_types()
    )
    assert (goal.temperature, goal.top_k, goal.top_p, goal.seed) == (0.0, 0, 1.0, 0)


def test_every_definition_is_built() -> None:
    listed = re.findall(r'"((?:msg|srv|action)/\w+\.\w+)"', (ROOT / "spec_planner_msgs" / "CMakeLists.txt").read_text())
    assert sorted(listed) == sorted(f"{path.parent.name}/{path.name}" for path in DEFINITIONS)


@pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.name)
def test_every_field_of_a_message_is_explained(path: Path) -> None:
    previous = ""
    for line in path.read_text().splitlines():
        is_entry = re.match(r"[a-zA-Z]", line)
        if is_entry:
            comment = line.partition("#")[2] or (previous.startswith("#") and previous)
            assert comment, f"{path.name}: no comment on {json.dumps(line)}"
            if re.search(r"_ms\b", line.partition("#")[0]):
                assert "[ms]" in comment, f"{path.name}: no unit on {json.dumps(line)}"
        previous = line
