"""Text ↔ token ids with a local checkpoint's own tokenizer and chat template.

Whatever stands in a message is text: only the template's own parts may become control tokens, so an instruction that
spells out ``<|im_end|>`` cannot end its turn or open another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..quiet import quiet_transformers
from .thinking import CLOSE

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what decoders put for bytes that are not, or not yet, UTF-8
_SLOT = re.compile("\ue000(\\d+)\ue001")  # stands for a message's content while the template is rendered
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")

Message = Mapping[str, str]  # role: system, user or assistant; content


class TokenizerError(ValueError):
    """A tokenizer that cannot be loaded or used; the message says what is wrong, where, and what to do."""


class Tokenizer:
    """The tokenizer of one model directory. Never downloads, never runs a checkpoint's code."""

    def __init__(self, directory: Path) -> None:
        """Load from ``directory``.

        Raises:
            TokenizerError: transformers is missing, or the directory holds no usable tokenizer.
        """
        directory = Path(directory)
        if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
            raise TokenizerError(
                f"no tokenizer in {directory}: it needs tokenizer.json, tokenizer.model, or vocab.json with merges.txt"
            )
        self._directory = directory
        self._tokenizer = _load(directory)
        self.vocabulary: dict[str, int] = self._tokenizer.get_vocab()  # token → id
        self.vocabulary_size = max(self.vocabulary.values(), default=-1) + 1
        self.stop_ids = self._read_stop_ids()  # a token of these ends an answer
        self.think_end: int | None = self.vocabulary.get(CLOSE)  # ends a thought; None: the model does not think aloud
        added = self._tokenizer.added_tokens_decoder
        self._control_ids = frozenset(added)
        longest_first = sorted((str(token) for token in added.values()), key=len, reverse=True)
        # A look-ahead, so that overlapping spellings are all found.
        self._control_text = re.compile(f"(?={'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    @property
    def backend(self) -> Any:
        """The ``tokenizers.Tokenizer`` inside; AttributeError for one that is written in Python."""
        return self._tokenizer.backend_tokenizer

    def encode_chat(
        self, messages: Sequence[Message], answer_start: str = "", thinking: bool = False
    ) -> tuple[int, ...]:
        """The prompt for the assistant's next turn, which already begins with ``answer_start``.

        ``thinking``: a reasoning model may think first; otherwise its thought is closed before it begins.

        Raises:
            TokenizerError: the chat template fails or does not use every message once and in order, or a message is not
                valid Unicode.
        """
        pieces = [*self._render(messages, thinking), answer_start]
        ids = self._leading_ids()
        for index, piece in enumerate(pieces):
            # Even pieces are the template's, odd ones the messages'; the last is the answer's start, text again.
            is_template = index % 2 == 0 and index < len(pieces) - 1
            ids += self._encode(piece, split_special_tokens=False) if is_template else self.encode(piece)
        return tuple(ids)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` as ordinary text, nothing added: control tokens spelled out in it stay spelled out.

        Raises:
            TokenizerError: the text is not valid Unicode.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"character {error.start} of the text is half a surrogate pair: send valid Unicode text"
            ) from error
        ids = self._encode(text, split_special_tokens=True)
        if self._control_ids.isdisjoint(ids):
            return ids
        # Added tokens that a checkpoint does not mark as special (<think>, <tool_call>) survive the split: cut their
        # spelling behind its first character, so that no part contains one.
        cuts = [0, *(match.start() + 1 for match in self._control_text.finditer(text)), len(text)]
        return [i for a, b in pairwise(cuts) for i in self._encode(text[a:b], split_special_tokens=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``; special tokens are left out, bytes that are not UTF-8 become U+FFFD."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _encode(self, text: str, split_special_tokens: bool) -> list[int]:
        if not text:
            return []
        ids = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=split_special_tokens)
        return list(ids)

    def _leading_ids(self) -> list[int]:
        """What must precede a prompt without template: the beginning-of-sequence token where the model expects one."""
        if self._tokenizer.chat_template:
            return []
        begin = self._tokenizer.bos_token_id
        return [begin] if begin is not None and begin in self._tokenizer.encode("", add_special_tokens=True) else []

    def _render(self, messages: Sequence[Message], thinking: bool) -> list[str]:
        """Template text and message contents in turn: template, content, template, …, content, template."""
        contents = [message["content"] for message in messages]
        if not self._tokenizer.chat_template:
            return _plain_format(messages)
        slots = [{"role": m["role"], "content": f"\ue000{i}\ue001"} for i, m in enumerate(messages)]
        try:
            # enable_thinking is Qwen3's; other templates do not read it.
            rendered = self._tokenizer.apply_chat_template(
                slots, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
            )
        except Exception as error:  # noqa: BLE001  (a template is a program of the checkpoint: it may raise anything)
            raise TokenizerError(f"the chat template of {self._directory} failed ({_first_line(error)})") from error
        pieces = _SLOT.split(rendered)
        if pieces[1::2] != [str(index) for index in range(len(messages))]:
            raise TokenizerError(
                f"the chat template of {self._directory} does not keep every message once and in order: "
                f"use a checkpoint whose template takes system, user and assistant turns"
            )
        pieces[1::2] = contents
        if not thinking and pieces[-1].rstrip().endswith("<think>"):  # DeepSeek-R1 opens a thought whatever one asks
            pieces[-1] = f"{pieces[-1].rstrip()}\n\n{CLOSE}\n\n"
        return pieces

    def _read_stop_ids(self) -> frozenset[int]:
        """End-of-sequence ids of generation_config.json and config.json (a number or list) and the tokenizer's own."""
        found: set[int] = set()
        if self._tokenizer.eos_token_id is not None:
            found.add(int(self._tokenizer.eos_token_id))
        for name in ("generation_config.json", "config.json"):
            path = self._directory / name
            if not path.is_file():
                continue
            try:
                value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            except (OSError, ValueError, AttributeError) as error:
                raise TokenizerError(f"{path} is not readable JSON: copy the model again") from error
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
                raise TokenizerError(f"{path}: eos_token_id must be a token id or a list of them, got {value!r:.80}")
            found.update(ids)
        return frozenset(found)


class IncrementalDecoder:
    """Ids → text, piece by piece. The pieces joined are the text of all ids.

    A character whose bytes are spread over several tokens is held back until it is whole. The last ids already shown
    are decoded along with new ones, because some tokenizers write a blank between tokens but not before the first.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        """``context``: ids that precede the text and are not shown (the prompt's last)."""
        self._decode = tokenizer.decode
        self._shown = list(context)  # ids in the window whose text is out
        self._waiting: list[int] = []  # ids in the window whose text is not all out
        self._shown_length = len(self._decode(self._shown))  # characters of the window's text that are out

    def push(self, ids: Sequence[int]) -> str:
        """Text that ``ids`` complete; may be empty."""
        if not ids:
            return ""
        self._waiting += ids
        text = self._decode(self._shown + self._waiting)
        whole = text.rstrip(REPLACEMENT)
        piece = whole[self._shown_length :]
        if len(whole) == len(text):  # every character is whole: later ids cannot change it, so the window moves on
            self._shown, self._waiting = self._waiting, []
            self._shown_length = len(self._decode(self._shown))
        else:
            self._shown_length = max(self._shown_length, len(whole))
        return piece

    def finish(self) -> str:
        """What was held back; bytes that never became a character show as U+FFFD."""
        text = self._decode(self._shown + self._waiting)[self._shown_length :]
        self._shown, self._waiting, self._shown_length = [], [], 0
        return text


def _plain_format(messages: Sequence[Message]) -> list[str]:
    """For a checkpoint without chat template: titled paragraphs."""
    pieces: list[str] = []
    for index, message in enumerate(messages):
        pieces += [("\n\n" if index else "") + message["role"].capitalize() + ": ", message["content"]]
    return [*pieces, ("\n\n" if pieces else "") + "Assistant: "]


def _load(directory: Path) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise TokenizerError("the tokenizer needs the package transformers: install it and start again") from error
    with quiet_transformers():
        try:
            return transformers.AutoTokenizer.from_pretrained(
                str(directory), local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # noqa: BLE001  (transformers raises what its parsers raise, KeyError included)
            raise TokenizerError(
                f"the tokenizer in {directory} cannot be loaded ({_first_line(error)}): copy the model again"
            ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:")[:200] if lines else type(error).__name__
