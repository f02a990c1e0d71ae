"""``python -m spec_planner.demo [--instruction TEXT] [--scene FILE] [--drafter NAME]``: what ``make demo`` runs.

Starts ``planner_node`` as its own process, drives its lifecycle services, sends one instruction and a scene to its
action server from this process over DDS (this machine only, a domain of its own), speculative and plain in turn on the
same engine, and compares. Exit code 0 only when everything worked and all tokens are identical; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from typing import Any

from ..resources import shared_file
from .node_process import DemoError, NodeProcess
from .report import Run, first_difference, table, warm_start

INSTRUCTION = "Put the milk on the table."
SCENE = "config/scenes/household.yaml"
ROUNDS = 3  # timed runs of each kind, after one of each to warm up
START_S, LOAD_S, GOAL_S = 30.0, 300.0, 300.0  # patience with a slow machine
NODE_NAME = "planner"
_SCENE_HELP = f"YAML scene; by default {SCENE}, and '' is none: names are then free"


def main(arguments: list[str] | None = None) -> int:
    """Returns the process's exit code."""
    options = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # A domain of its own, among those whose ports Linux does not hand out to others (1 to 101).
    os.environ.update(ROS_AUTOMATIC_DISCOVERY_RANGE="LOCALHOST", ROS_DOMAIN_ID=str(1 + os.getpid() % 101))
    os.environ.pop("ROS_LOCALHOST_ONLY", None)
    try:
        return _demonstrate(options)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; nothing is left running", file=sys.stderr)
        return 130


def _demonstrate(options: argparse.Namespace) -> int:
    try:
        from .client import PlannerClient
        from .scene import read_scene
    except ImportError as error:
        raise DemoError(f"the demo needs ROS 2's Python packages ({error}): run make setup first") from error
    scene_file = str(shared_file(SCENE)) if options.scene is None else options.scene
    scene, described = read_scene(scene_file, options.skills)
    parameters = {"drafter": options.drafter, "model": options.model, "skills_file": options.skills}
    settings = [part for name, value in parameters.items() for part in ("-p", f"{name}:={json.dumps(value)}")]
    node = NodeProcess(["--ros-args", *settings], dict(os.environ))
    client = None
    try:
        client = PlannerClient(NODE_NAME, node.check)
        _introduce(options.instruction, described, node.pid)
        _timed("start", lambda: client.wait_for_node(START_S))
        _timed("configure", lambda: _or_say_why(node, lambda: client.configure(LOAD_S)))
        if engine := node.said("engine auto: "):
            print(f"  engine       {engine}")
        info = _timed("activate", lambda: _or_say_why(node, lambda: client.activate(LOAD_S)))
        print(f"  target       {info.name}, {info.precision} on {info.device} ({info.engine})")
        print(f"  drafter      {info.drafter}, up to {info.num_draft_tokens} tokens; rule {info.rule}\n")
        return _compare(client, options.instruction, scene)
    finally:
        _stop(client, node)


def _compare(client: Any, instruction: str, scene: Any) -> int:
    """Run both ways in turn, print the table and the verdict; returns the exit code."""
    kinds = {"speculative": False, "plain": True}
    runs: dict[str, list[Run]] = {}
    for kind, plain in kinds.items():
        print(f"{kind}")
        runs[kind] = [client.plan(instruction, scene, plain=plain, seconds=GOAL_S, on_step=_show_step)]
        print(f"  {runs[kind][0].total_ms / 1000:6.2f} s  done: {runs[kind][0].num_steps} steps\n")
    for round_number in range(1, ROUNDS + 1):
        for kind, plain in kinds.items():
            runs[kind].append(client.plan(instruction, scene, plain=plain, seconds=GOAL_S))
        _redraw(f"timing: round {round_number} of {ROUNDS}", last=round_number == ROUNDS)
    plain_runs, speculative_runs = runs["plain"], runs["speculative"]
    print()
    print(table(plain_runs[1:], speculative_runs[1:]))
    print(f"  (medians of {ROUNDS} runs each, in turn, on the same engine, after one of each to warm up)")
    print(f"  {warm_start(speculative_runs[0], [*speculative_runs[1:], *plain_runs])}\n")
    difference = first_difference(plain_runs, speculative_runs)
    print(f"identical: {'no' if difference else 'yes'}")
    problems = [difference] if difference else []
    if min(run.num_steps for run in (*plain_runs, *speculative_runs)) < 1:
        problems.append("the answer held no plan step: try another instruction")
    if not all(run.exact for run in (*plain_runs, *speculative_runs)):
        problems.append("a run was not marked exact")
    for problem in problems:
        print(f"demo: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _introduce(instruction: str, scene: str, pid: int) -> None:
    print("spec_planner demo")
    print(f"  instruction  {instruction}")
    print(scene)
    domain = os.environ["ROS_DOMAIN_ID"]
    print(f"  node         /{NODE_NAME}, process {pid}, ROS domain {domain}, this machine only")


def _show_step(elapsed_s: float, step: Any) -> None:
    print(f"  {elapsed_s:6.2f} s  {step.index + 1:>2}. {step.skill}({', '.join(step.values)})")


def _timed(name: str, action: Any) -> Any:
    """Run it with its name shown, then how long it took."""
    live = sys.stdout.isatty()
    if live:
        print(f"  {name:<13}...", end="\r", flush=True)
    began = time.monotonic()
    result = action()
    print(f"  {name:<13}{time.monotonic() - began:.1f} s")
    return result


def _redraw(text: str, last: bool) -> None:
    """A line that is drawn over on a terminal and printed once, at the end, elsewhere."""
    if sys.stdout.isatty():
        print(text, end="\n" if last else "\r", flush=True)
    elif last:
        print(text)


def _or_say_why(node: NodeProcess, action: Any) -> Any:
    """A refused transition has its reason in the node's log."""
    try:
        return action()
    except DemoError as error:
        node.check()
        raise DemoError(f"{error}: {node.last_line()}") from error


def _stop(client: Any, node: NodeProcess) -> None:
    """Client first, then the node; a second Ctrl-C must not cut this short, and it is over in seconds."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        if client is not None:
            client.close()
    finally:
        node.stop()


def _parser() -> argparse.ArgumentParser:
    """Defaults come from the variables that the Makefile sets, so that no shell reads the instruction."""
    parser = argparse.ArgumentParser(prog="make demo", description="Plan one instruction, plain and speculative.")
    given = os.environ.get
    parser.add_argument("--instruction", default=given("SPEC_PLANNER_DEMO_INSTRUCTION") or INSTRUCTION)
    parser.add_argument("--drafter", default=given("SPEC_PLANNER_DEMO_DRAFTER") or "auto")
    parser.add_argument("--model", default="default", help="a local Hugging Face model directory")
    parser.add_argument("--scene", default=given("SPEC_PLANNER_DEMO_SCENE"), metavar="FILE", help=_SCENE_HELP)
    parser.add_argument("--skills", default="", metavar="FILE", help="YAML skills; by default the household ones")
    return parser


if __name__ == "__main__":
    sys.exit(main())
