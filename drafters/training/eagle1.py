"""EAGLE-1 learns (2401.15077; EAGLE-2 drafts with the same weights): the target's features are guessed, then its words.

    base row of x(t)   feature f(t − 1), token x(t)   →   f̂(t) ≈ f(t),  head(f̂(t)) ≈ head(f(t)), the law of x(t + 1)

Every row learns from true features, with noise on them, as the paper does. Drafts feed on guessed ones, so that is how
it is judged: the chain behind an anchor runs on its own outputs (``rows.roll_out``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..nets.eagle1_net import Eagle1Net
from .batch import Batch, Loss, TargetWeights
from .common import soft_cross_entropy, write_checkpoint
from .rows import (
    LossVocabulary,
    Windows,
    check_options,
    choose_windows,
    drafter_config,
    head_logits,
    head_rows,
    roll_out,
)


@dataclass(frozen=True)
class Eagle1Options:
    """Attributes:
    layers: decoder layers of the drafter.
    depth: longest chain it is judged at.
    ce_weight: of the cross-entropy beside the regression.
    noise: features get uniform noise of up to this size in training.
    intermediate: inner size of the feed-forward block; 0 takes the target's.
    loss_vocabulary: tokens the cross-entropy is taken over in training (``LossVocabulary``); 0 takes all.
    judged_anchors: anchors judged per batch in training, by lot; 0 judges all, as evaluation does.
    """

    layers: int = 1
    depth: int = 5
    ce_weight: float = 0.1
    noise: float = 0.1
    intermediate: int = 0
    loss_vocabulary: int = 8192
    judged_anchors: int = 64


class Eagle1Trainee:
    """See ``trainee.Trainee``."""

    Options = Eagle1Options

    def __init__(self, target: TargetWeights, options: Eagle1Options) -> None:
        check_options(layers=options.layers, depth=options.depth)
        self._target, self._options, self.depth = target, options, options.depth
        self.feature_layers = (target.num_layers,)
        self._config = drafter_config(target, options.intermediate) | {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": options.layers,
            "bias": True,
        }
        self.net = Eagle1Net(self._config, {"fc.bias"}).to(target.embedding.device)
        self.net.embedding, self.net.head = target.embedding, target.head
        self._vocabulary = LossVocabulary(target.token_counts, options.loss_vocabulary)

    def loss(self, batch: Batch, generator: torch.Generator | None = None) -> Loss:
        features = batch.features[self._target.num_layers].to(self.net.fc.weight.dtype)
        given = batch.windows(self.depth)
        rows, counts = given[:, 0].unique(return_counts=True)
        output = next(roll_out(self.net, batch, self._noisy(features, generator), rows[:, None], 1)).float()
        regression = F.smooth_l1_loss(output, features[rows].float(), reduction="none").mean(-1)
        head = head_rows(self._target.head, self._vocabulary.tokens(batch.ids[given[:, 1]], generator))
        entropy = soft_cross_entropy(head_logits(output, head), head_logits(features[rows], head))
        total = ((regression + self._options.ce_weight * entropy) * counts).sum()
        judged = given if generator is None else choose_windows(given, self._options.judged_anchors, generator)
        return Loss(total, float(counts.sum()), *self._judge(batch, features, judged))

    def save(self, directory: Path, note: Mapping[str, Any]) -> None:
        write_checkpoint(directory, self.net, self._config | {"spec_planner": dict(note)})

    def _noisy(self, features: Tensor, generator: torch.Generator | None) -> Tensor:
        if generator is None or not self._options.noise:
            return features
        uniform = torch.rand(features.shape, generator=generator, device=generator.device).to(features.device)
        return features + (2 * uniform - 1) * self._options.noise

    @torch.no_grad()
    def _judge(self, batch: Batch, features: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        """``right`` and ``judged`` of ``Loss`` for windows int64 [anchors, depth + 1]."""
        windows = Windows.of(given)
        outputs = roll_out(self.net, batch, features, windows.rows, self.depth)
        likeliest = torch.stack([self.net.logits(output).argmax(-1) for output in outputs], dim=1)
        right = likeliest == windows.tokens(batch)[:, 1:]
        return right[windows.places], windows.judged[windows.places]
