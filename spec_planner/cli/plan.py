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
    from ..pipeline.types import PlanProgress, PlanRequest, PlanResult

HELP = "Plan one instruction and print its steps as they come."
EXAMPLES = """\
examples:
  spec-planner plan --instruction "put the cup in the sink"
  spec-planner plan --instruction "bring me the book" --object book --place desk --drafter none
  spec-planner plan --instruction "tidy up" --temperature 0.8 --seed 7 --json
  spec-planner plan --instruction "tidy up" --model ./Qwen3-0.6B --precision bfloat16 --config config/planner.yaml
"""
_REQUEST_SETTINGS = ("temperature", "top_k", "top_p", "seed", "max_tokens", "objects", "places")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--instruction", required=True, metavar="TEXT", help="what the robot is to do")
    add_model_arguments(parser)
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--top-k", type=int, metavar="K", help="sample among the k likeliest tokens; 0 turns it off")
    parser.add_argument("--top-p", type=float, metavar="P", help="sample among the tokens that hold this probability")
    parser.add_argument("--seed", type=int, metavar="S", help="fixes every random draw")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer, in tokens")
    parser.add_argument("--object", dest="objects", action="append", metavar="X", help="an object in the scene; repeat")
    parser.add_argument("--place", dest="places", action="append", metavar="Y", help="a place in the scene; repeat")
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
        result = pipeline.run(request, _ignore if options.json else _show_steps, lambda: False)
        if options.json:
            print(json.dumps(as_json(result, config, pipeline.info), ensure_ascii=False))
        else:
            _show_end(result)
    finally:
        pipeline.close()
    if result.outcome != "succeeded" and not options.json:
        print(f"spec-planner: {result.detail}", file=sys.stderr)
        return 1
    return 0


def as_json(result: PlanResult, config: PlannerConfig, info: Any) -> dict[str, Any]:
    """The object that ``--json`` prints; times are milliseconds."""
    return {
        "outcome": result.outcome,
        "detail": result.detail,
        "tokens": list(result.tokens),
        "text": result.plan.text,
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
        "drafter": config.drafter,
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


def _request(options: argparse.Namespace, config: PlannerConfig, skills: Any) -> PlanRequest:
    from ..language.plan import Scene
    from ..pipeline.types import PlanRequest

    return PlanRequest(
        instruction=options.instruction,
        scene=Scene(config.objects, config.places),
        skills=tuple(skills),
        sampling=config.sampling,
        max_tokens=config.max_tokens,
        deadline=time.monotonic() + config.deadline_s if config.deadline_s else None,
        plain=options.plain,
    )


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
