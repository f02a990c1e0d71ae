"""A target over an exported decoder (``onnx_graphs.py``) on the CPU: what it does whichever library runs the graph."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..graphs.block_quant import dequantise, stored_precision
from .decoder_config import DecoderConfig
from .host_cache import HostCache
from .onnx_graphs import GraphDirectory, Report, ensure_graph
from .passes import DECODE_WIDTHS, Extents, check_context
from .session_target import SessionTarget


class ExportedSession:
    """What the sessions of every library share: a cache in main memory, weights in a file."""

    library: ClassVar[str]  # its distribution's name

    def __init__(self, graphs: GraphDirectory, num_layers: int, capacity: int, version: str) -> None:
        self._graphs, self._num_layers, self._version = graphs, num_layers, version
        self.cache = HostCache(graphs.config, num_layers, capacity)
        self._lent: dict[str, NDArray[np.float32]] = {}

    @property
    def weight_bytes(self) -> int:
        return self._graphs.weights.num_bytes

    @property
    def kv_bytes(self) -> int:
        return self.cache.num_bytes

    @property
    def versions(self) -> Mapping[str, str]:
        return {self.library: self._version, "onnx graph": self._graphs.key}

    def clear(self) -> None:
        """See ``session_target.Session``."""
        self.cache.clear()

    def lend(self, name: str) -> NDArray[np.float32]:
        """See ``session_target.Session``; restored to float32 once where it is quantised."""
        weights, config = self._graphs.weights, self._graphs.config
        stored = "embedding" if name == "head" and config.tied_head else name
        if stored not in self._lent:
            whole = stored in weights.table
            self._lent[stored] = (
                weights.read(stored) if whole else dequantise(weights.read_blocks(stored), config.hidden_size)
            )
        return self._lent[stored]


class ExportedTarget(SessionTarget, abc.ABC):
    """A ``SessionTarget`` whose network is an exported graph; a subclass names its library."""

    extent_step: ClassVar[int | None] = None  # see ``Extents``

    def __init__(self, graphs: GraphDirectory, config: DecoderConfig, context_length: int, name: str, precision: str,
                 threads: int, widths: Sequence[int] = DECODE_WIDTHS) -> None:  # fmt: skip
        """``config``: of as many layers as are to be run, perhaps fewer than the graph directory's own."""
        self._graphs, self._config, self._threads = graphs, config, threads
        extents = Extents(widths, context_length, self.extent_step)
        session = self._open(graphs, config.num_layers, extents.capacity, precision, threads)
        super().__init__(session, config, name, precision, "cpu", context_length, widths, extents)

    @classmethod
    def load(cls, directory: Path, *, context_length: int, precision: str = "float32", threads: int = 0,
             pass_width: int | None = None, report: Report = lambda line: None) -> ExportedTarget:  # fmt: skip
        """Load a Llama, Qwen2 or Qwen3 checkpoint; with ``pass_width``, every verify pass has that width (same bits).

        Raises:
            ModelError: the directory cannot be used, the context is longer than the model knows, the library is too
                old, or the export fails.
        """
        cls.check_library()
        graphs = ensure_graph(directory, stored_precision(precision), report)
        check_context(graphs.config, context_length, directory)
        widths = DECODE_WIDTHS if pass_width is None else (pass_width,)
        return cls(graphs, graphs.config, context_length, directory.name, precision, threads, widths)

    def first_layers(self, num_layers: int, context_length: int) -> ExportedTarget:
        """A smaller target made of this one's first layers, over the same weights file.

        The libraries pack weights for their kernels once per session, so those of the layers used are held twice.
        """
        config = self._config.first_layers(num_layers)
        name = f"{self.info.name}, first {config.num_layers} layers"
        return type(self)(self._graphs, config, context_length, name, self.info.precision, self._threads, self._widths)

    @classmethod
    @abc.abstractmethod
    def check_library(cls) -> None:
        """Raise ``ModelError`` when the library is too old."""

    @abc.abstractmethod
    def _open(self, graphs: GraphDirectory, num_layers: int, capacity: int, precision: str,
              threads: int) -> ExportedSession:  # fmt: skip
        """Load the graph of the first ``num_layers`` layers. Raises ``ModelError``."""
