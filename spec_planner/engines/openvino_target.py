"""A target on OpenVINO's CPU plugin: float32, bfloat16, or weights of 8 bits.

Here a pass over 16 rows costs little more than one over a single row, and in bfloat16 and 8 bits logits may change by
much more than their last bits with the width. So the planner gives all verify passes of this engine one width
(``PlannerConfig.pass_width``), plain decoding included.
"""

from __future__ import annotations

import openvino

from .decoder_config import EngineUnavailable
from .exported_target import ExportedTarget
from .onnx_graphs import GraphDirectory
from .openvino_session import OpenVinoSession
from .passes import BITWISE_EXTENT_STEP

_OLDEST = (2026, 4)  # the first whose ONNX frontend was seen to read opset 24 as exported here


class OpenVinoTarget(ExportedTarget):
    """See ``ExportedTarget``."""

    engine = "openvino"
    extent_step = BITWISE_EXTENT_STEP

    @classmethod
    def check_library(cls) -> None:
        if tuple(int(part) for part in openvino.__version__.split(".")[:2]) < _OLDEST:
            raise EngineUnavailable(
                f"engine 'openvino' needs openvino {'.'.join(map(str, _OLDEST))} or newer and found "
                f"{openvino.__version__}: pip install --upgrade openvino"
            )

    def _open(self, graphs: GraphDirectory, num_layers: int, capacity: int, precision: str,
              threads: int) -> OpenVinoSession:  # fmt: skip
        return OpenVinoSession(graphs, num_layers, capacity, precision, threads)
