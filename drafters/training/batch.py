"""What a drafter in training is shown, and what comes of it.

The target has answered some prompts. Its tokens and hidden states are rows; answers to one prompt, and prompts about
one scene, share the rows of what they have in common, so a batch is a forest and a *path* through it is one answer
with its prompt:

    path      x0 … x(s−1) | x(s)   x(s+1)  …  x(L−1)
              prompt        answer, as the target wrote it
    window    of the anchor x(t):  rows of  x(t), x(t+1), …, x(t+K);    t = s … L − 2

While decoding, the anchor has been said and not yet read by the target: hidden states are known up to x(t−1), and the
draft at depth k = 1 … K is a guess of x(t+k). What a drafter may be shown in a window follows from that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, eq=False)
class Path:
    """One answer: ``rows`` int64 [L] of its tokens from position 0 on, the target's own from index ``answer`` on."""

    rows: Tensor
    answer: int


@dataclass(frozen=True, eq=False)
class Batch:
    """n rows.

    Attributes:
        ids, positions: int64 [n].
        previous: int64 [n], the row of the token before on the path; −1 at position 0.
        seen: bool [n, n]; row i sees row j where j is i itself or before it on its path.
        features: hidden states [n, d] by Hugging Face ``hidden_states`` index; the last is after the final norm.
    """

    ids: Tensor
    positions: Tensor
    previous: Tensor
    seen: Tensor
    features: Mapping[int, Tensor]
    paths: Sequence[Path]

    def windows(self, depth: int) -> Tensor:
        """Rows int64 [anchors, depth + 1] of every anchor and what follows it; −1 past the end of an answer.

        Every window has its first draft: anchors at the very end are left out.
        """
        found = []
        for path in self.paths:
            padded = F.pad(path.rows, (0, depth), value=-1).unfold(0, depth + 1, 1)  # [L, depth + 1]
            found.append(padded[path.answer : len(path.rows) - 1])
        return torch.cat(found)

    def stacked(self, layers: Sequence[int]) -> Tensor:
        """[n, len(layers), d], as ``Target`` hands features to drafters."""
        return torch.stack([self.features[layer] for layer in layers], dim=1)


@dataclass(frozen=True, eq=False)
class TargetWeights:
    """What of the target a drafter in training reads; nothing of it is ever changed.

    Attributes:
        name: for cards and messages.
        config: its ``config.json``.
        embedding, head: [V, d]; the same tensor where they are tied.
        final_norm: weight [d] of the norm before the head.
        layer: number → tensors of that decoder layer by their names inside it (``self_attn.q_proj.weight``).
        token_counts: int64 [V], how often each token stands in the answers of the training split.
        prompt_counts: the same of the prompts of these answers; None where none were counted.
    """

    name: str
    config: Mapping[str, Any]
    embedding: Tensor
    head: Tensor
    final_norm: Tensor
    layer: Callable[[int], Mapping[str, Tensor]]
    token_counts: Tensor
    prompt_counts: Tensor | None = None

    @property
    def token_ranks(self) -> Tensor:
        """int64 [V], the higher, the likelier a plan says the token: how often answers do, then how often prompts do.

        A plan to come speaks of the things in its prompt, and those that no answer named yet stand in some prompt.
        """
        if self.prompt_counts is None:
            return self.token_counts
        return self.token_counts * (int(self.prompt_counts.max()) + 1) + self.prompt_counts

    @property
    def num_layers(self) -> int:
        return int(self.config["num_hidden_layers"])


@dataclass(frozen=True, eq=False)
class Loss:
    """What one batch came to.

    Attributes:
        sum: scalar to differentiate, a sum over ``count`` terms.
        right: bool [anchors, depth]; the drafter's likeliest token at each depth is the target's, all before it given.
        judged: bool [anchors, depth]; False past the end of an answer.
    """

    sum: Tensor
    count: float
    right: Tensor
    judged: Tensor


@dataclass
class Score:
    """Sums over batches of what greedy chains would have won.

    Attributes:
        reached: per depth k, anchors at which the k drafts up to it are all right; judged: anchors that have it.
    """

    reached: Tensor | None = None
    judged: Tensor | None = None
    anchors: int = 0

    def add(self, loss: Loss) -> None:
        leading = (loss.right & loss.judged).long().cumprod(1).sum(0)
        judged = loss.judged.long().sum(0)
        self.reached = leading if self.reached is None else self.reached + leading
        self.judged = judged if self.judged is None else self.judged + judged
        self.anchors += len(loss.right)

    @property
    def acceptance_length(self) -> float:
        """Tokens per pass of greedy chains of full depth, every anchor counted alike: 1 + E[leading right drafts]."""
        return 1.0 + float(self.reached.sum()) / max(self.anchors, 1) if self.reached is not None else 1.0

    @property
    def by_depth(self) -> list[float]:
        """P(the first k drafts are right), k = 1, 2, …, among the anchors that have k tokens after them."""
        if self.reached is None or self.judged is None:
            return []
        return [int(r) / max(int(j), 1) for r, j in zip(self.reached, self.judged, strict=True)]
