"""Keeping general ability: everyday answers of the base model itself, whose law the adapted model must stay near."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch

from ..learning.corpus import Encoder
from ..learning.files import write_whole
from ..learning.packing import Example, make_pack
from .adapted_model import AdaptedModel
from .general_text import PROMPTS, PROSE

FILE = "general.json"
ANSWER_TOKENS, TEMPERATURE = 96, 0.8
WINDOW = 512  # tokens of prose per pass


def general_examples(model: AdaptedModel, encoder: Encoder, out: Path, seed: int) -> list[Example]:
    """The base model's answers to ``PROMPTS``, sampled once per run and kept in ``out``."""
    path = out / FILE
    if not path.is_file():
        prompts = [encoder.encode_chat(prompt) for prompt in PROMPTS]
        answers = model.sample(prompts, ANSWER_TOKENS, TEMPERATURE, seed)
        text = json.dumps([[list(p), a] for p, a in zip(prompts, answers, strict=True)])
        write_whole(path, lambda scratch: scratch.write_text(text, encoding="utf-8"))
    pairs = json.loads(path.read_text(encoding="utf-8"))
    return [Example(np.array([*prompt, *answer], np.int32), len(prompt)) for prompt, answer in pairs]


def perplexity(model: AdaptedModel, encoder: Encoder) -> float:
    """Of ``PROSE``, in windows of ``WINDOW`` tokens, the first token of each given."""
    ids = encoder.encode_text(" ".join(PROSE.split("\n")))
    nats = tokens = 0.0
    for start in range(0, len(ids), WINDOW):
        window = ids[start : start + WINDOW]
        if len(window) < 2:
            continue
        pack = make_pack([Example(np.array(window, np.int32), 1)])
        with torch.no_grad():
            nats += float(model.loss_sum(pack))
        tokens += pack.num_answer_tokens
    return math.exp(nats / tokens)
