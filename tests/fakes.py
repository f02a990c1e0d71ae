"""Stand-ins the tests share. ``ScriptedTarget`` says a fixed reply through the real Target contract."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_planner.decoding.contracts import PromptInput, TargetInfo
from spec_planner.decoding.draft_tree import DraftTree


class ScriptedOutput:
    """Scores of one scripted pass: ``wanted[i]`` is the token that follows row i."""

    def __init__(self, wanted: Sequence[int], vocabulary_size: int, sharpness: float, rows_fed: int) -> None:
        self._wanted = np.asarray(wanted, dtype=np.int64)
        self._vocabulary_size, self._sharpness, self._rows_fed = vocabulary_size, sharpness, rows_fed

    def argmax(self) -> NDArray[np.int64]:
        return self._wanted

    def logits_row(self, node: int) -> NDArray[np.float32]:
        row = np.zeros(self._vocabulary_size, dtype=np.float32)
        row[self._wanted[node]] = self._sharpness
        return row

    def features(self, path: Sequence[int]) -> Any:
        """None, as for a target that taps no layer; a node that was never fed is an error."""
        assert all(0 <= node < self._rows_fed for node in path), f"no features for {list(path)}: {self._rows_fed} rows"
        return None


class ScriptedTarget:
    """A target whose reply is ``tokens``, whatever the prompt; after the script it repeats the last token.

    The law depends on the position only, so drafts are accepted exactly where they match the script. The calls'
    order is checked: a commit needs a verify, and a closed target refuses everything.

    Attributes:
        context: ids committed so far, prompt included.
        passes: verify passes run so far.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        vocabulary_size: int,
        *,
        context_length: int = 4096,
        max_nodes: int = 64,
        sharpness: float = 20.0,
        pass_seconds: float = 0.0,
        on_pass: Callable[[int], None] = lambda index: None,
    ) -> None:
        """``on_pass`` is called before the index-th verify pass; ``pass_seconds`` is slept in every pass."""
        assert tokens and all(0 <= token < vocabulary_size for token in tokens)
        self.tokens, self.pass_seconds, self.on_pass, self.sharpness = tuple(tokens), pass_seconds, on_pass, sharpness
        self.info = TargetInfo(
            "scripted", "table", "float32", "cpu", vocabulary_size, 1, 1, context_length, max_nodes, supports_tree=True
        )
        self.context: list[int] = []
        self.passes = 0
        self.closed = False
        self._prompt_length = 0
        self._pending: DraftTree | None = None

    @property
    def committed_length(self) -> int:
        return len(self.context)

    def tap(self, feature_layers: Sequence[int]) -> None:
        assert not feature_layers, "the scripted target has no hidden states"

    def truncate(self, length: int) -> None:
        assert not self.closed and 0 <= length <= len(self.context)
        del self.context[length:]
        self._prompt_length = min(self._prompt_length, length)
        self._pending = None

    def extend(self, prompt: PromptInput) -> ScriptedOutput:
        assert not self.closed and prompt.ids
        assert len(self.context) + len(prompt.ids) <= self.info.context_length, "fed more than the context holds"
        time.sleep(self.pass_seconds)
        self.context += prompt.ids
        self._prompt_length, self._pending = len(self.context), None
        return self._output([self._wanted(len(self.context))], len(prompt.ids))

    def verify(self, tree: DraftTree) -> ScriptedOutput:
        assert not self.closed and tree.num_nodes <= self.info.max_nodes
        self.on_pass(self.passes)
        time.sleep(self.pass_seconds)
        self.passes += 1
        self._pending = tree
        return self._output([self._wanted(len(self.context) + depth + 1) for depth in tree.depths], tree.num_nodes)

    def commit(self, path: Sequence[int]) -> None:
        assert self._pending is not None, "commit without a verify"
        self._pending.check_path(path)
        self.context += [int(self._pending.tokens[node]) for node in path]
        self._pending = None

    def lend(self, name: str) -> Any:
        raise KeyError(name)

    def close(self) -> None:
        self.closed = True

    def _wanted(self, position: int) -> int:
        """The scripted token for an absolute position behind the prompt."""
        return self.tokens[min(position - self._prompt_length, len(self.tokens) - 1)]

    def _output(self, wanted: Sequence[int], rows_fed: int) -> ScriptedOutput:
        return ScriptedOutput(wanted, self.info.vocabulary_size, self.sharpness, rows_fed)
