"""Medusa-1: heads learn on the hidden states of a target that does not change (2401.10774).

    window    x(t)    x(t+1)   x(t+2)  …  x(t+K)
    source    h(t−1)  the target's last hidden state before the anchor: the latest there is when a draft is made
    head k    reads h(t−1), guesses x(t+1+k): depth k + 1 of the window, k = 0 … K − 1

The loss is Σ λ^k CE(head k). W and b begin at zero, so at first every head says what the target's own head says.

What is stored has the names of the original repository's ``medusa_lm_head``, and a config with the fields that it, TGI
and vLLM read; ``version`` "2" there means heads without an output of their own. Of these loaders none was run on it:
only ours was. vLLM also wants the tensors under names of its own (``nets/medusa_net.py`` knows both).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..nets.medusa_net import MedusaNet, ResidualBlock
from ..tree_growth.static import rank_accuracy
from .batch import Batch, Loss, TargetWeights
from .common import soft_cross_entropy, write_checkpoint
from .draft_tokens import DraftTokens
from .frozen_head import drafts, tally, windowed_loss
from .rows import LossVocabulary, Windows, head_logits, head_rows

_RANKS = 10  # siblings that a tree may give a node, as in the published one
_AT_ONCE = 1 << 24  # logits that exist at a time


class MedusaTrainee:
    @dataclass(frozen=True)
    class Options:
        """What can be chosen.

        Attributes:
            num_heads, num_layers: K, and residual blocks per head.
            borrows_head: the older published form, with the target's head for output, of d² + d numbers per block;
                False: heads with an output matrix [V, d] of their own.
            decay: λ.
            soft: learn the target's laws (``frozen_head.windowed_loss``) instead of its tokens.
            loss_vocabulary: tokens that laws are over in training (``rows.LossVocabulary``); 0: all.
            draft_vocabulary: tokens that heads say that borrow the target's, those of its answers
                (``draft_tokens.py``); 0: all.
        """

        num_heads: int = 6
        num_layers: int = 1
        borrows_head: bool = True
        decay: float = 0.8
        soft: bool = True
        loss_vocabulary: int = 1024
        draft_vocabulary: int = 2048

    def __init__(self, target: TargetWeights, options: Options, draft_tokens: DraftTokens | None = None) -> None:
        """``draft_tokens``: of heads that are there already, in place of those that the options would choose."""
        if options.num_heads < 1 or options.num_layers < 1:
            raise ValueError(
                f"Medusa needs at least 1 head and 1 layer, got num_heads {options.num_heads} and num_layers "
                f"{options.num_layers}"
            )
        self._target, self._options = target, options
        vocabulary_size, hidden_size = target.head.shape
        self.net = MedusaNet(
            hidden_size, vocabulary_size, options.num_heads, options.num_layers, options.borrows_head
        ).to(target.embedding.device)
        with torch.no_grad():
            for module in self.net.modules():
                if isinstance(module, ResidualBlock):
                    module.linear.weight.zero_()
                    module.linear.bias.zero_()
            for head in self.net if not options.borrows_head else ():
                head[-1].weight.copy_(target.head)
        self._vocabulary = LossVocabulary(target.token_ranks, options.loss_vocabulary)
        size = options.draft_vocabulary if options.borrows_head else 0
        self._draft_tokens = DraftTokens.choose(target, size) if draft_tokens is None else draft_tokens
        self.feature_layers = (target.num_layers,)
        self.depth = options.num_heads
        self._accuracy: list[list[float]] | None = None

    def loss(self, batch: Batch, generator: torch.Generator | None = None) -> Loss:
        options, windows = self._options, Windows.of(batch.windows(self.depth))
        source = batch.features[self._target.num_layers][batch.previous[windows.rows[:, 0]]].float()
        tokens = self._vocabulary.tokens(windows.tokens(batch), generator)
        if options.borrows_head:
            made = torch.stack([head(source) for head in self.net], dim=1)
            kept = self._draft_tokens.judged(generator)
            return windowed_loss(self._target, batch, windows, made, options.decay, options.soft, tokens, kept)
        rows, labels, weights, judged = drafts(batch, windows, options.decay)
        logits = torch.stack(
            [head_logits(head[:-1](source), head_rows(head[-1].weight, tokens)) for head in self.net], 1
        )
        logits, places = logits[judged], torch.searchsorted(tokens, labels)
        if options.soft:
            states = batch.features[self._target.num_layers][rows]
            losses = soft_cross_entropy(logits, head_logits(states, head_rows(self._target.head, tokens)))
        else:
            losses = F.cross_entropy(logits, places, reduction="none")
        return tally(windows, judged, (weights * losses).sum(), weights, logits.max(dim=-1).indices == places)

    @torch.no_grad()
    def calibrate(self, batches: Iterable[Batch]) -> None:
        """Count how often the true token had each rank, head by head, over all anchors: it goes into ``config.json``.

        Every anchor and every token that is kept count: no grammar, which would narrow both.
        """
        self.net.eval()
        ranks = torch.cat([self._ranks(batch) for batch in batches])
        self._accuracy = [[round(share, 5) for share in row] for row in rank_accuracy(ranks.numpy(), _RANKS).tolist()]

    def _ranks(self, batch: Batch) -> Tensor:
        """int64 [anchors, K] on the CPU: how many tokens a head prefers to the true one; −1 past the end of an answer.

        Of tokens that it likes equally the lower id comes first, as when a draft is drawn. A true token that is not
        kept has the rank V: no draft is it.
        """
        windows = Windows.of(batch.windows(self.depth))
        source = batch.features[self._target.num_layers][batch.previous[windows.rows[:, 0]]].float()
        wanted = windows.tokens(batch)[:, 1:]
        ranks = torch.full_like(wanted, -1)
        size, head = self.net.vocabulary_size, self._target.head
        ids = torch.arange(size, device=source.device) if self._draft_tokens.ids is None else self._draft_tokens.ids
        lent = head_rows(head, ids).float() if self._options.borrows_head else None
        places = torch.full((size,), -1, device=source.device)  # of kept tokens among them; −1: it is none
        places[ids] = torch.arange(len(ids), device=source.device)
        for part in torch.arange(len(source), device=source.device).split(max(_AT_ONCE // len(ids), 1)):
            for depth in range(self.depth):
                logits = self.net.logits(source[part], range(depth, depth + 1), lent)[0]
                token = wanted[part, depth, None]
                true = logits.gather(1, places[token].clamp(min=0))
                better = (logits > true) | ((logits == true) & (ids < token))
                ranks[part, depth] = better.sum(dim=1).where(places[token[:, 0]] >= 0, size)
        ranks[~windows.judged] = -1
        return ranks[windows.places].cpu()

    def save(self, directory: Path, note: Mapping[str, Any]) -> None:
        config = {
            "model_type": "medusa",
            "hidden_size": self.net.hidden_size,
            "vocab_size": self.net.vocabulary_size,
            "num_heads": self._options.num_heads,
            "num_hidden_layers": self._options.num_layers,
            "medusa_num_heads": self._options.num_heads,
            "medusa_num_layers": self._options.num_layers,
            "medusa_fc_bias": True,
            **({"version": "2"} if self._options.borrows_head else {}),
            **({} if self._accuracy is None else {"medusa_tree": "best-first", "medusa_rank_accuracy": self._accuracy}),
            **self._draft_tokens.config(),
            "base_model_name_or_path": self._target.name,
            "spec_planner": dict(note),
        }
        write_checkpoint(directory, self.net, config, file="medusa_lm_head.safetensors")
