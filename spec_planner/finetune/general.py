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


def general_examples(model: AdaptedModel, encoder: Encoder, out: Path, identity: str, seed: int) -> list[Example]:
    """The base model's answers to ``PROMPTS``, sampled once per model (``identity``) and seed and kept in ``out``."""
    path, made_of = out / FILE, {"target": identity, "seed": seed}
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    if not isinstance(content, dict) or made_of != {key: content.get(key) for key in made_of}:
        prompts = [encoder.encode_chat(prompt) for prompt in PROMPTS]
        answers = model.sample(prompts, ANSWER_TOKENS, TEMPERATURE, seed)
        content = {**made_of, "answers": [[list(p), a] for p, a in zip(prompts, answers, strict=True)]}
        text = json.dumps(content)
        write_whole(path, lambda scratch: scratch.write_text(text, encoding="utf-8"))
    return [Example(np.array([*prompt, *answer], np.int32), len(prompt)) for prompt, answer in content["answers"]]


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
