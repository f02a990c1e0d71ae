"""One sequential MTP module, taught on its own recursion: a drafter uses it again and again (DeepSeek-V3, 2412.19437).

    row of     x(i+1): reads (h(i), x(i+1)) and guesses x(i+2); these, of prompt and answer, are what a cache holds
    window     x(t)          x(t+1)             x(t+2)      …
    step 0     (h(t−1), x(t))                                 the row of x(t) itself, over the rows up to it
    step j     (what step j − 1 made, x(t+j))                 in place of the rows of x(t+1) … x(t+j), whose hidden
                                                              states no drafter has: over the rows up to x(t) and over
                                                              steps 1 … j of this window alone
    guess      step j: x(t+j+1), depth j + 1 of the window

So a step sees the rows, and stands at the positions, that it will in ``drafters/mtp.py``; only its tokens are the
target's, which is the case that counts: a draft behind a wrong one is thrown away. Taught on step 0 alone, the module
would meet its own output for the first time when drafting, and guess badly from the second token on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from ..nets.layers import SparseMask, causal_mask
from ..nets.mtp_net import MtpForm, MtpModule, MtpNet
from .batch import Batch, Loss, TargetWeights
from .common import GrowingCache, write_checkpoint
from .draft_tokens import DraftTokens
from .frozen_head import windowed_loss
from .rows import LossVocabulary, Windows
from .target_layers import ATTEND_AT_ONCE, begin_as, layer_config, layer_tensors

_ROWS = 64  # random ones, to see how much a layer adds to its stream
_REAL_TO_RANDOM = 2.0  # a last layer adds 22 (rms) to what really enters it and 11 to random rows (SmolLM2-135M)
_EMBEDDING_SHARE = 1 / 3  # of the hidden state's size: 1 and 0.1 begin and learn worse on that target


class MtpTrainee:
    @dataclass(frozen=True)
    class Options:
        """What can be chosen.

        Attributes:
            depth: steps taught, and judged.
            intermediate: inner units that the copy of the last layer keeps, those of the largest weights
                (``target_layers.layer_tensors``); 0: all.
            decay: weight of each step against the one before.
            soft: learn the target's laws (``frozen_head.windowed_loss``) instead of its tokens.
            loss_vocabulary: tokens that laws are over in training (``rows.LossVocabulary``); 0: all.
            draft_vocabulary: tokens that the drafter says, those of the target's answers (``draft_tokens.py``); 0: all.
        """

        depth: int = 7
        intermediate: int = 0
        decay: float = 0.8
        soft: bool = True
        loss_vocabulary: int = 1024
        draft_vocabulary: int = 2048

    def __init__(self, target: TargetWeights, options: Options) -> None:
        if options.depth < 1:
            raise ValueError(f"an MTP module needs a depth of at least 1, got {options.depth}")
        self._target, self._options = target, options
        last = layer_tensors(target, target.num_layers - 1, options.intermediate)
        shapes = {name: tensor.shape for name, tensor in last.items()}
        self._config = layer_config(target, options.intermediate)
        self.net = MtpNet(self._config, [shapes], MtpForm()).to(target.embedding.device)
        (module,) = self.net.modules_by_depth
        begin_as(module.block, last)
        begin_as(module.norm, {"weight": target.final_norm})
        _begin_in_the_stream(module, target.final_norm)
        self._vocabulary = LossVocabulary(target.token_ranks, options.loss_vocabulary)
        self._draft_tokens = DraftTokens.choose(target, options.draft_vocabulary)
        self.feature_layers = (target.num_layers,)
        self.depth = options.depth

    def loss(self, batch: Batch, generator: torch.Generator | None = None) -> Loss:
        windows = Windows.of(batch.windows(self.depth))
        cache, device = GrowingCache(1), batch.ids.device
        # Step 0, for every row that has one before it: the row of a first token would lack its hidden state.
        fed = (batch.previous >= 0).nonzero()[:, 0]
        states = batch.features[self._target.num_layers][batch.previous[fed]].float()
        place = torch.full_like(batch.ids, -1)
        place[fed] = torch.arange(len(fed), device=device)
        anchors = windows.rows[:, 0]
        onward, read = self._step(batch, fed, states, batch.seen[fed][:, fed], cache, place[anchors])
        made = [read]
        mask, own = batch.seen[anchors][:, fed], torch.eye(len(anchors), dtype=torch.bool, device=device)
        for step in range(1, self.depth):
            mask = torch.cat((mask, own), dim=1)
            # A window that has ended goes on with any row: nobody else sees it, and it is not judged.
            onward, read = self._step(batch, windows.rows[:, step].clamp(min=0), onward, mask, cache)
            made.append(read)
        options, tokens = self._options, self._vocabulary.tokens(windows.tokens(batch), generator)
        kept, stacked = self._draft_tokens.judged(generator), torch.stack(made, 1)
        return windowed_loss(self._target, batch, windows, stacked, options.decay, options.soft, tokens, kept)

    def _step(
        self, batch: Batch, rows: torch.Tensor, hidden: torch.Tensor, mask: torch.Tensor, cache: GrowingCache,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """The module at the tokens of ``rows`` [m]: what the next step gets, and what the head reads, [m, d] each.

        Of the ``wanted`` among them alone, int64 [w], if given: [w, d].
        """
        sparse = SparseMask(mask, ATTEND_AT_ONCE)
        embedded = F.embedding(batch.ids[rows], self._target.embedding).float()
        made: tuple[torch.Tensor, torch.Tensor] = self.net.step(
            0, hidden, embedded, batch.positions[rows], sparse, cache, wanted
        )
        cache.advance(len(rows))
        return made

    def save(self, directory: Path, note: Mapping[str, Any]) -> None:
        """In DeepSeek's layout: the module is layer n of a model of which nothing else is stored."""
        rename = {}
        for name in self.net.state_dict():
            inner = name.removeprefix("modules_by_depth.0.").removeprefix("block.")
            inner = f"shared_head.{inner}" if inner == "norm.weight" else inner
            rename[name] = f"model.layers.{self._target.num_layers}.{inner}"
        config = {**self._config, "num_nextn_predict_layers": 1, **self._draft_tokens.config()}
        config["spec_planner"] = dict(note)
        write_checkpoint(directory, self.net, config, rename=rename)


@torch.no_grad()
def _begin_in_the_stream(module: MtpModule, final_norm: torch.Tensor) -> None:
    """Let u be what enters the target's last layer, as far as h tells, and a little of the embedding.

    h is that stream's end, divided by its rms and multiplied by ``final_norm``; dividing by it again leaves a direction
    of the stream, and the size is chosen to be what the copied layer adds. With u of size 1 the layer's own output,
    ten times that, would drown what it reads; making the layer's weights smaller instead would let the steps of Adam,
    which do not depend on the size of weights, wreck the copy.
    """
    one = torch.eye(len(final_norm), device=final_norm.device)
    module.eh_proj.weight.copy_(torch.cat((one, one), dim=1))
    rows = torch.randn(_ROWS, len(final_norm), generator=torch.Generator().manual_seed(0)).to(final_norm.device)
    positions, mask = torch.arange(_ROWS, device=rows.device), causal_mask(_ROWS, 0, rows.device)
    added = module.block(rows, positions, mask, GrowingCache(1)) - rows
    size = _REAL_TO_RANDOM * float(added.square().mean(-1).sqrt().median())
    norm = final_norm.float()
    rms = norm.square().mean().sqrt()
    module.hnorm.weight.copy_(size * rms * norm / (norm.square() + (0.1 * rms) ** 2))  # 1 / norm, where it is not tiny
    module.enorm.weight.fill_(_EMBEDDING_SHARE * size)
