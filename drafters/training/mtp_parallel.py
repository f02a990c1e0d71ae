"""Parallel heads beside the target's last layer (Gloeckle et al., 2404.19737), taught while the target stays as it is.

    z(i)      what enters the target's last layer at x(i)
    window    x(t)                                    x(t+1)  x(t+2)  …  x(t+K)
    head k    reads z(0) … z(t−1), asked at t − 1,    guesses x(t+1+k), depth k + 1 of the window
              through the target's final norm and head

Each head begins as a copy of that last layer, which at t − 1 says x(t): one place too near, but in the right words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..nets.layers import SparseMask
from ..nets.mtp_net import ParallelHeads
from .batch import Batch, Loss, TargetWeights
from .common import GrowingCache, write_checkpoint
from .draft_tokens import DraftTokens
from .frozen_head import windowed_loss
from .rows import LossVocabulary, Windows
from .target_layers import ATTEND_AT_ONCE, begin_as, layer_config, layer_tensors


class ParallelTrainee:
    @dataclass(frozen=True)
    class Options:
        """What can be chosen.

        Attributes:
            num_heads: K, each a whole decoder layer.
            intermediate: inner units that each copy of the last layer keeps, those of the largest weights
                (``target_layers.layer_tensors``); 0: all.
            decay: weight of each head against the one before.
            soft: learn the target's laws (``frozen_head.windowed_loss``) instead of its tokens.
            loss_vocabulary: tokens that laws are over in training (``rows.LossVocabulary``); 0: all.
            draft_vocabulary: tokens that the drafter says, those of the target's answers (``draft_tokens.py``); 0: all.
        """

        num_heads: int = 4
        intermediate: int = 0
        decay: float = 0.8
        soft: bool = True
        loss_vocabulary: int = 1024
        draft_vocabulary: int = 2048

    def __init__(self, target: TargetWeights, options: Options) -> None:
        if options.num_heads < 1:
            raise ValueError(f"parallel MTP needs at least 1 head, got num_heads {options.num_heads}")
        self._target, self._options = target, options
        last = layer_tensors(target, target.num_layers - 1, options.intermediate)
        shapes = {name: tensor.shape for name, tensor in last.items()}
        self._config = layer_config(target, options.intermediate)
        self.net = ParallelHeads(self._config, [shapes] * options.num_heads).to(target.embedding.device)
        for head in self.net.heads:
            begin_as(head, last)
        self._vocabulary = LossVocabulary(target.token_ranks, options.loss_vocabulary)
        self._draft_tokens = DraftTokens.choose(target, options.draft_vocabulary)
        self._trunk = target.num_layers - 1
        self.feature_layers = (self._trunk, target.num_layers) if options.soft else (self._trunk,)
        self.depth = options.num_heads

    def loss(self, batch: Batch, generator: torch.Generator | None = None) -> Loss:
        options, windows = self._options, Windows.of(batch.windows(self.depth))
        # Windows of several answers may begin at one row, where the heads say the same to all of them.
        asked, place = batch.previous[windows.rows[:, 0]].unique(return_inverse=True)
        trunk, mask = batch.features[self._trunk].float(), SparseMask(batch.seen[asked], ATTEND_AT_ONCE)
        results = self.net(trunk, batch.positions, asked, mask, range(self.depth), GrowingCache(self.depth))
        made = self.net.normed(results, self._target.final_norm.float()).transpose(0, 1)[place]
        tokens = self._vocabulary.tokens(windows.tokens(batch), generator)
        kept = self._draft_tokens.judged(generator)
        return windowed_loss(self._target, batch, windows, made, options.decay, options.soft, tokens, kept)

    def save(self, directory: Path, note: Mapping[str, Any]) -> None:
        rename = {name: name.replace("heads.", "extra_heads.", 1) for name in self.net.state_dict()}
        config = {**self._config, **self._draft_tokens.config(), "spec_planner": dict(note)}
        write_checkpoint(directory, self.net, config, rename=rename)
