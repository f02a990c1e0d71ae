"""``spec-planner build``: make TensorRT engines of exported graphs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .long_run import interrupts

if TYPE_CHECKING:
    from engine_trt.bindings import Manifest
    from engine_trt.build_engine import EngineRecord

HELP = "Make TensorRT engines of graphs that `spec-planner export` wrote: on the robot, or for a GPU given by name."
EXAMPLES = """\
An engine runs with the TensorRT and on the kind of GPU it was built for, and is refused elsewhere. With TensorRT-RTX
the GPU need not be there: name its compute capability. The full TensorRT measures kernels, and what it measured is
kept for the next build. Ctrl-C ends a build at its next step and leaves nothing behind.

examples:
  spec-planner build --graph graphs/target --out engines/target
  spec-planner build --graph graphs/target --compute-capability sm89 --out engines/target
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--graph", required=True, metavar="DIR", help="what `spec-planner export` wrote")
    parser.add_argument(
        "--compute-capability", default="", metavar="smNN", help="build for this GPU and not for the one here"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="where the engines go")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 when the engines are built, 130 when interrupted.

    Raises:
        ValueError: bad input, or no TensorRT; one sentence.
    """
    from engine_trt.bindings import read_manifest
    from engine_trt.build_engine import build
    from engine_trt.engine_cache import timing_file

    graphs, out = Path(options.graph), Path(options.out)
    manifest = read_manifest(graphs)
    said: set[tuple[float, str]] = set()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def progress(share: float, phase: str) -> None:
        if (round(share, 1), phase) not in said:  # a tenth of the steps, which are not all equally long
            said.add((round(share, 1), phase))
            say(f"  {share:4.0%}  {phase}")

    with interrupts() as interrupted:
        record = build(
            graphs,
            out,
            capability=options.compute_capability,
            timing_file=timing_file(),
            report=say,
            progress=progress,
            interrupted=lambda: interrupted[0],
        )
    print(json.dumps({"out": str(out), **asdict(record)}) if options.json else _shown(manifest, record, out))
    return 0


def _shown(manifest: Manifest, record: EngineRecord, out: Path) -> str:
    lines = [f"{manifest.kind} for {record.key.capability}, {record.key.flavour} {record.key.version}, is in {out}"]
    for name, built in record.engines.items():
        layers = built.compiled
        lines.append(f"  {name:<12} {built.plan / 1e6:8.1f} MB of plan, {built.weights / 1e6:.1f} MB of weights in it")
        if layers.layers:
            lines.append(
                f"  {'':<12} {layers.layers} compiled layers, {layers.fused_attentions} fused attentions, "
                f"{layers.in_place} cache updates in place, {layers.restored_apart} matrices restored apart"
            )
    io_bytes = sum(network.io_bytes for network in manifest.networks.values())
    needs = [
        ("weights", record.weight_bytes, ""),
        ("lent", manifest.lent_bytes, f"{', '.join(manifest.lent)}: one buffer for target and drafters"),
        ("KV cache", manifest.kv_bytes, f"at {manifest.context_length} tokens"),
        ("activations", record.activation_bytes, ""),
        ("in and out", io_bytes, ""),
    ]
    needs.append(("together", sum(size for _, size, _ in needs), ""))
    shown = [f"  {what:<12} {size / 1e6:8.1f}  {note}".rstrip() for what, size, note in needs if size or what != "lent"]
    return "\n".join(
        [
            *lines,
            "on the GPU, MB",
            *shown,
            "A verify pass is recorded, for every width and 512 slots of context, with its own context. They share",
            "the activations; TensorRT does not say beforehand what else a context and its CUDA graph take.",
        ]
    )
