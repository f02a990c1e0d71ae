"""A target on ONNX Runtime's CPU provider, in float32 or with weights of 8 or 4 bits.

The same decoder as ``torch_target.py``, exported once (``onnx_graphs.py``). ``verify`` writes keys and values after the
committed context and leaves everything before it alone; ``commit`` moves the accepted branch into place (for a chain
nothing moves) and raises the length. Widths and extents of a pass: ``passes.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ..decoding.contracts import Incompatible, PromptInput, TargetInfo
from ..decoding.draft_tree import DraftTree
from ..decoding.sampling import NumericError
from .block_quant import dequantise
from .onnx_graphs import GraphDirectory, Report, ensure_graph
from .onnx_session import OnnxSession
from .passes import DECODE_WIDTHS, Extents, check_context, rows_of


class OnnxTarget:
    """A ``Target`` (see ``decoding.contracts``) over an exported decoder."""

    def __init__(self, graphs: GraphDirectory, num_layers: int, context_length: int, name: str, threads: int,
                 widths: Sequence[int] = DECODE_WIDTHS) -> None:  # fmt: skip
        self._graphs, self._threads, self._widths = graphs, threads, tuple(sorted(widths))
        self._extents = Extents(self._widths, context_length)
        self._session = OnnxSession(graphs, num_layers, self._extents.capacity, threads)
        self._length = 0
        self._pending: DraftTree | None = None
        self._feature_layers: tuple[int, ...] = ()
        self._lent: dict[str, NDArray[np.float32]] = {}
        self.info = TargetInfo(
            name=name,
            engine="onnx",
            precision=graphs.precision,
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
            versions={"onnxruntime": onnxruntime.__version__, "onnx graph": graphs.key},
        )

    @staticmethod
    def load(directory: Path, *, context_length: int, precision: str = "float32", threads: int = 0,
             pass_width: int | None = None, report: Report = lambda line: None) -> OnnxTarget:  # fmt: skip
        """Load a Llama, Qwen2 or Qwen3 checkpoint; with ``pass_width``, every verify pass has that width (same bits).

        Raises:
            ModelError: the directory cannot be used, the context is longer than the model knows, or the export fails.
        """
        graphs = ensure_graph(directory, precision, report)
        check_context(graphs.config, context_length, directory)
        widths = DECODE_WIDTHS if pass_width is None else (pass_width,)
        return OnnxTarget(graphs, graphs.config.num_layers, context_length, directory.name, threads, widths)

    def first_layers(self, num_layers: int, context_length: int) -> OnnxTarget:
        """A smaller target made of this one's first layers, over the same weights file.

        ONNX Runtime packs weights for its kernels once per session, so those of the layers used are held twice.
        """
        num_layers = min(num_layers, self.info.num_layers)
        name = f"{self.info.name}, first {num_layers} layers"
        return OnnxTarget(self._graphs, num_layers, context_length, name, self._threads, self._widths)

    @property
    def committed_length(self) -> int:
        return self._length

    def tap(self, feature_layers: Sequence[int]) -> None:
        self._feature_layers = tuple(feature_layers)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot truncate a context of {self._length} tokens to {length}")
        self._length, self._pending = length, None

    def extend(self, prompt: PromptInput) -> OnnxOutput:
        if prompt.pixels is not None:
            raise Incompatible(f"target {self.info.name!r} reads text only")
        count = len(prompt.ids)
        output = self._pass(DraftTree.chain(prompt.ids), width=count, scored=[count - 1])
        self._length += count
        self._pending = None
        return output

    def verify(self, tree: DraftTree) -> OnnxOutput:
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
        moved = next((i for i, node in enumerate(path) if node != i), len(path))
        if moved < len(path):  # nodes before this one already lie where they belong
            self._session.cache.move([self._length + node for node in path[moved:]], self._length + moved)
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

    def _pass(self, tree: DraftTree, width: int, scored: Sequence[int]) -> OnnxOutput:
        """Run the tree's nodes, padded to ``width`` rows, after the committed context."""
        extent = self._session.make_room(self._extents.of(self._length, width), keep=self._length)
        rows = rows_of(tree, width, self._length, self.info.context_length, extent)
        logits, *hidden = self._session.run(rows, scored, self._feature_layers)
        return OnnxOutput(logits, hidden, min(len(scored), tree.num_nodes))


class OnnxOutput:
    """A ``TargetOutput`` over ONNX Runtime's own memory, which it keeps alive."""

    def __init__(self, logits: onnxruntime.OrtValue, hidden: Sequence[onnxruntime.OrtValue], num_scored: int) -> None:
        self._values = (logits, *hidden)
        self._logits: NDArray[np.float32] = logits.numpy()[:num_scored]
        self._hidden = [state.numpy() for state in hidden]

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
