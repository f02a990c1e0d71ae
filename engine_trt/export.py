"""Checkpoint → graphs, weights and manifest, on any machine: no GPU, no TensorRT.

The directory appears whole or not at all, and the same checkpoint always gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import onnx
from onnx import helper

from drafters.checkpoint import detect
from drafters.graphs.net_graphs import AHEAD, NetGraphs
from drafters.registry import load_drafter
from spec_planner import __version__
from spec_planner.engines.decoder_config import ModelError, read_decoder_config
from spec_planner.engines.identity import target_identity
from spec_planner.engines.onnx_export import add_decoder, write_decoder
from spec_planner.engines.passes import DECODE_WIDTHS, MAX_NODES, Extents, check_context
from spec_planner.graphs.weights import WEIGHTS_FILE, WeightFile

from .bindings import (
    NATIVE,
    SCATTER,
    Manifest,
    Network,
    Tensor,
    drafter_profiles,
    read_manifest,
    target_profiles,
)
from .checkpoint_lender import CheckpointLender
from .digests import sha256_of
from .graph_layers import DIALECTS, TensorRtLayers
from .precisions import PRECISIONS
from .weights import EngineWeights
from .whole_directory import written_whole

Report = Callable[[str], None]


def export_target(model: Path, directory: Path, *, precision: str, context_length: int, dialect: str = NATIVE,
                  lend: Collection[str] = (), taps: Collection[int] | None = None,
                  report: Report = lambda line: None) -> Manifest:  # fmt: skip
    """Write the checkpoint in ``model`` to ``directory``.

    Args:
        lend: "embedding" and "head", to be inputs that the target and drafters' engines are bound to.
        taps: hidden states to put out, Hugging Face's indices; None: all, for any drafter.

    Raises:
        ModelError: the checkpoint cannot be used, not in this precision or dialect, or the directory not written.
    """
    _check_settings(precision, dialect)
    config = read_decoder_config(model)
    check_context(config, context_length, model)
    unknown = [layer for layer in taps or () if not 0 <= layer <= config.num_layers]
    if unknown:
        raise ModelError(f"{model} has hidden states 0 to {config.num_layers}, not {unknown[0]}: correct --taps")
    if config.tied_head and lend:
        lend = ("embedding",)  # which is the head
    capacity = Extents(DECODE_WIDTHS, context_length).capacity

    def make(scratch: Path) -> None:
        report(f"exporting {model.name} for TensorRT in {precision}")
        kept = PRECISIONS[precision]
        with (scratch / WEIGHTS_FILE).open("wb") as file:
            writer = EngineWeights(scratch, file, kept, lends=bool(lend), tied_head=config.tied_head)
            write_decoder(writer, model, config, None, None, context_length + MAX_NODES)
            writer.finish()
        weights = WeightFile(scratch)
        graph = DIALECTS[dialect](weights.table, kept.compute, capacity, lend, taps)
        add_decoder(graph, config, config.num_layers)
        tensors = _write_graph(graph, "decoder", scratch)
        profiles = target_profiles(context_length, capacity, MAX_NODES)
        Manifest(
            kind="target",
            name=model.resolve().name,
            target=target_identity(model),
            dialect=dialect,
            precision=precision,
            context_length=context_length,
            capacity=capacity,
            sizes={name: getattr(config, name) for name in ("vocabulary_size", "hidden_size", "num_layers")},
            networks={"decoder": Network(tensors, profiles)},
            lent=tuple(sorted(lend)),
            weight_bytes=weights.num_bytes,
            graph_hash=_graph_hash(scratch),
            exporter=__version__,
            tied_head=config.tied_head,
        ).write(scratch)

    written_whole(directory, make)
    return read_manifest(directory)


def export_drafter(model: Path, checkpoint: Path, directory: Path, *, precision: str, context_length: int,
                   dialect: str = NATIVE, report: Report = lambda line: None) -> Manifest:  # fmt: skip
    """Write the drafter in ``checkpoint``, of the target in ``model``, to ``directory``: a network for every step.

    A head that it borrows whole is an input, ``head``, to be bound to the target's own buffer.

    Raises:
        TorchOnly: (a ``ValueError``) its network has no graph.
        ValueError: (``ModelError``, ``CheckpointError``, ``Incompatible``) it cannot be used, or not with this target.
    """
    _check_settings(precision, dialect)
    kind = detect(checkpoint)
    target = CheckpointLender(model, context_length)
    graphs = _graphs(checkpoint, target)
    capacity = Extents((MAX_NODES + AHEAD,), context_length).capacity

    def make(scratch: Path) -> None:
        report(f"exporting {kind} {checkpoint.name} for TensorRT in {precision}")
        kept = PRECISIONS[precision]
        with (scratch / WEIGHTS_FILE).open("wb") as file:
            writer = EngineWeights(scratch, file, kept)
            graphs.write_weights(writer)
            writer.finish()
        weights = WeightFile(scratch)
        networks = {}
        for step, add in sorted(graphs.steps.items()):
            graph = DIALECTS[dialect](weights.table, kept.compute, capacity)
            add(graph)
            tensors = _write_graph(graph, step, scratch)
            letters = {extent for tensor in tensors for extent in tensor.shape if isinstance(extent, str)}
            networks[step] = Network(tensors, drafter_profiles(letters, context_length, capacity))
        Manifest(
            kind=kind,
            name=checkpoint.resolve().name,
            target=target_identity(model),
            dialect=dialect,
            precision=precision,
            context_length=context_length,
            capacity=capacity,
            sizes={"vocabulary_size": target.info.vocabulary_size},
            networks=networks,
            lent=tuple(sorted(graphs.lent)),
            weight_bytes=weights.num_bytes,
            graph_hash=_graph_hash(scratch),
            exporter=__version__,
        ).write(scratch)

    written_whole(directory, make)
    return read_manifest(directory)


class _Loaded(Exception):
    """Ends the loading of a drafter where its network is ready to be written."""

    def __init__(self, graphs: NetGraphs) -> None:
        super().__init__()
        self.graphs = graphs


def _graphs(checkpoint: Path, target: CheckpointLender) -> NetGraphs:
    """What the drafter would have compiled; loading it any further needs something that runs it."""

    def compiler(graphs: NetGraphs):
        raise _Loaded(graphs)

    try:
        load_drafter(checkpoint, target, branches=1, compiler=compiler)
    except _Loaded as loaded:
        return loaded.graphs
    raise ModelError(f"{checkpoint} has no network to write: give a drafter's checkpoint")


def _check_settings(precision: str, dialect: str) -> None:
    if precision not in PRECISIONS:
        raise ModelError(f"there is no precision {precision!r} for TensorRT: use one of {', '.join(PRECISIONS)}")
    if dialect not in DIALECTS:
        raise ModelError(f"there are no graphs for TensorRT {dialect!r}: use {' or '.join(DIALECTS)}")
    if precision == "nvfp4" and dialect == SCATTER:
        raise ModelError(f"precision nvfp4 needs graphs for TensorRT {NATIVE}: use those, or another precision")


def _tensors_of(model: onnx.ModelProto) -> tuple[Tensor, ...]:
    """Inputs, then outputs of a graph, in its order."""
    return tuple(
        Tensor(
            value.name,
            output,
            helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name,
            tuple(extent.dim_param or extent.dim_value for extent in value.type.tensor_type.shape.dim),
        )
        for output, values in ((False, model.graph.input), (True, model.graph.output))
        for value in values
    )


def _write_graph(graph: TensorRtLayers, name: str, directory: Path) -> tuple[Tensor, ...]:
    network = graph.model(name)
    (directory / f"{name}.onnx").write_bytes(network.SerializeToString(deterministic=True))
    return _tensors_of(network)


def _graph_hash(directory: Path) -> str:
    """SHA-256 over graphs and weights."""
    return sha256_of([*sorted(directory.glob("*.onnx")), directory / WEIGHTS_FILE])
