"""One opened plan and its execution contexts. It has **never been opened on a GPU**: see ``trt_session.py``.

All contexts of an engine share one workspace, as its passes never run at the same time. A context has one profile and
one set of addresses for life, so what was recorded of it in a CUDA graph stays true.
"""

from __future__ import annotations

import mmap
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
        self._engine = _opened(self._runtime, plan)
        if self._engine is None:
            raise ModelError(f"{trt.flavour} {trt.version} cannot open {plan} ({self._log.reason}): build it again")
        check_engine(trt, self._engine, network, plan)
        self._workspace = torch.empty(self._engine.device_memory_size_v2, dtype=torch.uint8, device=device)

    def new_context(self, profile: int, buffers: Buffers, sizes: Mapping[str, int] | None = None) -> Any:
        """``sizes``: those of all its passes, where it is only for passes of one shape.

        Raises:
            ModelError: TensorRT makes none.
        """
        context = self._engine.create_execution_context(self._context_settings())
        if context is None:
            raise ModelError(f"TensorRT cannot make a context of the engine ({self._log.reason}): free GPU memory")
        if hasattr(context, "set_device_memory"):
            context.set_device_memory(self._workspace.data_ptr(), self._workspace.nbytes)
        else:
            context.device_memory = self._workspace.data_ptr()
        if hasattr(context, "nvtx_verbosity"):  # marks for a profiler cost time in every pass
            context.nvtx_verbosity = self._trt.api.ProfilingVerbosity.NONE
        with torch.cuda.stream(self.stream):
            if not context.set_optimization_profile_async(profile, self._stream_handle()):
                raise RuntimeError(f"TensorRT refused profile {profile} ({self._log.reason})")
        if self.stream is not None:
            self.stream.synchronize()
        for name, address in buffers.addresses().items():
            if not context.set_tensor_address(name, address):
                raise RuntimeError(f"TensorRT refused the address of {name} ({self._log.reason})")
        if sizes is not None:
            self.set_sizes(context, sizes)
        return context

    def set_sizes(self, context: Any, sizes: Mapping[str, int]) -> None:
        """For the passes that follow. Never while one is recorded: it is not work for a stream."""
        for tensor in self.network.inputs:
            if not context.set_input_shape(tensor.name, tensor.at(sizes)):
                raise RuntimeError(f"TensorRT refused {tensor.name} of shape {tensor.at(sizes)} ({self._log.reason})")

    def execute(self, context: Any) -> None:
        """Run a pass of the sizes that were set, on torch's current stream."""
        if not context.execute_async_v3(self._stream_handle()):
            raise RuntimeError(f"TensorRT could not run a pass ({self._log.reason})")

    def can_be_recorded(self, context: Any) -> bool:
        """Whether passes of ``context``, whose sizes are set, can be recorded as a CUDA graph, if TensorRT can tell."""
        if not hasattr(context, "is_stream_capturable"):
            return True
        return bool(context.is_stream_capturable(self._stream_handle()))

    def _context_settings(self) -> Any:
        """The memory is ours. TensorRT-RTX compiles kernels for a shape when it is first run: before that run, and not
        beside it with other kernels in the meantime, as is its default, which would change bits from pass to pass.
        """
        api = self._trt.api
        strategy = api.ExecutionContextAllocationStrategy.USER_MANAGED
        if not hasattr(api, "DynamicShapesKernelSpecializationStrategy"):
            return strategy
        settings = self._engine.create_runtime_config()
        settings.set_execution_context_allocation_strategy(strategy)
        settings.dynamic_shapes_kernel_specialization_strategy = api.DynamicShapesKernelSpecializationStrategy.EAGER
        return settings

    def _stream_handle(self) -> int:
        return 0 if self.stream is None else torch.cuda.current_stream(self._device).cuda_stream


def _opened(runtime: Any, plan: Path) -> Any:
    """The engine in ``plan``, read from the mapped file: it is as large as the model. None: it is none.

    Raises:
        ModelError: the file cannot be read.
    """
    try:
        if not plan.stat().st_size:  # which cannot be mapped
            return None
        with plan.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return runtime.deserialize_cuda_engine(content)
    except OSError as error:
        raise ModelError(f"{plan} cannot be read ({error}): build it again") from error
