"""``PlannerConfig`` as ROS parameters: declared once from the fields' metadata, read back as a checked config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, fields
from difflib import get_close_matches
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter

from ..config import ConfigError, PlannerConfig

# Read at every goal. All other settings shape what configure loads, so they are fixed until the next cleanup.
LIVE = frozenset(
    {"temperature", "top_k", "top_p", "seed", "max_tokens", "deadline_s", "max_instruction_bytes"}
    | {"free_text", "max_steps", "stop_sequences", "thinking_tokens"}
)
FIELDS: dict[str, Field[Any]] = {entry.name: entry for entry in fields(PlannerConfig)}
_KINDS = {
    **{bool: "true or false", str: "a string", int: "an integer"},
    **{float: "a number with a decimal point", tuple: "a list of strings"},
}
_LISTS = frozenset(name for name, entry in FIELDS.items() if isinstance(entry.default, tuple))


def declare(node: Node) -> None:
    """Declare every setting on ``node``, taking overrides from the command line and parameter files.

    Raises:
        ConfigError: an override has the wrong type or is out of range.
    """
    for name, entry in FIELDS.items():
        try:
            # ROS cannot tell the type of an empty list, so lists are declared by type and filled afterwards.
            value = Parameter.Type.STRING_ARRAY if isinstance(entry.default, tuple) else entry.default
            declared = node.declare_parameter(name, value, _descriptor(entry))
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            raise ConfigError(f"parameter {name} must be {_allowed(entry)}, got {_overrides(node)[name]!r}") from error
        if declared.type_ == Parameter.Type.NOT_SET:
            node.set_parameters([Parameter(name, Parameter.Type.STRING_ARRAY, list(entry.default))])


def read_config(node: Node, changes: Sequence[Parameter] = ()) -> PlannerConfig:
    """The node's parameters, with ``changes`` applied on top, as a config.

    Raises:
        ConfigError: a value is not one of its choices or out of range.
    """
    values = {name: node.get_parameter(name).value for name in FIELDS}
    values |= {change.name: change.value for change in changes if change.name in FIELDS}
    # [""] is how one writes an empty list where ROS cannot carry its type, as in `ros2 param set`.
    return PlannerConfig.from_mapping(
        {name: [item for item in value if item] if name in _LISTS else value for name, value in values.items()}
    )


def judge_change(node: Node, changes: Sequence[Parameter], loaded: bool) -> SetParametersResult:
    """Whether ``changes`` may be made now; ``loaded`` says that configure has already used the settings."""
    fixed = sorted(change.name for change in changes if change.name in FIELDS and change.name not in LIVE)
    if loaded and fixed:
        return SetParametersResult(
            successful=False,
            reason=f"{', '.join(fixed)} cannot change while the planner is loaded: run the cleanup transition first",
        )
    try:
        read_config(node, changes)
    except ConfigError as problem:
        return SetParametersResult(successful=False, reason=str(problem))
    return SetParametersResult(successful=True)


def misspelt(node: Node) -> list[str]:
    """One sentence per override that looks like a setting but is none; ROS itself ignores such names silently."""
    sentences = []
    for name in _overrides(node):
        close = get_close_matches(name, FIELDS, n=1, cutoff=0.75)
        if name not in FIELDS and not node.has_parameter(name) and close:
            sentences.append(f"parameter {name} does not exist and is ignored; did you mean {close[0]}?")
    return sentences


def _overrides(node: Node) -> dict[str, Any]:
    """What the command line and parameter files set for ``node``; rclpy has no public way to ask."""
    return {name: parameter.value for name, parameter in node._parameter_overrides.items()}


def _allowed(entry: Field[Any]) -> str:
    rule, kind = entry.metadata, _KINDS[type(entry.default)]
    if rule["choices"]:
        return f"one of {', '.join(rule['choices'])}"
    return kind if rule["low"] is None else f"{kind} between {rule['low']} and {rule['high']}"


def _descriptor(entry: Field[Any]) -> ParameterDescriptor:
    rule = entry.metadata
    when = "" if entry.name in LIVE else " Fixed while the planner is loaded."
    descriptor = ParameterDescriptor(name=entry.name, description=rule["doc"] + when)
    if rule["choices"]:
        descriptor.additional_constraints = f"one of {', '.join(rule['choices'])}"
    if rule["low"] is not None and isinstance(entry.default, float):
        descriptor.floating_point_range = [
            FloatingPointRange(from_value=float(rule["low"]), to_value=float(rule["high"]))
        ]
    elif rule["low"] is not None:
        descriptor.integer_range = [IntegerRange(from_value=int(rule["low"]), to_value=int(rule["high"]))]
    return descriptor
