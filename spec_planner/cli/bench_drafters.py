"""``spec-planner bench drafters``: one table of every drafter, chain and best tree, against plain decoding."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .settings import add_model_arguments, config_from

if TYPE_CHECKING:
    from ..config import PlannerConfig
    from ..pipeline.plan_pipeline import PlanPipeline
    from ..pipeline.types import PlanRequest

HELP = "Every drafter, chain and best tree, on held-out prompts: acceptance length, cost, speed-up, bytes, identity."
PROMPTS = "config/tasks/held_out_prompts.jsonl"
QUICK, FULL, CALIBRATION = 4, 60, 8
TREES = (2, 3, 4)
TEMPERATURES = (0.0, 1.0)
TITLES = (
    *("drafter", "draft", "T", "acceptance length", "of it forced, guessed", "guesses kept, by depth"),
    *("draft [ms]", "verify [ms] (plain)", "speed-up", "own, borrowed [MB]", "identical"),
)
EXAMPLES = f"""\
Each prompt is answered plain and with the drafter, one right after the other, greedy and at temperature 1, and the
tokens are compared. The best tree is the draft_branches of {", ".join(map(str, TREES))} that makes the most tokens
per second on {CALIBRATION} prompts that are not measured on; --draft-branches names it instead. `none` compares plain
decoding with itself: its spread is the error of every other speed-up. docs/drafters.md says how to read the table.

examples:
  spec-planner bench drafters --quick
  spec-planner bench drafters --drafters none,lookup,drafters/my-eagle3 --count 20
  spec-planner bench drafters --engine onnx --precision int8 --json > drafters.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} prompts instead of {FULL}, one tree untried")
    parser.add_argument(
        "--drafters", metavar="LIST", help="names and checkpoint directories with commas between (all that are there)"
    )
    parser.add_argument("--prompts", metavar="FILE", help=f"task file ({PROMPTS}, made by `spec-planner tasks`)")
    parser.add_argument("--count", type=int, metavar="N", help=f"prompts to measure on ({FULL})")
    parser.add_argument("--seed", type=int, metavar="S", help="fixes every random draw")
    parser.add_argument("--free-text", action="store_true", default=None, help="without the grammar: nothing is forced")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 when every answer was the same with and without its drafter; 1 otherwise.

    Raises:
        ValueError: bad input; one sentence, before anything is measured.
    """
    from ..bench.drafters import hold_back, requests_for
    from ..bench.quality import read_split
    from ..certify.document import machine, versions
    from ..resources import shared_file

    if options.draft_budget == "measured":
        raise ValueError(
            "bench drafters needs drafts that are always as long to compare them: leave --draft-budget out"
        )
    config = dataclasses.replace(config_from(options, "seed", "free_text"), draft_budget="fixed")
    count = options.count if options.count is not None else QUICK if options.quick else FULL
    if count < 1:
        raise ValueError(f"--count must be at least 1, got {count}")
    trees = _trees(options, config)
    tasks = read_split(Path(options.prompts) if options.prompts else shared_file(PROMPTS), sys.maxsize)
    measured, calibration = hold_back(tasks, count, min(CALIBRATION, max(len(tasks) // 4, 1)))
    with contextlib.redirect_stdout(sys.stderr):
        from ..drafter_choice import check_fits
        from ..engine_choice import chosen_engine
        from ..factory import build_pipeline, find_rule, make_request, model_directory

        rule = find_rule(config.rule)
        if not rule.same_tokens:
            raise ValueError(f"bench drafters compares tokens, and rule {rule.name!r} keeps the law only: leave it out")
        directory = model_directory(config.model, _say)
        names = _names(options, config, directory)
        for name in names:
            check_fits(dataclasses.replace(config, drafter=name), rule)

        def asked(of: Any) -> list[PlanRequest]:
            return requests_for(
                of, lambda text, scene, skills, task: make_request(config, text, scene, skills, task.history)
            )

        requests, to_choose_on = asked(measured), asked(calibration)
        config = chosen_engine(config, directory, _say)  # with its drafter: the engine that plans, not another
        pipeline = build_pipeline(dataclasses.replace(config, drafter="none", draft_branches=1), _say)
    try:
        bench = Bench(pipeline, config)
        for name in names:  # what does not load or fit is found out before hours of measuring
            bench.use(name, 1)
        rows = []
        for name in names:
            rows += bench.rows(name, trees, requests, to_choose_on)
    finally:
        pipeline.close()
    content = {
        "rows": rows,
        "prompts": {"file": Path(options.prompts or PROMPTS).name, "measured": len(requests)},
        "num_draft_tokens": config.num_draft_tokens,
        "answers": "free text" if config.free_text else "grammar",
        "target": dataclasses.asdict(pipeline.info),
        "machine": machine(),
        "versions": versions(pipeline.info),
    }
    print(json.dumps(content, ensure_ascii=False) if options.json else table(content))
    return 0 if all(row["identical"] == row["prompts"] for row in rows) else 1


class Bench:
    """One loaded target and the drafters it is given in turn."""

    def __init__(self, pipeline: PlanPipeline, config: PlannerConfig) -> None:
        self._pipeline, self._config = pipeline, config

    def use(self, name: str, branches: int) -> None:
        """Load drafter ``name`` in place of the one before.

        Raises:
            ValueError: it cannot be loaded, or does not fit the target.
        """
        from ..factory import build_drafter

        before, self._pipeline.drafter = self._pipeline.drafter, None
        if before is not None:
            before.close()
        config = dataclasses.replace(self._config, drafter=name, draft_branches=branches)
        # Asking for the target also makes the next run start cold: it knows nothing of the new drafter.
        self._pipeline.drafter = build_drafter(config, self._pipeline.target)

    def rows(
        self, name: str, trees: Sequence[int], requests: Sequence[PlanRequest], to_choose_on: Sequence[PlanRequest]
    ) -> Iterator[dict[str, Any]]:
        """Chain and best tree of one drafter, at every temperature."""
        from ..bench.drafters import fastest

        shapes = [1]
        if trees and name != "none":
            if len(trees) > 1:
                _say(f"{name}: choosing among trees of {', '.join(map(str, trees))} branches")
            sampled = [_at(request, t) for request in to_choose_on for t in TEMPERATURES]
            shapes.append(fastest(self._pipeline, lambda branches: self._ready(name, branches), trees, sampled))
        for branches in shapes:
            self._ready(name, branches)
            for temperature in TEMPERATURES:
                yield self._row(name, branches, temperature, requests)

    def _row(self, name: str, branches: int, temperature: float, requests: Sequence[PlanRequest]) -> dict[str, Any]:
        from ..bench.drafters import answer_in_turns, summary

        shape = "-" if name == "none" else "chain" if branches == 1 else f"tree {branches}"
        label = f"{name}, {shape}, temperature {temperature:g}"
        pairs, said = [], time.monotonic()
        for pair in answer_in_turns(
            self._pipeline, [_at(request, temperature) for request in requests], self._config.num_draft_tokens
        ):
            pairs.append(pair)
            if not pair.identical:
                _say(f"- {label}, prompt {len(pairs)}: {pair.plain.tokens} became {pair.drafted.tokens}")
            if time.monotonic() - said >= 20 or len(pairs) == len(requests):
                _say(f"{label}: {len(pairs)} of {len(requests)}")
                said = time.monotonic()
        drafter = self._pipeline.drafter
        return {
            "drafter": name,
            "shape": shape,
            "branches": branches,
            "temperature": temperature,
            **summary(pairs),
            "own_bytes": getattr(drafter, "own_bytes", None) if drafter else 0,
            "borrowed_bytes": getattr(drafter, "borrowed_bytes", None) if drafter else 0,
        }

    def _ready(self, name: str, branches: int) -> None:
        self.use(name, branches)
        self._pipeline.warm_up()


def _names(options: argparse.Namespace, config: PlannerConfig, target: Path) -> list[str]:
    """Drafters to measure, each once, in the order asked for.

    Raises:
        ValueError: the list names none, or one that is the tree of another.
    """
    from ..drafter_choice import chosen, drafters_for
    from ..shipped_drafters import NAMED, TREES_OF

    if options.drafters is None:
        return [chosen(config, target).drafter] if options.drafter else drafters_for(target)
    names = list(dict.fromkeys(part.strip() for part in options.drafters.split(",") if part.strip()))
    if not names:
        raise ValueError("--drafters names no drafter: give names with commas between, such as none,lookup")
    names = list(dict.fromkeys(chosen(dataclasses.replace(config, drafter=name), target).drafter for name in names))
    for name in names:
        if name in TREES_OF:
            raise ValueError(f"drafter {name!r} is the tree of {NAMED[name]}: name that, and its tree is measured too")
    return names


def _trees(options: argparse.Namespace, config: PlannerConfig) -> tuple[int, ...]:
    """Values of draft_branches to choose the best tree from; none where only chains can be verified."""
    if config.exactness == "bitwise":
        return ()
    if options.draft_branches is not None:
        return (options.draft_branches,) if options.draft_branches > 1 else ()
    return TREES[:1] if options.quick else TREES


def table(content: dict[str, Any]) -> str:
    """Markdown, with what it takes to read it underneath."""
    lines = [f"| {' | '.join(TITLES)} |", "|---" * len(TITLES) + "|"]
    for row in content["rows"]:
        cells = (
            row["drafter"],
            row["shape"],
            f"{row['temperature']:g}",
            f"{row['acceptance_length']:.2f} ± {row['standard_error']:.2f}",
            f"{row['forced']:.2f}, {row['guessed']:.2f}",
            " ".join(f"{at['share']:.2f}" for at in row["guessed_at_depth"]) if row["guessed"] else "-",
            f"{row['draft_ms']:.1f}",
            f"{row['verify_ms']:.1f} ({row['plain_verify_ms']:.1f})",
            _speed_up(row["speed_up"]),
            f"{_megabytes(row['own_bytes'])}, {_megabytes(row['borrowed_bytes'])}",
            f"{row['identical']} of {row['prompts']}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    target, prompts = content["target"], content["prompts"]
    return "\n".join(
        [
            *lines,
            "",
            f"{target['name']} on {target['engine']} {target['precision']} ({target['device']}); {prompts['measured']} "
            f"prompts of {prompts['file']}; {content['num_draft_tokens']} draft tokens; {content['answers']}. "
            "Acceptance length: tokens per verify pass ± standard error over prompts. Times: means per pass. "
            "Speed-up: plain ÷ speculative decode time per token, median (quartiles) over prompts, sides in turns.",
        ]
    )


def _speed_up(found: dict[str, float] | None) -> str:
    return f"{found['median']:.2f} ({found['low']:.2f}–{found['high']:.2f})" if found else "-"


def _megabytes(count: int | None) -> str:
    return "?" if count is None else f"{count / 1e6:.1f}"


def _at(request: PlanRequest, temperature: float) -> PlanRequest:
    sampling = dataclasses.replace(request.sampling, temperature=temperature)
    return dataclasses.replace(request, sampling=sampling)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
