"""A target over an exported decoder (``onnx_graphs.py``): what it does whichever library runs the graph.

``verify`` leaves the committed context as it was; ``commit`` makes the accepted branch's keys and values follow it and
raises the length. Widths and extents of a pass: ``passes.py``.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from ..decoding.contracts import Incompatible, PromptInput, TargetInfo
from ..decoding.draft_tree import DraftTree
from ..decoding.sampling import NumericError
from ..graphs.block_quant import dequantise, stored_precision
from .host_cache import HostCache
from .onnx_graphs import GraphDirectory, Report, ensure_graph
from .passes import DECODE_WIDTHS, Extents, PassRows, check_context, rows_of


class Session(Protocol):
    """A library's loaded graph and its KV cache. Passes may have any number of rows."""

    cache: HostCache

    def make_room(self, needed: int, keep: int) -> int:
        """The extent of a pass that needs ``needed`` slots, the cache and its first ``keep`` slots laid out for it."""

    def run(self, rows: PassRows, scored: Sequence[int], hidden_layers: Sequence[int]) -> list[NDArray[np.float32]]:
        """One pass; [logits [len(scored), V], hidden states [n, d] of each of ``hidden_layers``].

        The results are their own memory: they stay as they are through later passes.
        """

    def keep(self, start: int, path: Sequence[int]) -> None:
        """Make the keys and values of rows ``path`` of the last pass, which began at ``start``, those of the slots
        start, start + 1, …"""


class ExportedTarget(abc.ABC):
    """A ``Target`` (see ``decoding.contracts``) on the CPU; a subclass names its library."""

    engine: ClassVar[str]
    extent_step: ClassVar[int | None] = None  # see ``Extents``

    def __init__(self, graphs: GraphDirectory, num_layers: int, context_length: int, name: str, precision: str,
                 threads: int, widths: Sequence[int] = DECODE_WIDTHS) -> None:  # fmt: skip
        self._graphs, self._threads, self._widths = graphs, threads, tuple(sorted(widths))
        self._extents = Extents(self._widths, context_length, self.extent_step)
        self._session = self._open(graphs, num_layers, self._extents.capacity, precision, threads)
        self._length = 0
        self._pending: DraftTree | None = None
        self._feature_layers: tuple[int, ...] = ()
        self._lent: dict[str, NDArray[np.float32]] = {}
        self.info = TargetInfo(
            name=name,
            engine=self.engine,
            precision=precision,
            device="cpu",
            vocabulary_size=graphs.config.vocabulary_size,
            hidden_size=graphs.config.hidden_size,
            num_layers=num_layers,
            context_length=context_length,
            max_nodes=self._widths[-1],
            supports_tree=True,
            lendable=("embedding", "head", "final_norm"),
            weight_bytes=graphs.weights.num_bytes,
            kv_bytes=self._session.cache.num_bytes,
            versions={**self._versions(), "onnx graph": graphs.key},
        )

    @classmethod
    def load(cls, directory: Path, *, context_length: int, precision: str = "float32", threads: int = 0,
             pass_width: int | None = None, report: Report = lambda line: None) -> ExportedTarget:  # fmt: skip
        """Load a Llama, Qwen2 or Qwen3 checkpoint; with ``pass_width``, every verify pass has that width (same bits).

        Raises:
            ModelError: the directory cannot be used, the context is longer than the model knows, the library is too
                old, or the export fails.
        """
        cls._check_library()
        graphs = ensure_graph(directory, stored_precision(precision), report)
        check_context(graphs.config, context_length, directory)
        widths = DECODE_WIDTHS if pass_width is None else (pass_width,)
        return cls(graphs, graphs.config.num_layers, context_length, directory.name, precision, threads, widths)

    def first_layers(self, num_layers: int, context_length: int) -> ExportedTarget:
        """A smaller target made of this one's first layers, over the same weights file.

        The libraries pack weights for their kernels once per session, so those of the layers used are held twice.
        """
        num_layers = min(num_layers, self.info.num_layers)
        name = f"{self.info.name}, first {num_layers} layers"
        return type(self)(
            self._graphs, num_layers, context_length, name, self.info.precision, self._threads, self._widths
        )

    @classmethod
    @abc.abstractmethod
    def _check_library(cls) -> None:
        """Raise ``ModelError`` when the library is too old."""

    @abc.abstractmethod
    def _open(self, graphs: GraphDirectory, num_layers: int, capacity: int, precision: str, threads: int) -> Session:
        """Load the graph of the first ``num_layers`` layers. Raises ``ModelError``."""

    @abc.abstractmethod
    def _versions(self) -> dict[str, str]:
        """What a certificate says of the library."""

    @property
    def committed_length(self) -> int:
        return self._length

    def tap(self, feature_layers: Sequence[int]) -> None:
        self._feature_layers = tuple(feature_layers)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot truncate a context of {self._length} tokens to {length}")
        self._length, self._pending = length, None

    def extend(self, prompt: PromptInput) -> HostOutput:
        if prompt.pixels is not None:
            raise Incompatible(f"target {self.info.name!r} reads text only")
        count = len(prompt.ids)
        output = self._pass(DraftTree.chain(prompt.ids), width=count, scored=[count - 1])
        self._session.keep(self._length, range(count))
        self._length += count
        self._pending = None
        return output

    def verify(self, tree: DraftTree) -> HostOutput:
        n = tree.num_nodes
        if n > self.info.max_nodes:
            raise Incompatible(f"a draft of {n} nodes exceeds the {self.info.max_nodes} one pass takes")
        width = next(w for w in self._widths if w >= n)
        output = self._pass(tree, width, scored=range(width))  # the padding too: the head's product has one shape
        self._pending = tree
        return output

    def commit(self, path: Sequence[int]) -> None:
        if self._pending is None:
            raise RuntimeError("commit needs a verified tree that was neither committed nor dropped")
        self._pending.check_path(path)
        self._pending = None
        self._session.keep(self._length, path)
        self._length += len(path)

    def lend(self, name: str) -> NDArray[np.float32]:
        """The embedding or head [V, d], or the final norm [d]; restored to float32 once where it is quantised."""
        if name not in self.info.lendable:
            raise Incompatible(f"target {self.info.name!r} lends {', '.join(self.info.lendable)}, not {name!r}")
        weights = self._graphs.weights
        stored = "embedding" if name == "head" and self._graphs.config.tied_head else name
        if stored in weights.table:
            return weights.read(stored)
        if stored not in self._lent:
            self._lent[stored] = dequantise(weights.read_blocks(stored), self.info.hidden_size)
        return self._lent[stored]

    def close(self) -> None:
        del self._session, self._lent

    def _pass(self, tree: DraftTree, width: int, scored: Sequence[int]) -> HostOutput:
        """Run the tree's nodes, padded to ``width`` rows, after the committed context."""
        extent = self._session.make_room(self._extents.of(self._length, width), keep=self._length)
        rows = rows_of(tree, width, self._length, self.info.context_length, extent)
        logits, *hidden = self._session.run(rows, scored, self._feature_layers)
        return HostOutput(logits[: tree.num_nodes], hidden)


class HostOutput:
    """A ``TargetOutput`` in main memory: logits [n, V] and tapped states, each [width, d]."""

    def __init__(self, logits: NDArray[np.float32], hidden: Sequence[NDArray[np.float32]]) -> None:
        self._logits, self._hidden = logits, hidden

    def argmax(self) -> NDArray[np.int64]:
        best = self._logits.argmax(axis=-1)  # the first of equal maxima, and a NaN above all
        if not np.isfinite(self._logits[np.arange(len(best)), best]).all():
            raise NumericError("the target's logits are not finite: use float32, or another checkpoint")
        return best

    def logits_row(self, node: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self._logits[node].copy()
        return row

    def features(self, path: Sequence[int]) -> NDArray[np.float32] | None:
        """[len(path), layers, d] in the order tapped; None where nothing was."""
        if not self._hidden:
            return None
        rows = list(path)
        return np.stack([state[rows] for state in self._hidden], axis=1)
