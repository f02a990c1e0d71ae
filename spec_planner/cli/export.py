"""``spec-planner export``: write a target or a drafter as graphs that TensorRT builds engines from."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine_trt.bindings import Manifest

HELP = "Write a target or a drafter as graphs for TensorRT, on any machine; `spec-planner build` makes engines of them."
EXAMPLES = """\
precisions: float32, float16, bfloat16; int8, int4, fp8, nvfp4: weights only, products and cache in float16. The GPU
must have them: int8 every one, bfloat16 and int4 from Ampere (Orin) on, fp8 from Ada, nvfp4 from Blackwell (Thor).

--trt names the oldest TensorRT the graphs are for. 10.15 (JetPack 7.2, TensorRT 11, TensorRT-RTX) writes the KV cache
in place; 10.3 (JetPack 6, 7.0, 7.1) does without that layer.

examples:
  spec-planner export --target default --out graphs/target
  spec-planner export --target models/Qwen3-1.7B --precision int4 --context-length 4096 --trt 10.3 --out graphs/target
  spec-planner export --target default --drafter eagle3 --out graphs/eagle3
then, on the robot: spec-planner build --graph graphs/target --out engines/target
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", required=True, metavar="DIR", help="Hugging Face model directory, or default")
    parser.add_argument(
        "--drafter", default="", metavar="NAME", help="write this drafter of the target's: a directory, or one shipped"
    )
    parser.add_argument("--precision", default="float16", metavar="P", help="of weights and products (float16)")
    parser.add_argument(
        "--context-length", type=int, default=2048, metavar="N", help="tokens the KV cache holds (2048)"
    )
    parser.add_argument("--trt", default="10.15", metavar="VERSION", help="oldest TensorRT: 10.15 or 10.3 (10.15)")
    parser.add_argument(
        "--lend", action="store_true",
        help="the target's embedding and head are inputs: one buffer for target and drafters, not quantised",
    )  # fmt: skip
    parser.add_argument(
        "--taps", default="", metavar="L,…", help="hidden states the target puts out, for drafters that read them (all)"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="where graphs, weights and manifest go")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 when the directory is written.

    Raises:
        ValueError: bad input; one sentence.
    """
    from ..engines.threads import share_the_cpu

    share_the_cpu()  # before anything imports torch
    from engine_trt.export import export_drafter, export_target

    from ..factory import model_directory

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    out = Path(options.out)
    settings = {"precision": options.precision, "context_length": options.context_length, "dialect": options.trt}
    model = model_directory(options.target, report)
    if options.drafter:
        if options.lend or options.taps:
            raise ValueError("--lend and --taps are of a target's graph: leave them out with --drafter")
        manifest = export_drafter(model, _checkpoint(options.drafter, model), out, **settings, report=report)
    else:
        lend = ("embedding", "head") if options.lend else ()
        manifest = export_target(model, out, **settings, lend=lend, taps=_layers(options.taps), report=report)
    print(json.dumps(_summary(manifest, out), ensure_ascii=False) if options.json else _shown(manifest, out))
    return 0


def _layers(text: str) -> list[int] | None:
    try:
        return [int(part) for part in text.split(",")] if text else None
    except ValueError as error:
        raise ValueError(f"--taps takes layers with commas between them, got {text!r}") from error


def _checkpoint(drafter: str, model: Path) -> Path:
    """A directory, or the one that a name stands for."""
    from ..engines.identity import target_identity
    from ..shipped_drafters import DISTILLED, NAMED, find_shipped, shipped_drafter

    if drafter in NAMED:
        return shipped_drafter(drafter, target_identity(model))
    directory = find_shipped(DISTILLED, target_identity(model)) if drafter == DISTILLED else Path(drafter).expanduser()
    if directory is None or not directory.is_dir():
        raise ValueError(f"drafter {drafter!r} is neither a directory nor one of {', '.join((*NAMED, DISTILLED))}")
    return directory


def _summary(manifest: Manifest, out: Path) -> dict[str, object]:
    files = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    return {
        "key": manifest.key,
        "out": str(out),
        "files": files,
        "bytes": sum(files.values()),
        "weight_bytes": manifest.weight_bytes,
        "kv_bytes": manifest.kv_bytes,
        "inputs": {name: [asdict(t) for t in network.inputs] for name, network in manifest.networks.items()},
        "outputs": {name: [asdict(t) for t in network.outputs] for name, network in manifest.networks.items()},
    }


def _shown(manifest: Manifest, out: Path) -> str:
    networks = ", ".join(
        f"{name} ({len(network.inputs)} inputs, {len(network.outputs)} outputs)"
        for name, network in manifest.networks.items()
    )
    return "\n".join(
        [
            f"{manifest.key}, for TensorRT {manifest.dialect} or newer, is in {out}",
            f"  networks   {networks}",
            f"  weights    {manifest.weight_bytes / 1e6:.1f} MB",
            f"  KV cache   {manifest.kv_bytes / 1e6:.1f} MB at {manifest.context_length} tokens",
            f"next: spec-planner build --graph {out} --out DIR",
        ]
    )
