"""Which tokens a drafter will be able to say that borrows the target's head (``drafters/draft_head.py``).

    logits over V   ──columns of the kept tokens──▶   the likeliest of them: what the drafter will say
    a true token that is not kept                     is wrong, whatever the drafter thinks

The loss is over all tokens, kept or not, and no parameter depends on which are: a run that began without the choice is
stored with one when it is resumed. What is judged is what the stored drafter will do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..draft_head import FIELD
from .batch import TargetWeights
from .common import frequent_tokens


class DraftTokens:
    """The tokens kept.

    Attributes:
        ids: int64 [V_d], ascending; None: all.
    """

    def __init__(self, ids: Tensor | None) -> None:
        self.ids = ids

    @staticmethod
    def choose(target: TargetWeights, size: int) -> DraftTokens:
        """The ``size`` tokens that the target's answers say most; 0: all.

        Raises:
            ValueError: ``size`` is negative.
        """
        if size < 0:
            raise ValueError(f"option draft_vocabulary must be 0, for all tokens, or more, got {size}")
        if not 0 < size < len(target.head):
            return DraftTokens(None)
        return DraftTokens(frequent_tokens(target.token_ranks, size).to(target.head.device))

    def to(self, device: torch.device) -> DraftTokens:
        return DraftTokens(None if self.ids is None else self.ids.to(device))

    def config(self) -> dict[str, Any]:
        """What is stored of them."""
        return {} if self.ids is None else {FIELD: self.ids.tolist()}

    def judged(self, generator: torch.Generator | None) -> Tensor | None:
        """What the drafter may say where it is judged, as ``ids``; in training, of the loss's own tokens, all."""
        return self.ids if generator is None else None


def likeliest(logits: Tensor, kept: Tensor | None) -> Tensor:
    """Indices int64 [...] of the highest of logits [..., m] among ``kept``, int64 ascending; None: among all.

    Of equals the lowest, as when a draft is drawn.
    """
    if kept is None:
        return logits.max(dim=-1).indices
    return kept[logits[..., kept].max(dim=-1).indices]
