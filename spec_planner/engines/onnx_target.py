"""A target on ONNX Runtime's CPU provider, in float32 or with weights of 8 or 4 bits."""

from __future__ import annotations

from .exported_target import ExportedTarget
from .onnx_graphs import GraphDirectory
from .onnx_session import OnnxSession, check_version


class OnnxTarget(ExportedTarget):
    """See ``ExportedTarget``."""

    engine = "onnx"

    @classmethod
    def check_library(cls) -> None:
        check_version("engine 'onnx'")

    def _open(self, graphs: GraphDirectory, num_layers: int, capacity: int, precision: str,
              threads: int) -> OnnxSession:  # fmt: skip
        return OnnxSession(graphs, num_layers, capacity, threads)
