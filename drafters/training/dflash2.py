"""DFlash 2 learns (inco.ai, 2026): DFlash with local mixing, and a selector that learns to choose among 16 candidates.

    slot j        logits as in DFlash, and their cross-entropy
    candidates    its 16 likeliest tokens, in evaluation of those that the drafter keeps; where x(t + j) is not among
                  them it takes the place of the last
    selector      scores them given the token before, x(t + j − 1) as it was said; + cross-entropy among the 16

It starts as DFlash to the bit: mixing as the identity, and the selector's H at zero. Its codebooks are not drawn from
N(0, 0.02) as published ones are: three factors that small give H and codes no gradient to speak of. They start as
random projections of the target's embedding and head, twenty times larger, so that H learns at full speed at once.

How the published drafters were trained is not known; this is speculators' recipe. What is judged is what the drafter
will do: the selector's best candidate after the true token before, and wrong where the true one is no candidate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..nets.dflash2_net import DFlash2Net, DFlash2Sizes
from ..nets.dflash_net import parse_dflash_config
from .batch import TargetWeights
from .dflash import DFlashOptions, DFlashTrainee
from .rows import check_options

_CODE_SIZE = 0.4  # standard deviation of the codebooks' entries at the start


@dataclass(frozen=True)
class DFlash2Options(DFlashOptions):
    """As ``DFlashOptions``, and

    Attributes:
        rank: size of the selector's codes; it has two per token of the vocabulary.
        top_k: candidates per slot.
        group: channels that share one dynamic number of the local mixing.
        selector_weight: of the selector's cross-entropy beside the slots' own.
    """

    rank: int = 32
    top_k: int = 16
    group: int = 16
    selector_weight: float = 1.0


class DFlash2Trainee(DFlashTrainee):
    """See ``trainee.Trainee``."""

    Options = DFlash2Options
    _options: DFlash2Options
    net: DFlash2Net

    def __init__(self, target: TargetWeights, options: DFlash2Options) -> None:
        check_options(rank=options.rank, top_k=options.top_k, group=options.group)
        width = target.embedding.shape[1]
        if width % options.group:
            raise ValueError(f"option group is {options.group}: it must divide the target's hidden size, {width}")
        super().__init__(target, options)
        selector = self.net.candidate_selector
        with torch.no_grad():
            selector.hidden_projection.weight.zero_()
            selector.predecessor_codebook.copy_(_codes(target.embedding, options.rank))
            selector.successor_codebook.copy_(_codes(target.head, options.rank))

    def _make_net(self) -> DFlash2Net:
        options = self._options
        self._config["architectures"] = ["DFlash2DraftModel"]
        self._config["dflash_config"] |= {
            "conv_kernel_size": 2,
            "conv_group_size": options.group,
            "selector_rank": options.rank,
            "selector_top_k": options.top_k,
        }
        return DFlash2Net(
            parse_dflash_config(self._config), DFlash2Sizes(2, options.group, options.rank, options.top_k)
        )

    def _choose(self, hidden: Tensor, logits: Tensor, ids: Tensor, labels: Tensor,
                vocabulary: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:  # fmt: skip
        selector = self.net.candidate_selector
        # Likeliest first; places in ``vocabulary``.
        candidates = selector.likeliest(logits) if kept is None else kept[selector.likeliest(logits[..., kept])]
        missing = (candidates != labels[..., None]).all(-1)
        candidates[..., -1] = torch.where(missing, labels, candidates[..., -1])
        codes = selector.codes(ids[:, :-1])
        gated = selector.gated(hidden, vocabulary[candidates])
        scores = logits.gather(-1, candidates) + (gated * codes[..., None, :]).sum(-1)
        places = (candidates == labels[..., None]).long().argmax(-1)
        entropy = F.cross_entropy(scores.flatten(0, 1), places.flatten(), reduction="none").view(places.shape)
        return self._options.selector_weight * entropy, (scores.argmax(-1) == places) & ~missing


def _codes(table: Tensor, rank: int) -> Tensor:
    """[V, rank] from [V, d]: tokens that are alike get codes that are alike. What all rows share tells none apart."""
    apart = table.float() - table.float().mean(0)
    codes = apart @ torch.randn(table.shape[1], rank).to(table.device)
    return codes * (_CODE_SIZE / codes.std())
