"""DFlash learns (2602.06036): blocks behind many anchors are guessed in one pass and compared with what was said.

    context   fused hidden states of every row: keys and values, made once for all blocks
    block     anchor x(t), then B − 1 masks, at positions t … t + B − 1; slot j guesses x(t + j)
    a slot sees the context rows before its anchor (the anchor has no hidden state yet) and its own block, both ways

    forced    x(t − m) … x(t − 1), anchor x(t), masks: in two batches of five m is 0, else 1 to 3. While decoding, m
              tokens that a grammar forced have no hidden states yet: they lead the block and leave the context

Slots near the anchor weigh more, since a draft ends at its first wrong token: by a fixed decay exp(−(j − 1) / γ), or by
how sure the network is of what comes before and after (D-PACE, 2605.18810).

Columns of ``fc`` are learnt for hidden states whose dimensions are of one size, and stored for them as they are
(``stream_sizes.py``). The factors are powers of two, so that nothing is rounded. Over the first 120 steps on a
135M target it made no difference that could be told from chance; ``even_columns`` turns it off.

The mask token is one that the target knows and never says: its beginning-of-text token, which no instruction can make
part of an answer, or else the highest id that stands in no answer of the training split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..nets.dflash_net import DFlashNet, parse_dflash_config
from ..nets.layers import SparseMask
from .batch import Batch, Loss, TargetWeights
from .common import GrowingCache, soft_cross_entropy, write_checkpoint
from .draft_tokens import DraftTokens, likeliest
from .rows import (
    LossVocabulary,
    Windows,
    check_feature_layers,
    check_options,
    choose_windows,
    drafter_config,
    head_logits,
    head_rows,
)
from .stream_sizes import stream_sizes

_FORCED = (0, 0, 1, 2, 3)  # m, by lot for every batch of training
_AT_ONCE = 16  # blocks whose attention is worked out together
_SURE_AT_LEAST = 0.5  # D-PACE's α: what a probability is drawn up towards 1 by


@dataclass(frozen=True)
class DFlashOptions:
    """Attributes:
    layers: decoder layers of the drafter.
    block_size: B, the anchor's slot included.
    anchors: blocks per batch in training, drawn by lot.
    evaluated_anchors: at most so many in evaluation, evenly spaced; 0 takes all.
    gamma: of the position decay; 0 takes the paper's, 7 for blocks of 16 and 4 for blocks of 8.
    dpace: weights by D-PACE instead.
    soft: learn the target's laws instead of the tokens it wrote; the last hidden state is read for that.
    even_columns: learn ``fc`` for dimensions of one size.
    feature_layers: hidden states it reads, Hugging Face indices; empty takes five, evenly spread.
    intermediate: inner size of the feed-forward block; 0 takes the target's.
    loss_vocabulary: tokens the cross-entropy is taken over in training (``LossVocabulary``); 0 takes all.
    draft_vocabulary: tokens that the drafter says, those of the target's answers (``draft_tokens.py``); 0 takes all.
    """

    layers: int = 3
    block_size: int = 8
    anchors: int = 384
    evaluated_anchors: int = 256
    gamma: float = 0.0
    dpace: bool = False
    soft: bool = False
    even_columns: bool = True
    feature_layers: tuple[int, ...] = ()
    intermediate: int = 0
    loss_vocabulary: int = 1024
    draft_vocabulary: int = 2048


class DFlashTrainee:
    """See ``trainee.Trainee``."""

    Options = DFlashOptions

    def __init__(self, target: TargetWeights, options: DFlashOptions) -> None:
        check_options(layers=options.layers, anchors=options.anchors, block_size=options.block_size - 1)
        self._target, self._options, self.depth = target, options, options.block_size - 1
        layers = options.feature_layers or spread_layers(target.num_layers)
        self._read = check_feature_layers(layers, target.num_layers)
        self.feature_layers = tuple(sorted({*self._read, *([target.num_layers] if options.soft else [])}))
        self._config = drafter_config(target, options.intermediate) | {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "num_hidden_layers": options.layers,
            "layer_types": ["full_attention"] * options.layers,
            "is_causal": False,
            "num_target_layers": target.num_layers,
            "block_size": options.block_size,
            "dflash_config": {
                "mask_token_id": unsaid_token(target),
                "target_layer_ids": [layer - 1 for layer in self._read],  # there: outputs of layers
            },
        }
        self.net = self._make_net().to(target.embedding.device)
        self._factors = self._column_factors().to(target.embedding.device)
        self._vocabulary = LossVocabulary(target.token_ranks, options.loss_vocabulary)
        self._draft_tokens = DraftTokens.choose(target, options.draft_vocabulary)

    def loss(self, batch: Batch, generator: torch.Generator | None = None) -> Loss:
        limit = self._options.evaluated_anchors if generator is None else self._options.anchors
        windows = Windows.of(choose_windows(batch.windows(self.depth), limit, generator))
        forced = 0 if generator is None else self._draw_forced(batch.positions[windows.rows[:, 0]], generator)
        ids, judged, counts = windows.tokens(batch), windows.judged, windows.counts[:, None]
        vocabulary, kept = self._vocabulary.tokens(ids, generator), self._draft_tokens.judged(generator)
        head = head_rows(self._target.head, vocabulary)
        cache = GrowingCache(self.net.config.num_layers)
        features = batch.stacked(self._read).to(self.net.fc.weight.dtype)
        self.net.follow(features * self._factors, cache, batch.positions)
        total, count, right = self.net.fc.weight.new_zeros(()), 0.0, []
        for part in torch.arange(len(ids), device=ids.device).split(self._options.anchors):
            hidden = self._run_blocks(batch, windows.rows[part, 0], cache, forced)
            logits = head_logits(hidden, head)
            labels = torch.searchsorted(vocabulary, ids[part, 1:])
            if self._options.soft:
                spoken = batch.features[self._target.num_layers][windows.rows[part, :-1].clamp(min=0)]
                entropy = soft_cross_entropy(logits, head_logits(spoken, head))
            else:
                entropy = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
            more, correct = self._choose(hidden, logits, ids[part], labels, vocabulary, kept)
            weights = self._weights(entropy.detach(), judged[part]) * counts[part]
            total, count = total + ((entropy + more) * weights).sum(), count + float(weights.sum())
            right.append(correct)
        return Loss(total, count, torch.cat(right)[windows.places], judged[windows.places])

    def save(self, directory: Path, note: Mapping[str, Any]) -> None:
        stored = {"fc.weight": (self.net.fc.weight.detach() * self._factors.flatten()).half()}
        config = self._config | self._draft_tokens.config() | {"spec_planner": dict(note)}
        write_checkpoint(directory, self.net, config, stored)

    def _column_factors(self) -> Tensor:
        """[m, d]; the median dimension keeps its size."""
        if not self._options.even_columns:
            return torch.ones((len(self._read), self.net.config.hidden_size))
        sizes = stream_sizes(self._target, self._read)
        return torch.exp2((sizes.median() / sizes).log2().round())

    def _make_net(self) -> DFlashNet:
        return DFlashNet(parse_dflash_config(self._config))

    def _choose(self, hidden: Tensor, logits: Tensor, ids: Tensor, labels: Tensor,
                vocabulary: Tensor, kept: Tensor | None) -> tuple[Tensor | float, Tensor]:  # fmt: skip
        """What is added to the loss of each slot, and whether its guess is right, [w, B − 1] both.

        Args:
            hidden, logits: of the slots after the anchor, [w, B − 1, d] and [w, B − 1, m].
            ids: what was said from the anchor on, [w, B].
            labels: where the slots' tokens stand in ``vocabulary``, int64 [m], whose logits these are.
            kept: places in it that may be said (``draft_tokens.likeliest``).
        """
        return 0.0, likeliest(logits, kept) == labels

    def _run_blocks(self, batch: Batch, anchors: Tensor, cache: GrowingCache, forced: int = 0) -> Tensor:
        """Hidden [w, B − 1, d] of the slots behind ``anchors``, int64 [w]; ``cache`` holds a slot per row.

        forced: m tokens before each anchor that have no hidden state either; every anchor has so many before it.
        """
        place, size, count = anchors.device, forced + self._options.block_size, len(anchors)
        leading = [anchors]
        for _ in range(forced):
            leading.insert(0, batch.previous[leading[0]])
        spoken = torch.stack(leading, dim=1)  # rows [w, m + 1]
        ids = torch.full((count, size), self.net.config.mask_token_id, device=place)
        ids[:, : forced + 1] = batch.ids[spoken]
        positions = batch.positions[spoken[:, :1]] + torch.arange(size, device=place)
        before = batch.seen[anchors].scatter(1, spoken, False)
        block = torch.arange(count, device=place).repeat_interleave(size)
        mask = SparseMask(torch.cat((before[block], block[:, None] == block), dim=1), _AT_ONCE * size)
        rows = F.embedding(ids, self._target.embedding).to(self.net.fc.weight.dtype)
        hidden = self.net.run_blocks(rows, positions.flatten(), [mask] * self._options.layers, cache)
        return hidden[:, forced + 1 :]

    @staticmethod
    def _draw_forced(positions: Tensor, generator: torch.Generator) -> int:
        """m of ``_FORCED``, or what the first of the anchors at ``positions`` has before it where that is less."""
        drawn = torch.randint(len(_FORCED), (), generator=generator, device=generator.device)
        return min(_FORCED[int(drawn)], int(positions.min()))

    def _weights(self, entropy: Tensor, judged: Tensor) -> Tensor:
        """Of the slots' losses, [w, B − 1]; 0 past the end of an answer."""
        if self._options.dpace:
            sure = torch.exp(-entropy) * (1 - _SURE_AT_LEAST) + _SURE_AT_LEAST
            reach = sure.cumprod(1) * judged
            return reach.flip(1).cumsum(1).flip(1)
        gamma = self._options.gamma or max(4 + (self._options.block_size - 8) * 3 / 8, 1.0)
        return torch.exp(-torch.arange(self.depth, device=judged.device) / gamma) * judged


def spread_layers(num_layers: int) -> tuple[int, ...]:
    """The papers' five hidden states to read, Hugging Face indices; fewer where the target has not so many.

    The last are left out: they hold little more than the next token.
    """
    spread = (1 + round(1 + i * max(num_layers - 4, 0) / 4) for i in range(5))
    return tuple(sorted({min(layer, num_layers) for layer in spread}))


def unsaid_token(target: TargetWeights) -> int:
    """The id that stands for what is not known yet.

    Raises:
        ValueError: every token stands in some answer.
    """
    unsaid = target.token_counts == 0
    beginning = target.config.get("bos_token_id")
    if isinstance(beginning, int) and unsaid[beginning]:
        return beginning
    found = unsaid.nonzero()
    if not len(found):
        raise ValueError(f"every token of {target.name} stands in some answer: none is left to be DFlash's mask token")
    return int(found[-1])
