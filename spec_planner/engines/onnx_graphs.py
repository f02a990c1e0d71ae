"""Exported graphs in the cache: made once per checkpoint, precision and exporter, for every engine that runs them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from ..graphs.weights import LAYOUT, WeightFile
from .cache import cache_directory, locked, make_once
from .decoder_config import DecoderConfig, EngineUnavailable, ModelError, read_decoder_config

Report = Callable[[str], None]
_SAMPLES, _SAMPLE_BYTES = 64, 65_536  # of each weights file, for the key


class GraphDirectory:
    """One checkpoint in one precision as ONNX: ``weights.bin``, and a small graph file per number of layers."""

    def __init__(self, directory: Path, config: DecoderConfig, precision: str) -> None:
        self.directory, self.config, self.precision = directory, config, precision
        self.weights = WeightFile(directory)

    @property
    def key(self) -> str:
        """Names the graph's content; part of a certificate."""
        return self.directory.name

    def graph(self, num_layers: int) -> Path:
        """The graph of the first ``num_layers`` layers, written when first asked for.

        Raises:
            ModelError: it cannot be written.
        """
        path = self.directory / f"decoder-{num_layers}.onnx"
        if not path.is_file():
            try:
                with locked(self.directory / ".lock"):
                    if not path.is_file():
                        _write_graph(path, self.config, self.weights, num_layers)
            except OSError as error:
                raise ModelError(f"cannot write {path} ({error}): free space or set SPEC_PLANNER_CACHE") from error
        return path


def ensure_graph(model: Path, precision: str, report: Report = lambda line: None) -> GraphDirectory:
    """The exported graph of the checkpoint in ``model``, exporting it first if need be.

    Raises:
        ModelError: the checkpoint cannot be used, a package is missing, or the cache cannot be written.
    """
    config = read_decoder_config(model)

    def make(scratch: Path) -> None:
        try:
            from .onnx_export import write_weights
        except ImportError as error:
            raise EngineUnavailable(
                f"exporting to ONNX needs the package {error.name}: pip install it, once"
            ) from error
        report(f"exporting {model.name} to ONNX in {precision} (once)")
        write_weights(model, precision, scratch)
        _write_graph(scratch / f"decoder-{config.num_layers}.onnx", config, WeightFile(scratch), config.num_layers)
        report("the ONNX graph is ready")

    directory = cache_directory() / "onnx" / f"{model.resolve().name}-{precision}-{_key(model, precision)}"
    return GraphDirectory(make_once(directory, make, "the ONNX graph"), config, precision)


def _write_graph(path: Path, config: DecoderConfig, weights: WeightFile, num_layers: int) -> None:
    from .onnx_export import build_graph

    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(build_graph(config, weights, num_layers).SerializeToString())
    scratch.rename(path)


def _key(model: Path, precision: str) -> str:
    """Changes when the checkpoint or the exporter does. Samples of the weights go in beside their size and age: a copy
    or an archive may keep a file's time, and a wrong graph would speak with another model's voice.
    """
    digest = hashlib.sha256()
    digest.update(json.dumps([precision, LAYOUT]).encode())
    digest.update((model / "config.json").read_bytes())
    for path in sorted(model.glob("*.safetensors")):
        state = path.stat()
        digest.update(json.dumps([path.name, state.st_size, state.st_mtime_ns]).encode())
        with path.open("rb") as file:
            for sample in range(_SAMPLES):
                file.seek(sample * max(state.st_size - _SAMPLE_BYTES, 0) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]
