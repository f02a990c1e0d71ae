"""A target without weights: logits are a function of the context. For exact enumeration and for tests of the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..decoding.contracts import PromptInput, TargetInfo
from ..decoding.draft_tree import DraftTree
from ..decoding.sampling import NumericError

LogitsOf = Callable[[tuple[int, ...]], NDArray[np.float32]]  # whole context → logits [V] of the next token


class TableTarget:
    """A ``Target`` (see ``decoding.contracts``) over ``logits_of``; its KV cache is the list of committed ids."""

    def __init__(
        self, logits_of: LogitsOf, vocabulary_size: int, context_length: int = 4096, max_nodes: int = 64
    ) -> None:
        self._logits_of = logits_of
        self._ids: list[int] = []
        self._pending: DraftTree | None = None
        self.info = TargetInfo(
            name="table",
            engine="table",
            precision="float32",
            device="cpu",
            vocabulary_size=vocabulary_size,
            hidden_size=0,
            num_layers=0,
            context_length=context_length,
            max_nodes=max_nodes,
            supports_tree=True,
        )

    @property
    def committed_length(self) -> int:
        return len(self._ids)

    def tap(self, feature_layers: Sequence[int]) -> None:
        pass  # check_compatible let no drafter with feature layers through: there are none

    def truncate(self, length: int) -> None:
        if not 0 <= length <= len(self._ids):
            raise ValueError(f"cannot truncate a context of {len(self._ids)} tokens to {length}")
        del self._ids[length:]
        self._pending = None

    def extend(self, prompt: PromptInput) -> TableOutput:
        self._ids.extend(prompt.ids)
        self._pending = None
        return TableOutput([self._logits_of(tuple(self._ids))])

    def verify(self, tree: DraftTree) -> TableOutput:
        self._pending = tree
        contexts: list[tuple[int, ...]] = []
        for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            contexts.append((*(contexts[parent] if parent >= 0 else self._ids), token))
        return TableOutput([self._logits_of(context) for context in contexts])

    def commit(self, path: Sequence[int]) -> None:
        if self._pending is None:
            raise RuntimeError("commit needs a verified tree that was neither committed nor dropped")
        self._pending.check_path(path)
        self._ids.extend(int(self._pending.tokens[node]) for node in path)
        self._pending = None

    def lend(self, name: str) -> object:
        raise ValueError("a table target lends nothing")

    def close(self) -> None:
        self._ids.clear()


class TableOutput:
    """A ``TargetOutput`` over a list of rows."""

    def __init__(self, rows: Sequence[NDArray[np.float32]]) -> None:
        self._rows = rows

    def argmax(self) -> NDArray[np.int64]:
        if not all(np.isfinite(row.max()) for row in self._rows):
            raise NumericError("the table holds logits that are not finite")
        return np.array([row.argmax() for row in self._rows], dtype=np.int64)

    def logits_row(self, node: int) -> NDArray[np.float32]:
        return self._rows[node]

    def features(self, path: Sequence[int]) -> None:
        return None
