"""A drafter in training as what the training loop learns with, and what it takes from the target."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drafters.training.batch import Loss, Score, TargetWeights
from drafters.training.trainee import Trainee

from ..engines.checkpoint import load_weights
from ..engines.decoder_config import read_decoder_config
from .batches import Drawn


def read_target_weights(
    directory: Path,
    device: torch.device,
    dtype: torch.dtype,
    answers: Iterable[Iterable[int]] = (),
    prompts: Iterable[Iterable[int]] = (),
) -> TargetWeights:
    """What a drafter reads of the target in ``directory``; ``answers``, ``prompts``: ids whose tokens are counted.

    Raises:
        ModelError: the directory cannot be used.
    """
    config = read_decoder_config(directory)
    weights = load_weights(directory, config)
    embedding = weights["model.embed_tokens.weight"].to(device, dtype)
    head = embedding if config.tied_head else weights["lm_head.weight"].to(device, dtype)

    def layer(number: int) -> dict[str, Tensor]:
        prefix = f"model.layers.{number}."
        return {
            name.removeprefix(prefix): tensor.to(device, torch.float32)
            for name, tensor in weights.items()
            if name.startswith(prefix)
        }

    return TargetWeights(
        name=directory.name,
        config=json.loads((directory / "config.json").read_text(encoding="utf-8")),
        embedding=embedding,
        head=head,
        final_norm=weights["model.norm.weight"].to(device, torch.float32),
        layer=layer,
        token_counts=_counts(answers, config.vocabulary_size).to(device),
        prompt_counts=_counts(prompts, config.vocabulary_size).to(device),
    )


def _counts(texts: Iterable[Iterable[int]], size: int) -> Tensor:
    counts = torch.zeros(size, dtype=torch.int64)
    for token, count in Counter(chain.from_iterable(texts)).items():
        counts[token] = count
    return counts


class DrafterLearner:
    """A ``learning.trainer.Learner`` over a trainee. Parameters are float32; products are in ``dtype``."""

    def __init__(self, trainee: Trainee, device: torch.device, dtype: torch.dtype) -> None:
        self._trainee, self.device, self._dtype = trainee, device, dtype
        trainee.net.to(device)
        named = {name: value for name, value in trainee.net.named_parameters() if value.requires_grad}
        self.parameters: dict[str, nn.Parameter] = dict(sorted(named.items()))

    def loss(self, pack: Drawn) -> tuple[Tensor, float]:
        loss = self._of(pack)
        return loss.sum, loss.count

    def measure(self, pack: Drawn) -> Tensor:
        """Loss and its terms, anchors, then per depth anchors reached and judged: float64 [3 + 2 · depth]."""
        loss, score = self._of(pack), Score()
        score.add(loss)
        head = torch.tensor([float(loss.sum), loss.count, score.anchors], dtype=torch.float64)
        counts = [each.double().cpu() for each in (score.reached, score.judged) if each is not None]
        return torch.cat([head, *counts])

    def record(self, sums: Tensor) -> dict[str, Any]:
        """Mean loss; tokens per pass of greedy chains, every anchor alike; the chance that k drafts are all right."""
        depth = (len(sums) - 3) // 2
        score = Score(sums[3 : 3 + depth].long(), sums[3 + depth :].long(), int(sums[2]))
        return {
            "validation_loss": round(float(sums[0]) / max(float(sums[1]), 1e-9), 4),
            "acceptance_length": round(score.acceptance_length, 4),
            "by_depth": [round(share, 4) for share in score.by_depth],
        }

    def shown(self, record: Mapping[str, Any]) -> str:
        return f"held-out acceptance {record['acceptance_length']:.2f}"

    def _of(self, pack: Drawn) -> Loss:
        generator = None
        if pack.seed is not None:
            generator = torch.Generator(self.device).manual_seed(pack.seed)
        self._trainee.net.train(generator is not None)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._dtype == torch.bfloat16):
            return self._trainee.loss(pack.batch, generator)
