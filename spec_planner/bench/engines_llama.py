"""llama.cpp as a competitor: its own passes, driven token by token without more Python than that needs.

``LlamaTarget`` answers to as much of the ``Target`` contract (``decoding.contracts``) as chains need, so that passes
and accuracy are measured by the same code as ours. Plain and speculative decoding are the short loop in ``greedy``: the
package's own ``Llama.generate`` copies the logits of every row and would be slower.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decoding.contracts import PromptInput
from ..decoding.draft_tree import DraftTree
from ..engines.decoder_config import ModelError
from .engines import LLAMA, Competitor, Question, Reply

HOW_TO_INSTALL = "not installed: pip install llama-cpp-python (it is built from source), or spec_planner[bench]"
# Our name of the precision that a type of GGUF stands beside.
PRECISION_OF = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "Q8_0": "int8", "Q4_0": "int4", "Q4_1": "int4"}
LOOKUP_LENGTHS = (2, 5, 10)  # num_pred_tokens: what its documentation proposes for a CPU, its default, and between
_BATCH = 512  # prompt tokens per pass

Draft = Callable[[NDArray[np.intc]], NDArray[np.intc]]


class LlamaTarget:
    """A GGUF file and its context. ``verify`` takes chains; its output holds until the next pass."""

    def __init__(self, path: Path, kind: str, *, context_length: int, threads: int, flash_attention: bool) -> None:
        """
        Raises:
            ModelError: llama.cpp is not installed, or will not load the file.
        """
        self._lib = llama_cpp = library()
        _be_quiet(llama_cpp)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise ModelError(f"llama.cpp cannot load {path}: delete it, and it will be made again")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = context_length
        settings.n_batch = settings.n_ubatch = _BATCH
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = int(flash_attention)
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            llama_cpp.llama_model_free(self._model)
            raise ModelError(f"llama.cpp has no room for a context of {context_length} tokens: lower --context-length")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._length = self._pending = 0
        size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self.info = SimpleNamespace(
            name=path.parent.name,
            engine=LLAMA,
            precision=kind,
            context_length=context_length,
            max_nodes=_BATCH,
            vocabulary_size=size,
            weight_bytes=int(llama_cpp.llama_model_size(self._model)),
            versions={"llama-cpp-python": llama_cpp.__version__, "llama.cpp": instruction_sets(llama_cpp)},
        )

    @property
    def committed_length(self) -> int:
        return self._length

    def truncate(self, length: int) -> None:
        self._lib.llama_memory_seq_rm(self._memory, 0, length, -1)
        self._length, self._pending = length, 0

    def extend(self, prompt: PromptInput) -> _Output:
        self._drop_pending()
        for start in range(0, len(prompt.ids), _BATCH):
            chunk = prompt.ids[start : start + _BATCH]
            self._pass(chunk, scored=1)
            self._length += len(chunk)
        return _Output(self._rows(1))

    def verify(self, tree: DraftTree) -> _Output:
        self._drop_pending()
        n = tree.num_nodes
        self._pass(tree.tokens, scored=n)
        self._pending = n
        return _Output(self._rows(n))

    def commit(self, path: Sequence[int]) -> None:
        kept = len(path)
        self._length += kept
        if kept < self._pending:
            self._lib.llama_memory_seq_rm(self._memory, 0, self._length, -1)
        self._pending = 0

    def close(self) -> None:
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)

    def _drop_pending(self) -> None:
        """A verify that was never committed leaves no trace."""
        if self._pending:
            self.truncate(self._length)

    def _pass(self, tokens: Sequence[int] | NDArray[np.int64], scored: int) -> None:
        """Feed ``tokens``; the logits of the last ``scored`` of them are computed."""
        n = len(tokens)
        ids = (ctypes.c_int32 * n)(*(int(token) for token in tokens))
        batch = self._lib.llama_batch_get_one(ids, n)  # positions follow what is in the context
        wanted = (ctypes.c_int8 * n)(*([0] * (n - scored)), *([1] * scored))
        batch.logits = ctypes.cast(wanted, ctypes.POINTER(ctypes.c_int8))
        code = self._lib.llama_decode(self._context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code} on {n} tokens after {self._length}")
        self._lib.llama_synchronize(self._context)

    def _rows(self, count: int) -> NDArray[np.float32]:
        """Logits [count, V] of the last pass, in llama.cpp's own memory."""
        rows = self._lib.llama_get_logits(self._context)
        return np.ctypeslib.as_array(rows, shape=(count, self.info.vocabulary_size))


class _Output:
    """A ``TargetOutput`` over logits [n, V]."""

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self._logits = logits

    def argmax(self) -> NDArray[np.int64]:
        return self._logits.argmax(axis=-1)

    def logits_row(self, node: int) -> NDArray[np.float32]:
        return self._logits[node].copy()


def greedy(target: LlamaTarget, prompt: Sequence[int], count: int, draft: Draft | None = None) -> Reply:
    """``count`` tokens after ``prompt``, with ``draft``'s guesses checked in each pass; timed after the first token."""
    target.truncate(0)
    anchor = int(target.extend(PromptInput(tuple(prompt))).argmax()[0])
    told, passes, started = [*prompt, anchor], 0, time.perf_counter()
    while (room := len(prompt) + count - len(told)) > 0:
        guesses = [int(token) for token in draft(np.array(told, dtype=np.intc))[: room - 1]] if draft else []
        best = target.verify(DraftTree.chain([anchor, *guesses])).argmax()
        kept = next((i for i, guess in enumerate(guesses) if guess != best[i]), len(guesses))
        target.commit(range(kept + 1))
        anchor = int(best[kept])
        told += [*guesses[:kept], anchor]
        passes += 1
    seconds = time.perf_counter() - started
    return Reply(tuple(told[len(prompt) :]), count - 1, seconds, passes)


def lookup_draft(length: int) -> Draft:
    """llama-cpp-python's own prompt lookup."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    lookup: Draft = LlamaPromptLookupDecoding(num_pred_tokens=length)
    return lookup


def load_fastest(path: Path, kind: str, context_length: int, threads: int,
                 prompts: Sequence[Sequence[int]], count: int) -> tuple[LlamaTarget, bool, int]:  # fmt: skip
    """The file loaded with what is fastest on ``prompts``: (target, flash attention, num_pred_tokens of lookup)."""
    loaded: dict[bool, LlamaTarget] = {}
    seconds: dict[bool, float] = {}
    try:
        for flash in (False, True):
            loaded[flash] = target = LlamaTarget(
                path, kind, context_length=context_length, threads=threads, flash_attention=flash
            )
            greedy(target, prompts[0], 4)  # the first passes of a kind may be slow
            seconds[flash] = sum(greedy(target, prompt, count).seconds for prompt in prompts)
        flash = min(seconds, key=lambda flash: seconds[flash])
        target = loaded[flash]
        length = min(
            LOOKUP_LENGTHS,
            key=lambda length: sum(greedy(target, prompt, count, lookup_draft(length)).seconds for prompt in prompts),
        )
    except BaseException:
        for target in loaded.values():
            target.close()
        raise
    loaded[not flash].close()
    return target, flash, length


def competitors(target: LlamaTarget, flash: bool, length: int) -> list[Competitor]:
    """Plain, and with prompt lookup of ``length`` tokens."""
    kind, draft = target.info.precision, lookup_draft(length)

    def plain(question: Question) -> Reply:
        return greedy(target, question.ids, len(question.answer))

    def lookup(question: Question) -> Reply:
        return greedy(target, question.ids, len(question.answer), draft)

    named = (LLAMA, kind, PRECISION_OF[kind])
    return [
        Competitor(*named, "plain", plain, settings=flash_words(flash)),
        Competitor(*named, "prompt lookup", lookup, settings=f"lookup of {length} tokens"),
    ]


def flash_words(flash: bool) -> str:
    return f"flash attention {'on' if flash else 'off'}"


def library() -> Any:
    """The module ``llama_cpp``.

    Raises:
        ModelError: it is not installed.
    """
    try:
        import llama_cpp
    except ImportError as error:
        raise ModelError(HOW_TO_INSTALL) from error
    return llama_cpp


def instruction_sets(llama_cpp: Any) -> str:
    """What the library was built for, in its own words."""
    said: str = llama_cpp.llama_print_system_info().decode().strip()
    return " ".join(said.split())


_kept: list[Any] = []  # ctypes calls back into it for as long as the process lives


def _be_quiet(llama_cpp: Any) -> None:
    if not _kept:
        _kept.append(llama_cpp.llama_log_callback(lambda level, text, data: None))
        llama_cpp.llama_log_set(_kept[0], ctypes.c_void_p(0))
