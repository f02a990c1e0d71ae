"""``spec-planner tasks``: write tasks to train and measure planners on."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

HELP = "Write planning tasks (instruction, scene, goal, expert plan) to train and measure a model on."
EXAMPLES = """\
Writes train.jsonl, validation.jsonl, wording_held_out.jsonl and activity_held_out.jsonl, one task per line. The same
arguments give the same files. Expert plans need unified-planning and pyperplan: pip install 'spec_planner[tasks]'.

examples:
  spec-planner tasks --out tasks/
  spec-planner tasks --out tasks/ --domain lab --count 2000 --seed 1
"""
COUNT = 12_000
HELD_OUT_SHARE = 8  # one task of every other split to eight of training


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write to; created if absent")
    parser.add_argument("--count", type=int, default=COUNT, metavar="N", help=f"training tasks ({COUNT})")
    parser.add_argument("--domain", metavar="D", help="one of household, warehouse, lab, field (all, household twice)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another seed gives other tasks (0)")
    parser.add_argument("--json", action="store_true", help="print the statistics as one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 when every file is written.

    Raises:
        ValueError: bad input, or the planner is not installed; one sentence.
    """
    from ..tasks.corpus import write_corpus

    if options.count < 1:
        raise ValueError(f"--count must be 1 or more, got {options.count}")
    progress = _Progress()
    report = write_corpus(
        Path(options.out), options.count, options.domain, options.seed, progress.update, HELD_OUT_SHARE
    )
    progress.end()
    if options.json:
        print(json.dumps(report))
    else:
        for split, numbers in report.items():
            print(
                f"{split}: {numbers['tasks']} tasks, {numbers['activities']} activities, "
                f"{numbers['steps']:.1f} steps a plan, {numbers['histories']} in the middle, {numbers['blind']} blind"
            )
    return 0


class _Progress:
    """One line on standard error, rewritten on a terminal and said every 20 s elsewhere."""

    def __init__(self) -> None:
        self._said = time.monotonic()
        self._rewrites = sys.stderr.isatty()

    def update(self, split: str, done: int, wanted: int) -> None:
        if self._rewrites:
            if done % 20 == 0:
                print(f"\r\x1b[K{split} {done}/{wanted}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._said >= 20:
            print(f"{split} {done}/{wanted}", file=sys.stderr, flush=True)
            self._said = time.monotonic()

    def end(self) -> None:
        if self._rewrites:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
