"""Engines kept in the user's cache: exported and built when first asked for, refused when they no longer fit.

A TensorRT engine runs with the very TensorRT and the kind of GPU it was built for. What an engine was built for is part
of its directory's name, so that an updated JetPack builds anew by itself; an engine that the user names is checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from spec_planner import __version__
from spec_planner.engines.cache import cache_directory, make_once
from spec_planner.engines.decoder_config import EngineUnavailable, ModelError
from spec_planner.engines.identity import target_identity

from .bindings import LAYOUT, NATIVE, SCATTER, Manifest, read_manifest
from .build_engine import TIMING_FILE, build, check_plans, read_record
from .build_watch import Progress
from .engine_key import EngineKey
from .trt_module import TensorRt, load_tensorrt

Report = Callable[[str], None]


def ensure_engine(model: Path, *, context_length: int, precision: str, report: Report = lambda line: None,
                  interrupted: Callable[[], bool] = lambda: False) -> Path:  # fmt: skip
    """The engine of the checkpoint in ``model`` for the GPU that is here, exported and built first if need be.

    Args:
        report: told what is done, and every tenth of a build.
        interrupted: asked now and then while it builds, see ``build``.

    Raises:
        EngineUnavailable: there is no TensorRT, or no package to export with.
        ModelError: the checkpoint cannot be used, or not in this precision on this GPU; the engine is damaged.
        KeyboardInterrupt: it was interrupted; nothing is left behind.
    """
    trt = load_tensorrt()
    dialect = dialect_for(trt)
    wanted = [target_identity(model), precision, context_length, dialect, LAYOUT, __version__]
    name = f"{model.resolve().name}-{precision}-{_digest(wanted)}"

    def export(scratch: Path) -> None:
        try:
            from .export import export_target
        except ImportError as error:
            raise EngineUnavailable(
                f"exporting {model.name} for TensorRT needs onnx and ml_dtypes ({error}): pip install onnx ml_dtypes, "
                f"or export and build beforehand and set engine_file"
            ) from error
        export_target(
            model, scratch, precision=precision, context_length=context_length, dialect=dialect, report=report
        )

    graphs = make_once(_root() / "graphs" / name, export, "the graph for TensorRT")
    key = EngineKey.of(trt, read_manifest(graphs))

    def make(scratch: Path) -> None:
        report(f"building the TensorRT engine of {model.name} (once, minutes)")
        build(
            graphs, scratch, timing_file=timing_file(), report=report, progress=tenths(report), interrupted=interrupted
        )

    directory = make_once(_root() / "engines" / f"{name}-{_digest(asdict(key))}", make, "the TensorRT engine")
    check_plans(directory, read_record(directory))
    return directory


def tenths(report: Report) -> Progress:
    """Tells ``report`` of every tenth of a build that is done."""
    said = 0

    def progress(share: float, what: str) -> None:
        nonlocal said
        if int(share * 10) > said:
            said = int(share * 10)
            report(f"building the TensorRT engine: {10 * said} % of its steps ({what})")

    return progress


def engine_directory(engine_file: str) -> Path:
    """The directory that ``engine_file`` names, itself or by a file in it.

    Raises:
        ModelError: there is no such file or directory.
    """
    place = Path(engine_file).expanduser()
    if not place.exists():
        raise ModelError(f"engine_file {place} does not exist: give the directory that `spec-planner build` wrote")
    return place if place.is_dir() else place.parent


def check_engine_directory(directory: Path, model: Path, *, context_length: int, precision: str) -> Manifest:
    """The manifest of an engine that fits the checkpoint in ``model``, this TensorRT and this GPU.

    Raises:
        ModelError: it does not; one sentence with what differs and how to make one that does.
    """
    record, manifest, trt = read_record(directory), read_manifest(directory), load_tensorrt()
    if manifest.kind != "target":
        raise ModelError(f"the engine in {directory} is that of a drafter ({manifest.kind}): give the target's")
    problems = record.key.differences(EngineKey.of(trt, manifest))
    for what, mine, theirs in (
        ("target", manifest.target, target_identity(model)),
        ("precision", manifest.precision, precision),
    ):
        if mine != theirs:
            problems.append(f"{what} {mine} and not {theirs}")
    if context_length > manifest.context_length:
        problems.append(f"contexts of {manifest.context_length} tokens and not {context_length}")
    if problems:
        raise ModelError(
            f"the engine in {directory} is for {', '.join(problems)}: make it again with `spec-planner export --target "
            f"{model} --precision {precision} --context-length {context_length} --trt {dialect_for(trt)} --out graphs` "
            f"and `spec-planner build --graph graphs --out {directory}`"
        )
    check_plans(directory, record)
    return manifest


def dialect_for(trt: TensorRt) -> str:
    """The newest dialect that this TensorRT reads."""
    native = trt.flavour == "tensorrt-rtx" or trt.at_least(NATIVE)
    return NATIVE if native else SCATTER


def timing_file() -> Path:
    """Kept beside the engines, for all of them."""
    return _root() / TIMING_FILE


def _root() -> Path:
    return cache_directory() / "tensorrt"


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
