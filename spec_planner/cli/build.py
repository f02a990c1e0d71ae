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
kept for the next build. Ctrl-C leaves nothing behind.

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
    phases: set[str] = set()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def progress(share: float, phase: str) -> None:
        if phase not in phases:  # TensorRT says how far a phase is, not how far the build
            phases.add(phase)
            say(f"  {phase}")

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
    weights = sum(built.weights for built in record.engines.values()) or manifest.weight_bytes
    io_bytes = sum(network.io_bytes for network in manifest.networks.values())
    total = weights + manifest.kv_bytes + record.activation_bytes + io_bytes
    lines += [
        "on the GPU, MB",
        f"  weights      {weights / 1e6:8.1f}",
        f"  KV cache     {manifest.kv_bytes / 1e6:8.1f}  at {manifest.context_length} tokens",
        f"  activations  {record.activation_bytes / 1e6:8.1f}",
        f"  in and out   {io_bytes / 1e6:8.1f}",
        f"  together     {total / 1e6:8.1f}",
    ]
    return "\n".join(lines)
