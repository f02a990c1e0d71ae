"""``spec-planner bench planner``: plans and times, plain against speculative."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .settings import add_model_arguments, config_from

if TYPE_CHECKING:
    from ..bench.quality import Attempt
    from ..config import PlannerConfig
    from ..pipeline.plan_pipeline import PlanPipeline
    from ..pipeline.types import PlanRequest

HELP = "Plans and times, plain against speculative, in one run."
EXAMPLES = """\
Times to first token (cold, warm), first step and whole plan, and deadlines kept on a busy processor, over the installed
instructions in the household scene; with --tasks, how many plans reach their goals; with --random, whether plans for
random skills, scenes and names are valid, and the same with and without the drafter.

examples:
  spec-planner bench planner --quick
  spec-planner bench planner --engine onnx --precision int8 --json > planner.json
  spec-planner bench planner --tasks tasks/activity_held_out.jsonl --count 200 --only quality
  spec-planner bench planner --random 1000 --only random
"""
QUICK, FULL = 4, 20
MAX_RANDOM_TOKENS = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} instructions instead of {FULL}")
    parser.add_argument("--instructions", type=int, metavar="N", help=f"how many to time ({FULL})")
    parser.add_argument("--tasks", action="append", metavar="FILE", help="task file whose plans are tried; repeat")
    parser.add_argument("--count", type=int, default=100, metavar="N", help="tasks of each file (100)")
    parser.add_argument(
        "--random", type=int, default=0, metavar="N", help="random goals to try, at temperatures 0 and 1"
    )
    parser.add_argument("--only", choices=("latency", "quality", "random"), help="measure one of them")
    parser.add_argument(
        "--identity", action="store_true", help="plan every task without the drafter too and compare the tokens"
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--seed", type=int, metavar="S", help="fixes every random draw")
    parser.add_argument("--free-text", action="store_true", default=None, help="without the grammar")
    parser.add_argument(
        "--hold-preconditions",
        action=argparse.BooleanOptionalAction,
        help="only steps that can be done when their turn comes, where the scene says where everything is (yes)",
    )
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print N failed plans of each file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 when everything was measured and every comparison of tokens held; 1 otherwise.

    Raises:
        ValueError: bad input; one sentence.
    """
    from ..certify.document import machine, versions

    config = config_from(options, "temperature", "seed", "free_text", "hold_preconditions")
    if options.count < 1:
        raise ValueError(f"--count must be at least 1, got {options.count}")
    if options.only == "random" and options.random < 1:
        raise ValueError("--only random needs --random N: how many goals to try")
    if options.only == "quality" and not options.tasks:
        raise ValueError("--only quality needs --tasks: write some with `spec-planner tasks --out tasks/`")
    with contextlib.redirect_stdout(sys.stderr):
        from ..factory import build_pipeline

        pipeline = build_pipeline(config, _say)
    try:
        pipeline.warm_up()
        rows: list[dict[str, Any]] = []
        if options.only in (None, "latency"):
            rows += latency_rows(pipeline, config, options.instructions or (QUICK if options.quick else FULL))
        for path in options.tasks or ():
            if options.only in (None, "quality"):
                rows.append(quality_row(pipeline, config, Path(path), options))
        if options.only in (None, "random"):
            rows += [random_row(pipeline, options.random, t, options.seed or 0) for t in (0.0, 1.0) if options.random]
    finally:
        pipeline.close()
    target = dataclasses.asdict(pipeline.info)
    content = {"rows": rows, "target": target, "machine": machine(), "versions": versions(pipeline.info)}
    print(json.dumps(content, ensure_ascii=False) if options.json else table(rows))
    return (
        0
        if all(row.get("identical", True) in (True, row.get("identity_checked")) for row in rows)
        and not any(row.get("invalid") for row in rows)
        else 1
    )


def latency_rows(pipeline: PlanPipeline, config: PlannerConfig, count: int) -> list[dict[str, Any]]:
    """Plain and speculative by turns, quiet and with every core taken."""
    from ..bench.latency import busy_processor, missed_deadlines, spread, time_cold_and_warm
    from ..certify.planner import read_instructions

    requests = [_request(config, text, pipeline) for text in read_instructions(None)[:count]]
    rows: list[dict[str, Any]] = []
    for load in ("quiet", "busy"):
        said: dict[bool, list[tuple[int, ...]]] = {}
        with busy_processor() if load == "busy" else contextlib.nullcontext():
            for plain in (True, False):
                _say(f"timing {len(requests)} plans, {'plain' if plain else pipeline.drafter_name}, {load}")
                pairs = time_cold_and_warm(pipeline, requests, plain)
                said[plain] = [timing.tokens for pair in pairs for timing in pair]
                cold, warm = ([pair[index] for pair in pairs] for index in (0, 1))
                steps = [t.first_step_ms for t in warm if t.first_step_ms is not None]
                usual_s = spread([t.plan_ms for t in warm])["median"] / 1e3
                rows.append(
                    {
                        "decoding": "plain" if plain else pipeline.drafter_name,
                        "load": load,
                        "runs": len(pairs),
                        "first_token_cold_ms": spread([t.first_token_ms for t in cold]),
                        "first_token_warm_ms": spread([t.first_token_ms for t in warm]),
                        "first_step_warm_ms": spread(steps),
                        "plan_warm_ms": spread([t.plan_ms for t in warm]),
                        "reused_share": round(
                            sum(t.reused_tokens for t in warm) / sum(t.prompt_tokens for t in warm), 3
                        ),
                        # Half of the usual time, so that the deadline falls into the plan.
                        **missed_deadlines(pipeline, requests, plain, max(usual_s / 2, 0.05)),
                    }
                )
        rows[-1]["identical"] = said[True] == said[False]
    return rows


def quality_row(
    pipeline: PlanPipeline, config: PlannerConfig, path: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """How many tasks of a file are planned so that the goal is reached."""
    from ..bench.quality import Evaluator, read_split, summary
    from ..factory import make_request

    evaluator = Evaluator(
        pipeline,
        lambda instruction, scene, skills, task: make_request(config, instruction, scene, skills, task.history),
    )
    attempts: list[Attempt] = []
    tasks = read_split(path, options.count)
    for number, task in enumerate(tasks, 1):
        attempts.append(evaluator.attempt(task, options.identity))
        if number % 20 == 0 or number == len(tasks):
            _say(f"{path.name}: {number} of {len(tasks)}, {sum(a.reached for a in attempts)} reached their goal")
    for attempt in [attempt for attempt in attempts if not attempt.reached][: options.show]:
        _say(f"- {attempt.task.instruction!r}\n    {'; '.join(attempt.plan)}\n    {attempt.why_not}")
    by_domain = {
        domain: f"{sum(a.reached for a in found)}/{len(found)}"
        for domain in sorted({a.task.domain for a in attempts})
        for found in [[a for a in attempts if a.task.domain == domain and a.task.goal]]
    }
    mode = "free text" if config.free_text else "grammar, preconditions" if config.hold_preconditions else "grammar"
    return {"tasks_file": path.name, "answers": mode, **summary(attempts), "by_domain": by_domain}


def random_row(pipeline: PlanPipeline, count: int, temperature: float, seed: int) -> dict[str, Any]:
    """Random goals: every plan must be valid, and the same with and without the drafter."""
    from ..bench.random_goals import random_goals, try_goal

    verdicts = []
    for number, goal in enumerate(random_goals(count, seed), 1):
        verdict = try_goal(pipeline, goal, temperature, seed, MAX_RANDOM_TOKENS)
        if verdict.invalid or verdict.different:
            _say(f"- goal {number}: {verdict.invalid or verdict.different}")
        verdicts.append(verdict)
        if number % 10 == 0 or number == count:
            _say(f"random goals at temperature {temperature:g}: {number} of {count}")
    return {
        "random_goals": count,
        "temperature": temperature,
        "steps": sum(verdict.steps for verdict in verdicts),
        "tokens": sum(verdict.tokens for verdict in verdicts),
        "invalid": sum(bool(verdict.invalid) for verdict in verdicts),
        "identity_checked": count,
        "identical": sum(not verdict.different for verdict in verdicts),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: one table of times, one of plans."""
    times, plans = [r for r in rows if "load" in r], [r for r in rows if "tasks_file" in r]
    lines: list[str] = []
    if times:
        lines += [
            "| decoding | load | first token cold [ms] | first token warm [ms] | first step [ms] | whole plan [ms] "
            "| deadline [ms] | cut short | latest answer after it [ms] |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for row in times:
            figures = (
                _figure(row[name])
                for name in ("first_token_cold_ms", "first_token_warm_ms", "first_step_warm_ms", "plan_warm_ms")
            )
            lines.append(
                f"| {row['decoding']} | {row['load']} | {' | '.join(figures)} | {row['deadline_ms']} "
                f"| {row['cut_short']} of {row['runs']} | {row['latest_ms']} |"
            )
        same = all(row.get("identical", True) for row in times)
        lines += ["", f"Medians (quartiles). Tokens identical, plain and speculative: {'yes' if same else 'NO'}.", ""]
    for row in rows:
        if "random_goals" in row:
            lines += [
                f"{row['random_goals']} random goals at temperature {row['temperature']:g}: {row['steps']} steps in "
                f"{row['tokens']} tokens, {row['invalid']} invalid plans, tokens identical to plain decoding in "
                f"{row['identical']} of {row['identity_checked']}.",
                "",
            ]
    if plans:
        titles = ("tasks", "answers", "goal reached", "no scene: as the expert", "complete", "identical",
                  "tokens per pass", "by domain")  # fmt: skip
        lines += [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
        for row in plans:
            cells = (
                f"{row['tasks_file']} ({row['tasks']})",
                row["answers"],
                f"{row['reached']:.1%} ± {row['standard_error']:.1%}",
                row["without_scene"],
                f"{row['complete']:.1%}",
                f"{row['identical']} of {row['identity_checked']}" if row["identity_checked"] else "-",
                f"{row['acceptance_length']:.2f}",
                ", ".join(f"{name} {share}" for name, share in row["by_domain"].items()),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _request(config: PlannerConfig, instruction: str, pipeline: PlanPipeline) -> PlanRequest:
    from ..factory import make_request, read_scene
    from ..language.scene import load_scene
    from ..resources import shared_file

    scene = read_scene(config, pipeline.skills) if config.scene_file else None
    if scene is None:
        scene = load_scene(shared_file("config/scenes/household.yaml"), pipeline.skills)
    return make_request(config, instruction, scene)


def _figure(found: dict[str, float]) -> str:
    return f"{found['median']:.0f} ({found['low']:.0f}–{found['high']:.0f})"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
