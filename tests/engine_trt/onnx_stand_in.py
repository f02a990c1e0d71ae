"""ONNX Runtime behind the calls that ``TrtSession`` makes to TensorRT: same addresses, same order, on the CPU.

What it cannot show is TensorRT's own arithmetic. What it does show: that the right numbers are at the right addresses,
that shapes are set before a pass and lie in the profile, and that the cache is right afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime

from engine_trt.bindings import Manifest, Network, Tensor
from engine_trt.trt_module import TensorRt

_NAMES = {"float32": "FLOAT", "float16": "HALF", "int64": "INT64", "bool": "BOOL"}


@contextlib.contextmanager
def recording():
    """A CUDA graph is recorded: work for the stream is taken, and nothing else."""
    Context.is_recorded = True
    try:
        yield
    finally:
        Context.is_recorded = False


class Mode(IntEnum):
    INPUT = 1
    OUTPUT = 2


def stand_in(graphs: Path, manifest: Manifest) -> TensorRt:
    """A TensorRT whose plans hold the name of the network in ``graphs`` that they run."""

    class Logger:
        ERROR, INTERNAL_ERROR = 1, 0

    class Runtime:
        def __init__(self, logger: Logger) -> None:
            assert isinstance(logger, Logger)

        def deserialize_cuda_engine(self, plan: mmap.mmap) -> Engine | None:
            name = bytes(plan).decode()
            return Engine(graphs / f"{name}.onnx", manifest.networks[name]) if name else None

    api = SimpleNamespace(
        __version__="0.0",
        ILogger=Logger,
        Runtime=Runtime,
        TensorIOMode=Mode,
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED="user"),
    )
    return TensorRt(api, "stand-in")


class Engine:
    """What the manifest says; its contexts share nothing but the graph."""

    device_memory_size_v2 = 64

    def __init__(self, graph: Path, network: Network) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        self._network = network
        self._tensors = {tensor.name: tensor for tensor in network.tensors}
        self.num_io_tensors, self.num_optimization_profiles = len(network.tensors), len(network.profiles)

    def get_tensor_name(self, index: int) -> str:
        return self._network.tensors[index].name

    def get_tensor_mode(self, name: str) -> Mode:
        return Mode.OUTPUT if self._tensors[name].output else Mode.INPUT

    def get_tensor_dtype(self, name: str) -> str:
        return f"DataType.{_NAMES[self._tensors[name].dtype]}"

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(-1 if isinstance(extent, str) else extent for extent in self._tensors[name].shape)

    def get_tensor_profile_shape(self, name: str, profile: int) -> tuple[tuple[int, ...], ...]:
        return self._network.shapes(profile, self._tensors[name])

    def get_aliased_input_tensor(self, name: str) -> str:
        return self._network.aliases[name]

    def create_execution_context(self, strategy: str) -> Context:
        assert strategy == "user"
        return Context(self._session, self._network)


class Context:
    """Reads and writes memory by address, as a GPU would."""

    is_recorded = False

    def __init__(self, session: onnxruntime.InferenceSession, network: Network) -> None:
        self._session, self._network = session, network
        self._profile: int | None = None
        self._memory = 0
        self._addresses: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def set_device_memory(self, address: int, size: int) -> None:
        assert size >= Engine.device_memory_size_v2
        self._memory = address

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        assert self._profile is None, "a context keeps its profile"
        self._profile = profile
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert name not in self._addresses, "an address is given once"
        self._addresses[name] = address
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert self._profile is not None and not self.is_recorded
        tensor = next(tensor for tensor in self._network.inputs if tensor.name == name)
        least, _, most = self._network.shapes(self._profile, tensor)
        assert all(low <= extent <= high for low, extent, high in zip(least, shape, most, strict=True)), (name, shape)
        self._shapes[name] = tuple(shape)
        return True

    def execute_async_v3(self, stream: int) -> bool:
        assert self._memory and set(self._addresses) == {tensor.name for tensor in self._network.tensors}
        feeds = {tensor.name: self._at(tensor, self._shapes[tensor.name]).copy() for tensor in self._network.inputs}
        names = [tensor.name for tensor in self._network.outputs]
        for tensor, result in zip(self._network.outputs, self._session.run(names, feeds), strict=True):
            self._at(tensor, result.shape)[...] = result
        return True

    def _at(self, tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
        dtype = np.dtype(tensor.dtype)
        size = math.prod(shape) * dtype.itemsize
        memory = (ctypes.c_char * size).from_address(self._addresses[tensor.name])
        return np.frombuffer(memory, dtype).reshape(shape)
