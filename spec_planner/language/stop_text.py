"""Stop sequences: texts that end an answer, wherever token borders fall in them."""

from __future__ import annotations

from collections.abc import Sequence

from .tokenizer import IncrementalDecoder, Tokenizer


class StopText:
    """Looks for ``sequences`` in an answer that arrives token by token."""

    def __init__(self, tokenizer: Tokenizer, sequences: Sequence[str], context: Sequence[int] = ()) -> None:
        """``context``: ids before the answer that are not searched."""
        self._decoder, self._sequences = IncrementalDecoder(tokenizer, context), tuple(sequences)
        self._tail = ""  # the end of the text so far, as long as a sequence may have begun in it

    def scan(self, tokens: Sequence[int]) -> int | None:
        """How many of ``tokens`` make the first sequence whole; None if none of them does."""
        if not self._sequences:
            return None
        for index, token in enumerate(tokens):
            text = self._tail + self._decoder.push([token])
            if any(sequence in text for sequence in self._sequences):
                return index + 1
            self._tail = text[-(max(map(len, self._sequences)) - 1) :] if max(map(len, self._sequences)) > 1 else ""
        return None

    def held_back(self, text: str) -> int:
        """Length of the end of ``text`` that may be the beginning of a sequence, and so is not to be shown yet."""
        longest = max(map(len, self._sequences), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(sequence.startswith(text[-length:]) for sequence in self._sequences):
                return length
        return 0

    def cut(self, text: str) -> str:
        """``text`` up to the first sequence in it."""
        return text[: min((text.find(s) for s in self._sequences if s in text), default=len(text))]
