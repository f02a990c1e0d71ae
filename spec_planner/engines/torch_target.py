"""The reference target: one transformer in torch over a static KV cache, on CPU or GPU.

``verify`` writes keys and values after the committed context and leaves everything before it alone; ``commit`` moves
the accepted branch into place (for a chain nothing moves) and raises the length. Nothing is allocated per step but the
pass's own activations. Widths and extents of a pass: ``passes.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..decoding.contracts import Incompatible, PromptInput, TargetInfo
from ..decoding.draft_tree import DraftTree
from ..decoding.sampling import NumericError
from .checkpoint import load_weights
from .decoder import Decoder, KVCache
from .decoder_config import ModelError, read_decoder_config
from .passes import DECODE_WIDTHS, MAX_NODES, Extents, check_context, rows_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TorchTarget:
    """A ``Target`` (see ``decoding.contracts``) over a ``Decoder``."""

    def __init__(self, decoder: Decoder, context_length: int, name: str, precision: str,
                 widths: Sequence[int] = DECODE_WIDTHS) -> None:  # fmt: skip
        self._decoder, self._widths = decoder, tuple(sorted(widths))
        self._extents = Extents(self._widths, context_length)
        self._cache = KVCache(decoder.config, self._extents.capacity, decoder.dtype, decoder.device)
        self._length = 0
        self._pending: DraftTree | None = None
        self._feature_layers: tuple[int, ...] = ()
        self.info = TargetInfo(
            name=name,
            engine="torch",
            precision=precision,
            device=str(decoder.device),
            vocabulary_size=decoder.config.vocabulary_size,
            hidden_size=decoder.config.hidden_size,
            num_layers=decoder.config.num_layers,
            context_length=context_length,
            max_nodes=self._widths[-1],
            supports_tree=True,
            lendable=("embedding", "head", "final_norm"),
            weight_bytes=decoder.num_bytes,
            kv_bytes=self._cache.num_bytes,
            versions={"torch": str(torch.__version__)},
        )

    @staticmethod
    def load(directory: Path, *, context_length: int, precision: str = "float32", device: str = "auto",
             threads: int = 0, pass_width: int | None = None) -> TorchTarget:  # fmt: skip
        """Load a Llama, Qwen2 or Qwen3 checkpoint; with ``pass_width``, every verify pass has that width (same bits).

        Raises:
            ModelError: the directory cannot be used, the context is longer than the model knows, or no such device.
        """
        config = read_decoder_config(directory)
        check_context(config, context_length, directory)
        place = _device(device)
        if threads and place.type == "cpu":
            torch.set_num_threads(threads)
        weights = load_weights(directory, config)
        decoder = Decoder(config, weights, context_length + MAX_NODES, DTYPES[precision], place)
        widths = DECODE_WIDTHS if pass_width is None else (pass_width,)
        return TorchTarget(decoder, context_length, directory.name, precision, widths)

    def first_layers(self, num_layers: int, context_length: int) -> TorchTarget:
        """A smaller target made of this one's first layers, sharing its weights: a draft model that costs only KV."""
        decoder = self._decoder.first_layers(num_layers)
        name = f"{self.info.name}, first {num_layers} layers"
        smaller = TorchTarget(decoder, context_length, name, self.info.precision, self._widths)
        smaller.info = replace(smaller.info, weight_bytes=0)  # they are this one's, and counted there
        return smaller

    @property
    def committed_length(self) -> int:
        return self._length

    def tap(self, feature_layers: Sequence[int]) -> None:
        self._feature_layers = tuple(feature_layers)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot truncate a context of {self._length} tokens to {length}")
        self._length, self._pending = length, None

    @torch.inference_mode()
    def extend(self, prompt: PromptInput) -> TorchOutput:
        if prompt.pixels is not None:
            raise Incompatible(f"target {self.info.name!r} reads text only")
        count = len(prompt.ids)
        hidden, states = self._pass(DraftTree.chain(prompt.ids), width=count)
        self._length += count
        self._pending = None
        return TorchOutput(self._decoder.logits(hidden[-1:]), states)

    @torch.inference_mode()
    def verify(self, tree: DraftTree) -> TorchOutput:
        n = tree.num_nodes
        if n > self.info.max_nodes:
            raise Incompatible(f"a draft of {n} nodes exceeds the {self.info.max_nodes} one pass takes")
        width = next(w for w in self._widths if w >= n)
        hidden, states = self._pass(tree, width)
        self._pending = tree
        logits = self._decoder.logits(hidden)[:n]
        if self._decoder.device.type == "cuda":
            torch.cuda.synchronize(self._decoder.device)  # so that whoever times verify times all of it
        return TorchOutput(logits, states)

    @torch.inference_mode()
    def commit(self, path: Sequence[int]) -> None:
        if self._pending is None:
            raise RuntimeError("commit needs a verified tree that was neither committed nor dropped")
        self._pending.check_path(path)
        self._pending = None
        moved = next((i for i, node in enumerate(path) if node != i), len(path))
        if moved < len(path):  # nodes before this one already lie where they belong
            sources = torch.tensor(path[moved:], device=self._decoder.device) + self._length
            self._cache.move(sources, self._length + moved)
        self._length += len(path)

    def lend(self, name: str) -> torch.Tensor:
        if name not in self.info.lendable:
            raise Incompatible(f"target {self.info.name!r} lends {', '.join(self.info.lendable)}, not {name!r}")
        tensor: torch.Tensor = getattr(self._decoder, name)
        return tensor

    def close(self) -> None:
        del self._decoder, self._cache

    def _pass(self, tree: DraftTree, width: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Run the tree's nodes, padded to ``width`` rows, after the committed context; hidden and tapped states."""
        extent, to = self._extents.of(self._length, width), self._decoder.device
        rows = rows_of(tree, width, self._length, self.info.context_length, extent)
        ids, positions, mask = (torch.from_numpy(array).to(to) for array in (rows.ids, rows.positions, rows.mask))
        hidden, tapped = self._decoder.forward(ids, positions, rows.start, mask, self._cache, self._feature_layers)
        return hidden, [tapped[layer] for layer in self._feature_layers]


class TorchOutput:
    """A ``TargetOutput``: logits [n, V] and tapped states, each [n, d], on the device until asked for."""

    def __init__(self, logits: torch.Tensor, states: list[torch.Tensor]) -> None:
        self._logits, self._states = logits, states

    @torch.inference_mode()
    def argmax(self) -> NDArray[np.int64]:
        values, ids = self._logits.max(dim=-1)  # the first of equal maxima
        if not bool(values.isfinite().all()):
            raise NumericError("the target's logits are not finite: use float32, or another checkpoint")
        best: NDArray[np.int64] = ids.cpu().numpy()
        return best

    def logits_row(self, node: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self._logits[node].float().cpu().numpy()
        return row

    @torch.inference_mode()
    def features(self, path: Sequence[int]) -> torch.Tensor | None:
        """[len(path), layers, d] in the order tapped; None where nothing was."""
        if not self._states:
            return None
        rows = list(path)
        return torch.stack([state[rows] for state in self._states], dim=1)


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            "device is 'cuda' but torch sees no GPU: set device to cpu or auto, or install a CUDA build of torch"
        )
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")
