"""``spec-planner certify``: prove on this machine that speculative decoding says what plain decoding says."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .settings import add_model_arguments, config_from

if TYPE_CHECKING:
    from ..certify.certificate import Subject
    from ..config import PlannerConfig
    from ..pipeline.plan_pipeline import PlanPipeline

HELP = "Compare speculative with plain decoding token by token and write a certificate."
EXAMPLES = """\
Without --drafter three are tried: lookup, draft-model and the one that the settings choose. Each drafts
chains, and trees too unless bits are promised.
Exit code 0 only if the verdict is pass.

examples:
  spec-planner certify --tokens 2000
  spec-planner certify --tokens 20000 --out certificate/
  spec-planner certify --tokens 1000 --drafter lookup --exactness bitwise --precision bfloat16 --json
  spec-planner certify --tokens 4000 --drafter draft-model --rule block --temperature 0.7
"""
TREE_BRANCHES = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--tokens", type=int, metavar="N", help="speculative tokens to compare (2000)")
    parser.add_argument(
        "--temperature", type=float, action="append", metavar="T", help="temperature to test; repeat (0 and 1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="first seed (0)")
    parser.add_argument("--prompts", metavar="FILE", help="instructions, one per line; default: the installed list")
    parser.add_argument("--scene", dest="scene_file", metavar="YAML", help="the scene they are about; default: none")
    parser.add_argument(
        "--free-text", action="store_true", default=None, help="do not hold answers to the grammar of skills and scene"
    )
    parser.add_argument("--out", metavar="DIR", help="write certificate.json and certificate.md here")
    parser.add_argument("--json", action="store_true", help="print the certificate as one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 for the verdict pass, 1 for fail.

    Raises:
        ValueError: bad input; one sentence.
    """
    from ..certify.document import to_markdown, write
    from ..certify.planner import certify_planner, read_instructions, settings_for

    config = config_from(options, "scene_file", "free_text")
    settings = settings_for(config, options.tokens, options.temperature or (), options.seed)
    instructions = read_instructions(options.prompts)
    wanted = [options.drafter] if options.drafter else ["lookup", "draft-model", config.drafter]
    wanted = [name for name in wanted if name != "none" or options.drafter]
    for name in wanted:  # what costs nothing to check comes before what takes seconds to load
        check_subject(config, name)
    progress = _Progress()
    with contextlib.redirect_stdout(sys.stderr):  # whatever a library prints must not end up in the JSON
        from ..drafter_choice import chosen, drafter_files
        from ..engine_choice import chosen_engine
        from ..factory import build_pipeline, make_request, model_directory, read_scene

        directory = model_directory(config.model, progress.say)
        names = list(dict.fromkeys(chosen(replace(config, drafter=name), directory).drafter for name in wanted))
        config = chosen_engine(config, directory, progress.say)  # with its drafter: the engine that plans, not another
        pipeline = build_pipeline(replace(config, drafter="none"), progress.say)
    try:
        scene = read_scene(config, pipeline.skills)
        requests = [make_request(config, instruction, scene) for instruction in instructions]
        subjects = make_subjects(config, pipeline, names)
        certificate, content = certify_planner(
            pipeline,
            subjects,
            requests,
            settings,
            directory,
            {name: found for name in names if (found := drafter_files(replace(config, drafter=name), directory))},
            progress.update,
        )
    finally:
        progress.end()
        pipeline.close()
    if options.out:
        for path in write(content, Path(options.out)):
            print(f"wrote {path}", file=sys.stderr)
    print(json.dumps(content) if options.json else to_markdown(content))
    return 0 if certificate.passed else 1


def check_subject(config: PlannerConfig, name: str) -> None:
    """Raise ``ValueError`` unless drafter ``name`` can be held against plain decoding under the rule."""
    from ..drafter_choice import check_fits
    from ..factory import find_rule

    if name == "none":
        raise ValueError("drafter 'none' is what the others are compared with: name lookup or draft-model")
    check_fits(replace(config, drafter=name), find_rule(config.rule))


def make_subjects(config: PlannerConfig, pipeline: PlanPipeline, names: list[str]) -> list[Subject]:
    """Every named drafter as a chain and, where bits and the rule allow it, as a tree.

    Raises:
        ValueError: a drafter cannot be built, or does not fit the rule.
    """
    from ..certify.planner import subject_for
    from ..drafter_choice import check_fits
    from ..factory import build_drafter

    branches = [1] if config.exactness == "bitwise" or pipeline.rule.chains_only else [1, TREE_BRANCHES]
    if config.draft_branches > 1:
        branches = [config.draft_branches]
    subjects = []
    for name in names:
        for count in branches:
            variant = replace(config, drafter=name, draft_branches=count)
            check_fits(variant, pipeline.rule)
            subjects.append(subject_for(variant, build_drafter(variant, pipeline.target), pipeline.rule))
    return subjects


class _Progress:
    """One line on standard error that is rewritten on a terminal, and said every half minute elsewhere."""

    def __init__(self) -> None:
        self._started = self._said = time.monotonic()
        self._rewrites = sys.stderr.isatty()

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def update(self, share: float, line: str) -> None:
        now = time.monotonic()
        left = (now - self._started) * (1 - share) / share if share > 0 else None
        text = f"{share:4.0%}  {line}" + (f", about {left:.0f} s left" if left and share < 1 else "")
        if self._rewrites:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif share >= 1 or now - self._said >= 30:
            self.say(text)
            self._said = now

    def end(self) -> None:
        if self._rewrites:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
