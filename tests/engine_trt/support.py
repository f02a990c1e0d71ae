"""Targets whose engine is ONNX Runtime over the graphs written for TensorRT."""

from __future__ import annotations

from pathlib import Path

import torch

from engine_trt.bindings import Manifest
from engine_trt.checkpoint_lender import CheckpointLender
from engine_trt.export import export_target
from engine_trt.precisions import PRECISIONS
from engine_trt.trt_session import TrtSession
from engine_trt.trt_target import TrtTarget
from spec_planner.engines.decoder_config import read_decoder_config
from spec_planner.engines.passes import DECODE_WIDTHS, Extents

from .onnx_stand_in import recording, stand_in

CONTEXT = 128


def rerun(compute):
    """In a CUDA graph's place: run again over the same inputs."""
    with recording():
        results = compute()

    def replay():
        compute()

    return replay, results


def make_target(model: Path, graphs: Path, precision: str, dialect: str, widths=DECODE_WIDTHS, **options) -> TrtTarget:
    """``options``: of ``export_target``."""
    settings = {"context_length": CONTEXT, **options}
    manifest = export_target(model, graphs, precision=precision, dialect=dialect, **settings)
    return open_target(model, graphs, manifest, widths)


def open_target(model: Path, graphs: Path, manifest: Manifest, widths=DECODE_WIDTHS) -> TrtTarget:
    plan = graphs / "decoder.plan"
    plan.write_text("decoder")
    lender = CheckpointLender(model, manifest.context_length)
    dtype = getattr(torch, PRECISIONS[manifest.precision].compute)
    trt = stand_in(graphs, manifest)
    session = TrtSession(
        trt, plan, manifest, lambda name: lender.lend(name, dtype), widths, torch.device("cpu"), capture=rerun
    )
    config, extents = read_decoder_config(model), Extents(widths, manifest.context_length)
    return TrtTarget(session, config, model.name, manifest.precision, "cpu", manifest.context_length, widths, extents)
