"""EAGLE-1 learns (2401.15077; EAGLE-2 drafts with the same weights): the target's features are guessed, then its words.

    step 0   base row of the anchor x(t)   feature f(t − 1)           →   f̂(t) ≈ f(t),   head(f̂(t)): the law of x(t + 1)
    step s   chain row of x(t + s)         what step s − 1 put out    →   f̂(t + s) ≈ f(t + s), likewise

The paper has step 0 alone, from true features with noise on them. Drafts feed on guessed ones, so some more steps are
learnt as HASS does (2408.15766), and all are judged so, in evaluation: the chain runs on its own outputs
(``rows.roll_out``).

All starts as drawn. To start ``fc`` as [embedding made as large as features, identity] is worse: it says the token
before with confidence. Over 40 steps on a 135M target the loss stood at 12.0, against 5.3 as drawn.
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
from .draft_tokens import DraftTokens, likeliest
from .rows import (
    LossVocabulary,
    Windows,
    check_options,
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
    steps: how many of them it learns; 1 is the paper's.
    ce_weight: of the cross-entropy beside the regression. The paper's 0.1 is for features of 4,096 numbers and more.
    noise: features get uniform noise of up to this size in training.
    intermediate: inner size of the feed-forward block; 0 takes the target's.
    loss_vocabulary: tokens the cross-entropy is taken over in training (``LossVocabulary``); 0 takes all.
    draft_vocabulary: tokens that the drafter says, those of the target's answers (``draft_tokens.py``); 0 takes all.
    """

    layers: int = 1
    depth: int = 7
    steps: int = 3
    ce_weight: float = 1.0
    noise: float = 0.1
    intermediate: int = 0
    loss_vocabulary: int = 1024
    draft_vocabulary: int = 2048


class Eagle1Trainee:
    """See ``trainee.Trainee``."""

    Options = Eagle1Options

    def __init__(self, target: TargetWeights, options: Eagle1Options) -> None:
        check_options(layers=options.layers, depth=options.depth, steps=options.steps)
        if options.steps > options.depth:
            raise ValueError(f"option steps is {options.steps}: at most depth, {options.depth}, can be learnt")
        self._target, self._options, self.depth = target, options, options.depth
        self.feature_layers = (target.num_layers,)
        self._config = drafter_config(target, options.intermediate) | {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": options.layers,
            "bias": False,  # of ``fc``; vLLM makes it without one
        }
        self.net = Eagle1Net(self._config, ()).to(target.embedding.device)
        self.net.embedding, self.net.head = target.embedding, target.head
        self._vocabulary = LossVocabulary(target.token_ranks, options.loss_vocabulary)
        self._draft_tokens = DraftTokens.choose(target, options.draft_vocabulary)

    def loss(self, batch: Batch, generator: torch.Generator | None = None) -> Loss:
        """As in ``trainee.Trainee``. In training nothing is judged, ``right`` is empty: it would cost as much again."""
        options, training = self._options, generator is not None
        features = batch.features[self._target.num_layers].to(self.net.fc.weight.dtype)
        windows = Windows.of(batch.windows(options.steps if training else self.depth))
        tokens, depth = windows.tokens(batch), windows.judged.shape[1]
        head = head_rows(self._target.head, self._vocabulary.tokens(tokens, generator))
        weights = windows.judged * windows.counts[:, None]
        total, right = features.new_zeros(()), []
        outputs = roll_out(self.net, batch, self._noisy(features, generator), windows.rows, depth)
        for step, output in enumerate(outputs):
            if step < options.steps:
                judged = windows.judged[:, step].nonzero()[:, 0]
                made, true = output[judged].float(), features[windows.rows[judged, step]].float()
                regression = F.smooth_l1_loss(made, true, reduction="none").mean(-1)
                entropy = soft_cross_entropy(head_logits(made, head), head_logits(true, head))
                total = total + ((regression + options.ce_weight * entropy) * weights[judged, step]).sum()
            if not training:
                said = likeliest(head_logits(output, self._target.head), self._draft_tokens.ids)
                right.append(said == tokens[:, step + 1])
        learnt = float(weights[:, : options.steps].sum())
        if training:
            nothing = windows.judged.new_zeros((0, self.depth))
            return Loss(total, learnt, nothing, nothing)
        return Loss(total, learnt, torch.stack(right, dim=1)[windows.places], windows.judged[windows.places])

    def save(self, directory: Path, note: Mapping[str, Any]) -> None:
        config = self._config | self._draft_tokens.config() | {"spec_planner": dict(note)}
        write_checkpoint(directory, self.net, config)

    def _noisy(self, features: Tensor, generator: torch.Generator | None) -> Tensor:
        if generator is None or not self._options.noise:
            return features
        uniform = torch.rand(features.shape, generator=generator, device=generator.device).to(features.device)
        return features + (2 * uniform - 1) * self._options.noise
