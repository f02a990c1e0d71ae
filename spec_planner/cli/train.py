"""``spec-planner train``: train a drafter for a target, on the target's own answers."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path

from drafters.training.trainee import TRAINEES

from .long_run import Progress, interrupts

HELP = "Train a drafter for a target: the target answers prompts, and the drafter learns to guess its answers."
EXAMPLES = """\
Three stages, each kept on disk: the target answers the prompts (responses.jsonl), reads its answers once (features-…/),
and the drafter learns from both. The finished drafter, in the layout in which its kind is published, is <out>/drafter,
with a card beside it; it is then measured by decoding held-out prompts. A run that was killed or interrupted is
continued with the same command and --resume; answers and features in --cache are used again by other drafters. With
--steps or --epochs a run continued on a CPU with as many threads ends in the same bits as an uninterrupted one;
--minutes ends by the clock. Without any of them: --epochs 3.

prompts: the directory that `spec-planner tasks` writes, or for another model or use a .txt with an instruction per
line, or JSON lines {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}.

examples:
  spec-planner train --drafter eagle3 --target default --prompts tasks/ --out eagle3/ --cache answers/ --minutes 120
  spec-planner train --drafter eagle3 --target default --prompts tasks/ --out eagle3/ --cache answers/ --minutes 120 \\
      --resume
  spec-planner train --drafter medusa --target models/Qwen3-1.7B --prompts chats.jsonl --out medusa/ --epochs 2 \\
      --set num_heads=3
  torchrun --nproc-per-node 8 -m spec_planner train --drafter dflash --target models/Qwen3-8B --prompts chats.jsonl \\
      --out dflash/
then: spec-planner plan --drafter eagle3/drafter --instruction "..."
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--drafter", required=True, choices=TRAINEES, metavar="NAME", help=", ".join(TRAINEES))
    parser.add_argument(
        "--target", required=True, metavar="DIR", help="Hugging Face model directory, default or default-base"
    )
    parser.add_argument("--prompts", required=True, metavar="PATH", help="tasks, or plain prompts: see above")
    parser.add_argument("--out", required=True, metavar="DIR", help="where drafter, card and state go")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--cache", metavar="DIR", help="where answers and features go (<out>/cache)")
    parser.add_argument(
        *("--set",), dest="options", action="extend", nargs="+", default=[], metavar="OPTION=VALUE",
        help="options of this kind of drafter; a wrong one is answered with the list",
    )  # fmt: skip
    answers = parser.add_argument_group("answers")
    answers.add_argument("--responses", type=int, metavar="N", help="answers to learn from (one per training prompt)")
    answers.add_argument(
        "--validation-responses", type=int, default=64, metavar="N", help="answers to validate with, at most (64)"
    )
    answers.add_argument("--temperatures", default="0,1", metavar="T,…", help="taken in turn by the prompts (0,1)")
    answers.add_argument("--max-tokens", type=int, default=160, metavar="N", help="of an answer (160)")
    answers.add_argument("--context-length", type=int, default=2048, metavar="N", help="prompt and answer (2048)")
    answers.add_argument(
        "--engine", default="auto", help="what runs the target: auto, torch, onnx, openvino or tensorrt"
    )
    answers.add_argument("--engine-precision", default="float32", metavar="P", help="of the engine (float32)")
    features = parser.add_argument_group("features")
    features.add_argument("--pack-tokens", type=int, default=2048, metavar="N", help="tokens per pass, about (2048)")
    features.add_argument("--also-layers", default="", metavar="L,…", help="hidden states to keep for other drafters")
    learning = parser.add_argument_group("training")
    learning.add_argument("--steps", type=int, metavar="N", help="optimizer steps")
    learning.add_argument("--epochs", type=float, metavar="N", help="passes over the answers (3)")
    learning.add_argument("--minutes", type=float, metavar="M", help="end after M minutes of steps, sittings added up")
    learning.add_argument("--learning-rate", type=float, default=5e-4, metavar="X", help="highest rate (0.0005)")
    learning.add_argument("--batch-packs", type=int, default=2, metavar="N", help="packs per step (2)")
    learning.add_argument(
        "--evaluate-every", type=int, default=100, metavar="N", help="steps between evaluations (100)"
    )
    learning.add_argument("--save-seconds", type=float, default=120.0, metavar="X", help="between states (120)")
    learning.add_argument("--seed", type=int, default=0, metavar="S", help="of answers, parameters and order (0)")
    learning.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="auto, cpu or cuda")
    learning.add_argument(
        "--precision", default="auto", choices=("auto", "float32", "bfloat16"), help="of features and products (auto)"
    )
    parser.add_argument(
        "--final-prompts", type=int, default=12, metavar="N", help="held-out prompts to measure with (12)"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 when the drafter is written and exact, 1 when it is not exact, 130 when interrupted.

    Raises:
        ValueError: bad input; one sentence.
    """
    from ..engines.threads import share_the_cpu

    share_the_cpu()  # before anything imports torch
    from ..train.run import train
    from ..train.settings import Settings

    leads = os.environ.get("RANK", "0") == "0"
    progress = Progress(leads)
    if not Path(options.prompts).exists():  # before the target is converted, which takes a while
        raise ValueError(f"{options.prompts} does not exist: write tasks with `spec-planner tasks --out DIR`")
    settings = Settings(
        drafter=options.drafter,
        target=_target(options.target),
        prompts=Path(options.prompts),
        out=Path(options.out),
        cache=Path(options.cache or Path(options.out) / "cache"),
        options=dict(_pair(text) for text in options.options),
        responses=options.responses,
        validation_responses=options.validation_responses,
        temperatures=tuple(_numbers(options.temperatures, float, "--temperatures")),
        max_tokens=options.max_tokens,
        context_length=options.context_length,
        engine=options.engine,
        engine_precision=options.engine_precision,
        pack_tokens=options.pack_tokens,
        also_layers=tuple(_numbers(options.also_layers, int, "--also-layers")),
        steps=options.steps,
        epochs=options.epochs,
        minutes=options.minutes,
        learning_rate=options.learning_rate,
        batch_packs=options.batch_packs,
        evaluate_every=options.evaluate_every,
        save_seconds=options.save_seconds,
        final_prompts=options.final_prompts,
        seed=options.seed,
        device=options.device,
        precision=options.precision,
    )
    command = ["spec-planner", *sys.argv[1:]]
    with interrupts() as interrupted, contextlib.redirect_stdout(sys.stderr):
        summary = train(settings, options.resume, progress.update, lambda: interrupted[0], command)
    progress.end()
    if summary is None:
        if leads:
            print(f"interrupted; the same command with --resume continues the run in {options.out}", file=sys.stderr)
        return 130
    if not leads:
        return 0
    print(json.dumps(summary) if options.json else _shown(summary))
    if not summary["identical"]:
        print(
            "the tokens were not those of plain decoding: `spec-planner certify` tells a near tie from an error",
            file=sys.stderr,
        )
        return 1
    return 0


def _target(name: str) -> Path:
    from ..factory import model_directory

    return model_directory(name, lambda line: print(line, file=sys.stderr))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"--set takes OPTION=VALUE, got {text!r}")
    return name, value


def _numbers(text: str, kind: type, flag: str) -> list:
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ValueError(f"{flag} takes numbers with commas between them, got {text!r}") from error


def _shown(summary: dict) -> str:
    shares = " ".join(f"{share:.2f}" for share in summary["by_depth"])
    return "\n".join(
        [
            f"{summary['steps']} steps, {summary['tokens']:,} tokens in {summary['minutes']:.1f} min",
            f"  tokens per verify pass         {summary['acceptance_length']:.2f}  (kept at depth 1, 2, …: {shares})",
            f"  with prompt lookup             {summary['lookup_acceptance_length']:.2f}",
            f"  identical to plain decoding    {'yes' if summary['identical'] else 'no'}",
            f"drafter and card are in {summary['out']}",
        ]
    )
