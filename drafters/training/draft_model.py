"""A small language model distilled from the target: a few of its layers between its own embedding and head.

    x(0) … x(i)  →  the draft model  →  q(· | x ≤ i), taught to be the target's p(· | x ≤ i) where an answer is written
    window       x(t)  x(t+1)  …        draft k is its guess after x(t+k−1), having read all before

The loss is the cross-entropy of q under p: their forward KL plus p's own entropy, which nobody can teach away
(2310.08461 compares the divergences). The layers begin as some of the target's, spread from the first to the last, so
that the first still knows what to do with an embedding and the last what the head reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..nets.draft_model_net import DraftModelNet
from ..nets.layers import SparseMask
from .batch import Batch, Loss, TargetWeights
from .common import GrowingCache, write_checkpoint
from .draft_tokens import DraftTokens
from .frozen_head import loss_through_head
from .rows import LossVocabulary, head_rows
from .target_layers import ATTEND_AT_ONCE, begin_as, layer_config, layer_tensors


class DraftModelTrainee:
    @dataclass(frozen=True)
    class Options:
        """What can be chosen.

        Attributes:
            layers: decoder layers.
            intermediate: inner units that each layer keeps, those of the largest weights
                (``target_layers.layer_tensors``); 0: all.
            depth: deepest draft judged; the model itself knows no depth.
            loss_vocabulary: tokens that laws are over in training (``rows.LossVocabulary``); 0: all.
            draft_vocabulary: tokens that the drafter says, those of the target's answers (``draft_tokens.py``); 0: all.
        """

        layers: int = 2
        intermediate: int = 0
        depth: int = 7
        loss_vocabulary: int = 1024
        draft_vocabulary: int = 2048

    def __init__(self, target: TargetWeights, options: Options) -> None:
        if not 1 <= options.layers <= target.num_layers or options.depth < 1:
            raise ValueError(
                f"a draft model needs 1 to {target.num_layers} layers and a depth of at least 1, got layers "
                f"{options.layers} and depth {options.depth}"
            )
        self._target = target
        chosen = [round(at) for at in torch.linspace(0, target.num_layers - 1, options.layers).tolist()]
        copies = [layer_tensors(target, layer, options.intermediate) for layer in chosen]
        self._config = {**layer_config(target, options.intermediate), "num_hidden_layers": options.layers}
        names = {f"layers.0.{name}" for name in copies[0]}
        self.net = DraftModelNet(self._config, names).to(target.embedding.device)
        for layer, tensors in zip(self.net.layers, copies, strict=True):
            begin_as(layer, tensors)
        begin_as(self.net.norm, {"weight": target.final_norm})
        self.net.embedding = target.embedding
        self._vocabulary = LossVocabulary(target.token_ranks, options.loss_vocabulary)
        self._draft_tokens = DraftTokens.choose(target, options.draft_vocabulary)
        self.feature_layers = (target.num_layers,)
        self.depth = options.depth

    def loss(self, batch: Batch, generator: torch.Generator | None = None) -> Loss:
        windows = batch.windows(self.depth)
        rows = windows[:, 0].unique()  # answers share rows: each counts once
        mask, cache = SparseMask(batch.seen, ATTEND_AT_ONCE), GrowingCache(len(self.net.layers))
        read = self.net(batch.ids, batch.positions, mask, cache, rows)
        # What follows a row is no label here, only among the tokens that its law is over.
        tokens = self._vocabulary.tokens(batch.ids[windows.clamp(min=0)], generator)
        head, states = head_rows(self._target.head, tokens), batch.features[self._target.num_layers]
        weights = torch.ones(len(rows), device=rows.device)
        unused, kept = torch.zeros_like(rows), self._draft_tokens.judged(generator)
        total, best = loss_through_head(read, head, rows, unused, weights, states, kept)
        guesses = torch.full_like(batch.ids, -1)
        guesses[rows] = tokens[best]
        judged = windows[:, 1:] >= 0  # row t+k−1 of a window is the anchor of a later one, so it has a guess
        right = judged & (guesses[windows[:, :-1]] == batch.ids[windows[:, 1:]])
        return Loss(total, float(len(rows)), right, judged)

    def save(self, directory: Path, note: Mapping[str, Any]) -> None:
        rename = {name: f"model.{name}" for name in self.net.state_dict()}
        config = {**self._config, "tie_word_embeddings": False, **self._draft_tokens.config()}
        config["spec_planner"] = dict(note)
        write_checkpoint(directory, self.net, config, rename=rename)
