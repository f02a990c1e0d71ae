"""A target on ONNX Runtime's CPU provider, in float32 or with weights of 8 or 4 bits."""

from __future__ import annotations

import onnxruntime

from .decoder_config import EngineUnavailable
from .exported_target import ExportedTarget
from .onnx_graphs import GraphDirectory
from .onnx_session import OnnxSession

_OLDEST = (1, 31)  # the first onnxruntime whose CPU kernels cover opset 24 as exported here


class OnnxTarget(ExportedTarget):
    """See ``ExportedTarget``."""

    engine = "onnx"

    @classmethod
    def check_library(cls) -> None:
        if tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) < _OLDEST:
            raise EngineUnavailable(
                f"engine 'onnx' needs onnxruntime {'.'.join(map(str, _OLDEST))} or newer and found "
                f"{onnxruntime.__version__}: pip install --upgrade onnxruntime"
            )

    def _open(self, graphs: GraphDirectory, num_layers: int, capacity: int, precision: str,
              threads: int) -> OnnxSession:  # fmt: skip
        return OnnxSession(graphs, num_layers, capacity, threads)
