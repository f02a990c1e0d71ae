"""Hugging Face's ``generate`` as a competitor, plain and assisted by its own prompt lookup."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..quiet import quiet_transformers
from .engines import Reply

LOOKUP_LENGTHS = (3, 10)  # prompt_lookup_num_tokens


class Generator:
    """A model as ``transformers`` runs it, with its default attention and cache."""

    def __init__(self, directory: Path, precision: str, threads: int) -> None:
        import torch
        import transformers

        self.version: str = transformers.__version__
        torch.set_num_threads(threads)
        with quiet_transformers():
            self._model = transformers.AutoModelForCausalLM.from_pretrained(
                directory, dtype=getattr(torch, precision), local_files_only=True
            ).eval()
        settings = self._model.generation_config
        settings.eos_token_id, settings.pad_token_id = None, 0  # it is to answer at a given length

    def answer(self, prompt: Sequence[int], count: int, lookup: int | None = None) -> Reply:
        """``count`` tokens after ``prompt``, greedy; ``lookup``: prompt lookup with so many tokens per pass."""
        import torch

        ids, clock = torch.tensor([list(prompt)]), _Clock()
        with torch.inference_mode():
            said = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                streamer=clock,
                **({"prompt_lookup_num_tokens": lookup} if lookup else {}),
            )
        ended = time.perf_counter()
        tokens = tuple(int(token) for token in said[0, len(prompt) :])
        return Reply(tokens, len(tokens) - clock.first_tokens, ended - clock.first_at, clock.passes)

    def fastest_lookup(self, prompts: Sequence[Sequence[int]], count: int) -> int:
        """Which of ``LOOKUP_LENGTHS`` is fastest on ``prompts``."""
        return min(
            LOOKUP_LENGTHS, key=lambda length: sum(self.answer(prompt, count, length).seconds for prompt in prompts)
        )


class _Clock:
    """A streamer: told of the prompt, then of the tokens of every pass. Assisted, the first pass may say several."""

    def __init__(self) -> None:
        self.first_at, self.first_tokens, self.passes = 0.0, 0, -2  # neither the prompt nor its pass counts

    def put(self, value: Any) -> None:
        self.passes += 1
        if self.passes == 0:
            self.first_at, self.first_tokens = time.perf_counter(), value.numel()

    def end(self) -> None:
        pass  # the protocol's; nothing is left to do
