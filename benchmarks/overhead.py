"""How much of a step is spent outside draft, verify, accept and commit: detokenising, parsing, reporting, the loop.

    python benchmarks/overhead.py [--instructions N] [--drafter lookup] [--json]

Runs the plan pipeline on the default model, plain and speculative in turn, and compares the wall clock of everything
after the prefill with the sum of the four phases.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

from spec_planner.certify.planner import read_instructions
from spec_planner.config import PlannerConfig
from spec_planner.factory import build_pipeline, make_request
from spec_planner.language.plan import Scene


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instructions", type=int, default=12, metavar="N")
    parser.add_argument("--drafter", default="lookup")
    parser.add_argument("--model", default="default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    config = PlannerConfig(drafter=options.drafter, model=options.model)
    pipeline = build_pipeline(config, lambda line: print(line, file=sys.stderr))
    pipeline.warm_up()
    rows: dict[str, list[dict[str, float]]] = {"plain": [], "speculative": []}
    for instruction in read_instructions(None)[: options.instructions]:
        for name, plain in (("plain", True), ("speculative", False)):
            rows[name].append(measure(pipeline, config, instruction, plain))
    summary = {name: summarise(runs) for name, runs in rows.items()}
    speedups = [a["ms_per_token"] / b["ms_per_token"] for a, b in zip(rows["plain"], rows["speculative"], strict=True)]
    summary["speedup_per_token"] = spread(speedups)
    if options.json:
        print(json.dumps(summary))
        return
    titles = ("ms/step", "outside %", "ms/token", "tokens/pass")
    print(f"{'':<14}{'steps':>6}" + "".join(f"{title:>22}" for title in titles))
    for name in rows:
        row = summary[name]
        print(f"{name:<14}{row['steps']:>6}" + "".join(f"{show(row[key]):>22}" for key in _SHOWN))
    print(f"speed-up per token {show(summary['speedup_per_token'])}  (median [min, max] over instructions)")


_SHOWN = ("ms_per_step", "outside_percent", "ms_per_token", "tokens_per_pass")


def measure(pipeline, config: PlannerConfig, instruction: str, plain: bool) -> dict[str, float]:
    """One plan. The clock starts at the first progress report, which ends the prefill step."""
    started: list[float] = []

    def on_progress(progress) -> None:
        if not started:
            started.append(time.perf_counter())

    request = make_request(config, instruction, Scene(), plain=plain)
    result = pipeline.run(request, on_progress)
    wall_ms = (time.perf_counter() - started[0]) * 1e3
    m = result.metrics
    phases = m.draft_ms + m.verify_ms + m.accept_ms + m.commit_ms
    return {
        "steps": m.verify_passes,
        "ms_per_step": wall_ms / m.verify_passes,
        "outside_percent": 100 * (wall_ms - phases) / wall_ms,
        "ms_per_token": m.time_per_output_token_ms,
        "tokens_per_pass": m.acceptance_length,
    }


def summarise(runs: list[dict[str, float]]) -> dict:
    return {"steps": sum(int(run["steps"]) for run in runs), **{key: spread([r[key] for r in runs]) for key in _SHOWN}}


def spread(values: list[float]) -> list[float]:
    return [round(value, 3) for value in (statistics.median(values), min(values), max(values))]


def show(values: list[float]) -> str:
    return f"{values[0]:.2f} [{values[1]:.2f}, {values[2]:.2f}]"


if __name__ == "__main__":
    main()
