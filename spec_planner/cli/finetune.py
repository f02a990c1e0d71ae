"""``spec-planner finetune``: train a low-rank adapter, so that a target plans in this package's format."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path

from .long_run import Progress, interrupts

HELP = "Train a LoRA adapter on tasks, so that a target plans well without examples in its prompt."
EXAMPLES = """\
The adapter (PEFT's format, float16), its card and the run's state are written to --out. A run that was killed or
interrupted is continued with the same command and --resume. With --steps or --epochs a run continued on a CPU with as
many threads ends in the same bits as an uninterrupted one; --minutes ends by the clock. Without any: --epochs 2.
--medusa is Medusa-2: the adapter and heads that `spec-planner train --drafter medusa` made for --target go on together,
by L_LM + λ0 Σ 0.8^k CE(head k). The heads go to --out/drafter and are for the target with the adapter merged in. That
is a new target, which says other things than the old one; drafting with the heads is exact with respect to the new one.

examples:
  spec-planner finetune --target default-base --tasks tasks/ --out adapter/ --minutes 60
  spec-planner finetune --target default-base --tasks tasks/ --out adapter/ --minutes 60 --resume
  spec-planner finetune --target models/Qwen3-1.7B --tasks tasks/ --out adapter/ --epochs 2 --merge merged/
  spec-planner finetune --target default-base --tasks tasks/ --out planner2/ --medusa heads/drafter --merge merged/
  torchrun --nproc-per-node 8 -m spec_planner finetune --target models/Qwen3-1.7B --tasks tasks/ --out adapter/
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        required=True,
        metavar="DIR",
        help="Hugging Face model directory, or default-base",
    )
    parser.add_argument("--tasks", required=True, metavar="DIR", help="directory of *.jsonl task files")
    parser.add_argument("--out", required=True, metavar="DIR", help="where adapter, card and state go")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--steps", type=int, metavar="N", help="optimizer steps")
    parser.add_argument("--epochs", type=float, metavar="N", help="passes over the tasks (2)")
    parser.add_argument("--minutes", type=float, metavar="M", help="end after M minutes of training, sittings added up")
    parser.add_argument("--rank", type=int, default=16, metavar="R", help="rank of the adapter (16)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, metavar="X", help="highest rate (0.001)")
    parser.add_argument("--batch-tokens", type=int, default=4096, metavar="N", help="tokens per step, about (4096)")
    parser.add_argument("--pack-tokens", type=int, default=2048, metavar="N", help="tokens per pass, about (2048)")
    parser.add_argument(
        "--vary-skills", type=float, default=0.25, metavar="X", help="share of packs with a shuffled skill list (0.25)"
    )
    parser.add_argument(
        "--general", type=float, default=0.05, metavar="X", help="share of packs that keep general ability (0.05)"
    )
    parser.add_argument("--medusa", metavar="DIR", help="Medusa heads for --target, to learn together with the adapter")
    parser.add_argument(
        "--medusa-weight", type=float, metavar="X", help="of the heads' loss beside the plans', λ0 (0.2)"
    )
    parser.add_argument(
        "--medusa-rate", type=float, metavar="X", help="the heads' learning rate, times the adapter's (4)"
    )
    parser.add_argument("--evaluate-every", type=int, default=50, metavar="N", help="steps between evaluations (50)")
    parser.add_argument("--save-seconds", type=float, default=120.0, metavar="X", help="between states on disk (120)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of adapter and order (0)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="auto, cpu or cuda")
    parser.add_argument(
        "--precision", default="auto", choices=("auto", "float32", "bfloat16"), help="of the base model"
    )
    parser.add_argument("--merge", metavar="DIR", help="also write the whole model with the adapter merged into it")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 when the adapter is written, 130 when interrupted.

    Raises:
        ValueError: bad input; one sentence.
    """
    from ..engines.threads import share_the_cpu

    share_the_cpu()  # before anything imports torch
    from ..engines.adapter import write_merged
    from ..finetune.run import Settings, finetune

    leads = os.environ.get("RANK", "0") == "0"
    progress = Progress(leads)
    if not any(Path(options.tasks).glob("*.jsonl")):  # before the target is converted, which takes a while
        raise ValueError(f"{options.tasks} holds no *.jsonl file: write tasks with `spec-planner tasks --out DIR`")
    if options.merge and Path(options.merge).exists() and any(Path(options.merge).iterdir()):
        raise ValueError(f"{options.merge} is not empty: name a new directory for the merged model")
    about_heads = {name: getattr(options, name) for name in ("medusa_weight", "medusa_rate")}
    given = {name: value for name, value in about_heads.items() if value is not None}
    if given and not options.medusa:
        raise ValueError(
            "--medusa-weight and --medusa-rate are about heads: name some with --medusa, or leave them out"
        )
    settings = Settings(
        target=_target(options.target),
        tasks=Path(options.tasks),
        out=Path(options.out),
        steps=options.steps,
        epochs=options.epochs,
        minutes=options.minutes,
        rank=options.rank,
        learning_rate=options.learning_rate,
        batch_tokens=options.batch_tokens,
        pack_tokens=options.pack_tokens,
        vary_share=options.vary_skills,
        general_share=options.general,
        medusa=Path(options.medusa).expanduser() if options.medusa else None,
        **given,
        evaluate_every=options.evaluate_every,
        save_seconds=options.save_seconds,
        seed=options.seed,
        device=options.device,
        precision=options.precision,
    )
    command = ["spec-planner", *sys.argv[1:]]
    with interrupts() as interrupted, contextlib.redirect_stdout(sys.stderr):
        summary = finetune(settings, options.resume, progress.update, lambda: interrupted[0], command)
    progress.end()
    if summary is None:
        if leads:
            print(f"interrupted; the same command with --resume continues the run in {options.out}", file=sys.stderr)
        return 130
    if not leads:
        return 0
    if options.merge:
        write_merged(settings.target, settings.out, Path(options.merge), progress.say)
    print(json.dumps(summary) if options.json else _shown(summary))
    return 0


def _target(name: str) -> Path:
    if name == "default-base":
        from ..engines.default_model import ensure_base_model

        return ensure_base_model(lambda line: print(line, file=sys.stderr))
    directory = Path(name).expanduser()
    if not directory.is_dir():
        raise ValueError(f"target {name!r} is not a directory: give a Hugging Face model directory, or default-base")
    return directory


def _shown(summary: dict) -> str:
    rows = [f"  {name:30} {before:>10} → {after}" for name, (before, after) in summary["numbers"].items()]
    return "\n".join(
        [
            f"{summary['steps']} steps, {summary['tokens']:,} tokens in {summary['minutes']:.1f} min "
            f"({summary['tokens_per_second']:.0f} tokens/s)",
            *rows,
            f"adapter{', heads (drafter)' if summary['heads'] else ''} and card are in {summary['out']}",
        ]
    )
