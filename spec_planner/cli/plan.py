"""``spec-planner plan``: one instruction in, plan steps out, without ROS."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .settings import add_model_arguments, config_from

if TYPE_CHECKING:
    from ..config import PlannerConfig
    from ..language.plan import Scene, SkillSet
    from ..pipeline.types import PlanProgress, PlanRequest, PlanResult

HELP = "Plan one instruction and print its steps as they come."
EXAMPLES = """\
examples:
  spec-planner plan --instruction "put the cup in the sink"
  spec-planner plan --instruction "put the milk on the table" --scene config/scenes/household.yaml
  spec-planner plan --instruction "bring Anna the book" --place desk --place Anna --object "book at desk" --drafter none
  spec-planner plan --instruction "bring Anna the book" --done "go_to(desk)" --failed "pick(book)" --failure "it fell"
  spec-planner plan --instruction "tidy up" --temperature 0.8 --seed 7 --json
  spec-planner plan --instruction "tidy up" --model ./Qwen3-0.6B --precision bfloat16 --config config/planner.yaml
"""
_REQUEST_SETTINGS = (
    *("temperature", "top_k", "top_p", "seed", "max_tokens"),
    *("scene_file", "free_text", "hold_preconditions", "max_steps", "stop_sequences", "thinking_tokens", "deadline_s"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--instruction", required=True, metavar="TEXT", help="what the robot is to do")
    add_model_arguments(parser)
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--top-k", type=int, metavar="K", help="sample among the k likeliest tokens; 0 turns it off")
    parser.add_argument("--top-p", type=float, metavar="P", help="sample among the tokens that hold this probability")
    parser.add_argument("--seed", type=int, metavar="S", help="fixes every random draw")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer, in tokens")
    parser.add_argument("--scene", dest="scene_file", metavar="YAML", help="places, objects, and what is where")
    parser.add_argument(
        "--object", dest="objects", action="append", metavar="X", help="an object, or 'X at PLACE', instead of --scene"
    )
    parser.add_argument("--place", dest="places", action="append", metavar="Y", help="a place, instead of --scene")
    parser.add_argument("--done", action="append", metavar="STEP", help="a step already done, for a replan; repeat")
    parser.add_argument("--failed", metavar="STEP", help="the step that failed")
    parser.add_argument("--failure", metavar="TEXT", help="why it failed")
    parser.add_argument(
        "--thinking-tokens", type=int, metavar="N", help="let a reasoning model think first, at most N tokens"
    )
    parser.add_argument("--deadline", dest="deadline_s", type=float, metavar="S", help="seconds the plan may take")
    parser.add_argument(
        "--hold-preconditions",
        action=argparse.BooleanOptionalAction,
        help="only steps that can be done when their turn comes, where the scene says where everything is (yes)",
    )
    parser.add_argument("--max-steps", type=int, metavar="N", help="longest plan, in steps")
    parser.add_argument(
        "--free-text",
        action="store_true",
        default=None,
        help="do not hold the answer to the grammar of skills and scene; lines that are no steps are rejected",
    )
    parser.add_argument(
        "--stop", dest="stop_sequences", action="append", metavar="TEXT", help="a text that ends the answer; repeat"
    )
    parser.add_argument("--plain", action="store_true", help="decode without the drafter (it is loaded all the same)")
    parser.add_argument("--json", action="store_true", help="print one JSON object; all else goes to standard error")


def run(options: argparse.Namespace) -> int:
    """0 when a plan was read; 1 otherwise, but 0 with --json, whose object says how it ended.

    Raises:
        ValueError: bad input; one sentence.
    """
    config = config_from(options, *_REQUEST_SETTINGS)
    _check_instruction(options.instruction, config)
    # Whatever a library prints while it loads must not end up in the JSON.
    with contextlib.redirect_stdout(sys.stderr):
        from ..factory import build_pipeline

        pipeline = build_pipeline(config, lambda line: print(line, file=sys.stderr))
    try:
        request = _request(options, config, pipeline.skills)
        if request.thinking_tokens and not options.json:
            print("thinking first; the plan follows", file=sys.stderr)
        result = pipeline.run(request, _ignore if options.json else _show_steps, lambda: False)
        if options.json:
            print(json.dumps(as_json(result, config, pipeline.drafter_name, pipeline.info), ensure_ascii=False))
        else:
            _show_end(result)
    finally:
        pipeline.close()
    if result.outcome != "succeeded" and not options.json:
        print(f"spec-planner: {result.detail}", file=sys.stderr)
        return 1
    return 0


def as_json(result: PlanResult, config: PlannerConfig, drafter: str, info: Any) -> dict[str, Any]:
    """The object that ``--json`` prints; times are milliseconds."""
    return {
        "outcome": result.outcome,
        "detail": result.detail,
        "tokens": list(result.tokens),
        "text": result.plan.text,
        "thinking": result.thinking,
        "steps": [
            {
                "index": step.index,
                "skill": step.skill,
                "arguments": dict(zip(step.parameters, step.values, strict=True)),
                "text": step.text,
            }
            for step in result.plan.steps
        ],
        "rejected": [asdict(line) for line in result.plan.rejected],
        "complete": result.plan.complete,
        "metrics": {**asdict(result.metrics), "time_to_first_step_ms": result.time_to_first_step_ms},
        "target": {"name": info.name, "engine": info.engine, "precision": info.precision, "device": info.device},
        "drafter": drafter,
        "rule": config.rule,
        "sampling": asdict(config.sampling),
        "versions": dict(info.versions),
    }


def _check_instruction(instruction: str, config: PlannerConfig) -> None:
    size = len(instruction.encode("utf-8", "surrogateescape"))
    if not instruction.strip():
        raise ValueError("the instruction is empty: say what the robot is to do")
    if size > config.max_instruction_bytes:
        raise ValueError(
            f"the instruction has {size} bytes and max_instruction_bytes is {config.max_instruction_bytes}: shorten it"
        )


def _request(options: argparse.Namespace, config: PlannerConfig, skills: SkillSet) -> PlanRequest:
    from ..factory import make_request
    from ..language.history import read_history

    return make_request(
        config,
        options.instruction,
        _scene(options, config, skills),
        history=read_history(options.done or (), options.failed or "", options.failure or "", skills),
        deadline=time.monotonic() + config.deadline_s if config.deadline_s else None,
        plain=options.plain,
    )


def _scene(options: argparse.Namespace, config: PlannerConfig, skills: SkillSet) -> Scene:
    """From --object and --place, or from the file. ``book at desk`` is an object and where it is."""
    from ..factory import read_scene
    from ..language.scene import scene_from_mapping

    if not options.objects and not options.places:
        return read_scene(config, skills)
    if config.scene_file:
        raise ValueError("a scene file and --object or --place are given: give one or the other")
    objects = [dict(zip(("name", "at"), text.split(" at ", 1), strict=False)) for text in options.objects or ()]
    mapping = {"places": list(options.places or ()), "objects": objects}
    return scene_from_mapping({key: value for key, value in mapping.items() if value}, "the command line", skills)


def _ignore(progress: PlanProgress) -> None:
    """--json reports at the end only."""


def _show_steps(progress: PlanProgress) -> None:
    for step in progress.new_steps:
        seconds = progress.metrics.elapsed_ms / 1000
        print(f"{seconds:7.2f} s  {step.index + 1:>2}. {step.skill}({', '.join(step.values)})", flush=True)


def _show_end(result: PlanResult) -> None:
    for line in result.plan.rejected:
        print(f"    not a step: {line.text!r} ({line.reason})")
    m, first_step_ms = result.metrics, result.time_to_first_step_ms
    rows = (
        ("tokens", f"{m.new_tokens} after a prompt of {m.prompt_tokens}"),
        ("tokens per verify pass", f"{m.acceptance_length:.2f} in {m.verify_passes} passes"),
        ("time per token", f"{m.time_per_output_token_ms:.1f} ms"),
        ("time to first token", f"{m.time_to_first_token_ms:.0f} ms"),
        ("time to first step", "-" if first_step_ms is None else f"{first_step_ms:.0f} ms"),
        ("draft + verify", f"{m.draft_ms:.0f} + {m.verify_ms:.0f} ms"),
        ("accept + commit", f"{m.accept_ms:.0f} + {m.commit_ms:.0f} ms"),
        ("exact", "yes" if m.exact else "no"),
    )
    print()
    for name, value in rows:
        print(f"  {name:<24}{value}")
