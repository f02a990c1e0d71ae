"""One opened plan and its execution contexts. It has **never been opened on a GPU**: see ``trt_session.py``.

All contexts of an engine share one workspace, as its passes never run at the same time. A context has one profile and
one set of addresses for life, so what was recorded of it in a CUDA graph stays true.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from spec_planner.engines.decoder_config import ModelError

from .bindings import Network
from .inspect_engine import check_engine
from .trt_buffers import Buffers
from .trt_module import TensorRt


class TrtEngine:
    """Attributes: ``network``, what the manifest says of it; ``stream``, what its passes run on, None on a CPU."""

    def __init__(self, trt: TensorRt, plan: Path, network: Network, device: torch.device,
                 stream: torch.cuda.Stream | None) -> None:  # fmt: skip
        """Raises ``ModelError`` when the plan cannot be opened, or is not what the manifest says."""
        self.network, self.stream, self._trt, self._device = network, stream, trt, device
        self._log = trt.make_log()  # runtime and engine write to it as long as they live
        self._runtime = trt.api.Runtime(self._log.listener)
        self._engine = self._runtime.deserialize_cuda_engine(plan.read_bytes())
        if self._engine is None:
            raise ModelError(f"{trt.flavour} {trt.version} cannot open {plan} ({self._log.reason}): build it again")
        check_engine(trt, self._engine, network, plan)
        self._workspace = torch.empty(self._engine.device_memory_size_v2, dtype=torch.uint8, device=device)

    def new_context(self, profile: int, buffers: Buffers) -> Any:
        """Raises ``ModelError`` when TensorRT makes none."""
        context = self._engine.create_execution_context(self._trt.api.ExecutionContextAllocationStrategy.USER_MANAGED)
        if context is None:
            raise ModelError(f"TensorRT cannot make a context of the engine ({self._log.reason}): free GPU memory")
        if hasattr(context, "set_device_memory"):
            context.set_device_memory(self._workspace.data_ptr(), self._workspace.nbytes)
        else:
            context.device_memory = self._workspace.data_ptr()
        with torch.cuda.stream(self.stream):
            context.set_optimization_profile_async(profile, self._stream_handle())
        if self.stream is not None:
            self.stream.synchronize()
        for name, address in buffers.addresses().items():
            context.set_tensor_address(name, address)
        return context

    def execute(self, context: Any, sizes: Mapping[str, int]) -> None:
        """Run a pass of ``sizes`` on torch's current stream."""
        for tensor in self.network.inputs:
            if not context.set_input_shape(tensor.name, tensor.at(sizes)):
                raise RuntimeError(f"TensorRT refused {tensor.name} of shape {tensor.at(sizes)} ({self._log.reason})")
        if not context.execute_async_v3(self._stream_handle()):
            raise RuntimeError(f"TensorRT could not run a pass of {dict(sizes)} ({self._log.reason})")

    def _stream_handle(self) -> int:
        return 0 if self.stream is None else torch.cuda.current_stream(self._device).cuda_stream
