"""``spec-planner certify``: prove on this machine that speculative decoding says what plain decoding says."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .settings import add_model_arguments, config_from

if TYPE_CHECKING:
    from ..certify.certificate import Subject
    from ..config import PlannerConfig
    from ..pipeline.plan_pipeline import PlanPipeline

HELP = "Compare speculative with plain decoding token by token and write a certificate."
EXAMPLES = """\
Without --drafter every drafter is tried; each drafts chains, and trees too unless bits are promised.
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
    parser.add_argument("--tokens", type=int, default=2000, metavar="N", help="speculative tokens to compare (2000)")
    parser.add_argument(
        "--temperature", type=float, action="append", metavar="T", help="temperature to test; repeat (0 and 1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="first seed (0)")
    parser.add_argument("--prompts", metavar="FILE", help="instructions, one per line; default: the installed list")
    parser.add_argument("--out", metavar="DIR", help="write certificate.json and certificate.md here")
    parser.add_argument("--json", action="store_true", help="print the certificate as one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 for the verdict pass, 1 for fail.

    Raises:
        ValueError: bad input; one sentence.
    """
    from ..certify.certificate import Settings, certify
    from ..certify.document import to_json, to_markdown, write

    config = config_from(options)
    settings = Settings(
        tokens=options.tokens,
        temperatures=tuple(dict.fromkeys(options.temperature or (0.0, 1.0))),
        bitwise=config.exactness == "bitwise",
        seed=options.seed,
    )
    instructions = read_instructions(options.prompts)
    names = [options.drafter] if options.drafter else ["lookup", "draft-model"]
    progress = _Progress()
    with contextlib.redirect_stdout(sys.stderr):  # whatever a library prints must not end up in the JSON
        from ..factory import build_pipeline, model_directory

        pipeline = build_pipeline(dataclasses.replace(config, drafter="none"), progress.say)
    try:
        subjects = make_subjects(config, pipeline, names)
        prompts = [pipeline.prompt_ids(instruction) for instruction in instructions]
        certificate = certify(pipeline.target, subjects, prompts, pipeline.stop_ids, settings, progress.update)
        content = to_json(certificate, pipeline.info, model_directory(config.model))
    finally:
        progress.end()
        pipeline.close()
    if options.out:
        for path in write(content, Path(options.out)):
            print(f"wrote {path}", file=sys.stderr)
    print(json.dumps(content) if options.json else to_markdown(content))
    return 0 if certificate.passed else 1


def make_subjects(config: PlannerConfig, pipeline: PlanPipeline, names: list[str]) -> list[Subject]:
    """Every named drafter as a chain and, where bits and the rule allow it, as a tree.

    Raises:
        ValueError: a drafter cannot be built, or does not fit the rule.
    """
    from ..certify.certificate import Subject
    from ..factory import build_drafter, check_fits

    branches = [1] if config.exactness == "bitwise" or pipeline.rule.chains_only else [1, TREE_BRANCHES]
    if config.draft_branches > 1:
        branches = [config.draft_branches]
    subjects = []
    for name in names:
        for count in branches:
            variant = dataclasses.replace(config, drafter=name, draft_branches=count)
            check_fits(variant, pipeline.rule)
            drafter = build_drafter(variant, pipeline.target)
            if drafter is None:
                raise ValueError("drafter 'none' is what the others are compared with: name lookup or draft-model")
            shape = "chain" if count == 1 else "tree"
            subjects.append(Subject(f"{name}, {shape}", drafter, pipeline.rule, config.num_draft_tokens))
    return subjects


def read_instructions(path: str | None) -> list[str]:
    """Non-empty lines of a prompt file.

    Raises:
        ValueError: the file cannot be read or is empty.
    """
    from ..resources import shared_file

    file = Path(path) if path else shared_file("config/instructions.txt")
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"prompt file {file} cannot be read ({error}): give a text file, one instruction per line"
        ) from error
    instructions = [line for line in lines if line and not line.startswith("#")]
    if not instructions:
        raise ValueError(f"prompt file {file} holds no instruction: write one per line")
    return instructions


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
