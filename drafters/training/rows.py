"""What trainees share: windows taken once, the tokens of a loss, sizes from the target; and EAGLE's rows over a batch.

A row of an EAGLE network belongs to the token that completes it and reads the feature one place before that token:

    base     token x(j)        feature f(j − 1)                 position j − 1        every j but 0
    chain    token x(t + s)    what step s − 1 put out          position t + s − 1    s = 1, 2, … behind the anchor x(t)

    step 0   the anchor's base row: true features alone                                       → a guess of x(t + 1)
    step s   the chain row of x(t + s): it sees base rows up to the anchor's, and its chain   → a guess of x(t + s + 1)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nets.eagle1_net import Eagle1Net
from ..nets.eagle3_net import Eagle3Net
from ..nets.layers import LayerSizes, SparseMask
from .batch import Batch, TargetWeights
from .common import GrowingCache
from .target_layers import ATTEND_AT_ONCE, layer_config


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of a batch, each once: answers that begin alike have many in common.

    Attributes:
        rows: int64 [w, depth + 1], as ``Batch.windows`` gives them.
        counts: int64 [w], how often each was given.
        places: int64 [anchors], which of them each given window is.
    """

    rows: Tensor
    counts: Tensor
    places: Tensor

    @staticmethod
    def of(given: Tensor) -> Windows:
        rows, places, counts = given.unique(dim=0, return_inverse=True, return_counts=True)
        return Windows(rows, counts, places)

    @property
    def judged(self) -> Tensor:
        """bool [w, depth], False past the end of an answer."""
        return self.rows[:, 1:] >= 0

    def tokens(self, batch: Batch) -> Tensor:
        """Ids int64 [w, depth + 1]; of no meaning past the end of an answer."""
        return batch.ids[self.rows.clamp(min=0)]


def choose_windows(windows: Tensor, limit: int, generator: torch.Generator | None) -> Tensor:
    """At most ``limit`` windows (0: all of them), drawn by lot; evenly spaced without ``generator``."""
    count = len(windows)
    if not 0 < limit < count:
        return windows
    if generator is None:
        chosen = torch.arange(limit) * count // limit
    else:
        chosen = torch.randperm(count, generator=generator, device=generator.device)[:limit]
    return windows[chosen.to(windows.device)]


def roll_out(net: Eagle1Net | Eagle3Net, batch: Batch, hidden: Tensor, windows: Tensor, steps: int) -> Iterator[Tensor]:
    """What the steps 0, 1, … behind each anchor put out, [w, d] each, tokens given and features fed back.

    Args:
        hidden: [n, d], what rows read of the true feature at each row of the batch.
        windows: int64 [w, at least steps], the anchors and what follows them.
    """
    completed = (batch.previous >= 0).nonzero()[:, 0]  # batch rows that complete a base row
    base_row = torch.zeros_like(batch.ids)
    base_row[completed] = torch.arange(len(completed), device=completed.device)
    anchors = base_row[windows[:, 0]]
    positions, seen = batch.positions[completed] - 1, batch.seen[completed][:, completed]
    cache = GrowingCache(net.num_layers)
    inputs = hidden[batch.previous[completed]]
    output: Tensor = net(batch.ids[completed], inputs, positions, SparseMask(seen, ATTEND_AT_ONCE), cache, anchors)
    yield output
    visible, chain = seen[anchors], torch.eye(len(anchors), dtype=torch.bool, device=seen.device)
    for step in range(1, steps):
        visible = torch.cat((visible, chain), dim=1)
        tokens = batch.ids[windows[:, step].clamp(min=0)]
        output = net(tokens, output, positions[anchors] + step, SparseMask(visible, ATTEND_AT_ONCE), cache)
        yield output


def head_logits(hidden: Tensor, head: Tensor) -> Tensor:
    """hidden [..., d] by rows [m, d] of a head → float32 [..., m].

    Always a float32 product: logits reach 30 and more, where bfloat16 has steps of a quarter of a nat.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        return F.linear(hidden.float(), head.float())


class LossVocabulary:
    """The tokens a softmax is taken over while learning: a whole vocabulary costs more than a small network.

    Half of them are those the target says most; the other half are drawn anew for every batch, so that in time every
    token is held down. Evaluation takes the whole vocabulary.
    """

    def __init__(self, ranks: Tensor, size: int) -> None:
        """``ranks`` int64 [V], the likelier said, the higher; ``size`` 0: always the whole vocabulary."""
        self._total, self._drawn = len(ranks), size - size // 2
        self._frequent = ranks.argsort(descending=True, stable=True)[: size // 2] if 0 < size < len(ranks) else None

    def tokens(self, needed: Tensor, generator: torch.Generator | None) -> Tensor:
        """Ids, int64 [m] ascending, ``needed`` [...] among them."""
        if self._frequent is None or generator is None:
            return torch.arange(self._total, device=needed.device)
        drawn = torch.randint(self._total, (self._drawn,), generator=generator, device=generator.device)
        parts = (self._frequent.to(needed.device), drawn.to(needed.device), needed.flatten())
        return torch.cat(parts).unique()


def head_rows(head: Tensor, tokens: Tensor) -> Tensor:
    """Rows of a head [V, d] for ascending ids; the head itself where that is all of them."""
    return head if len(tokens) == len(head) else head[tokens]


def drafter_config(target: TargetWeights, intermediate: int) -> dict[str, Any]:
    """What a drafter's ``config.json`` says of its layers: the target's sizes and rotary positions, without its biases.

    Args:
        intermediate: inner size of the feed-forward block; 0 takes the target's.
    """
    config, sizes = layer_config(target), LayerSizes.from_config(target.config, ())
    return config | {
        "vocab_size": len(target.embedding),
        "intermediate_size": intermediate or sizes.intermediate_size,
        "num_key_value_heads": sizes.num_kv_heads,
        "head_dim": sizes.head_dim,
        "attention_bias": False,
        "mlp_bias": False,
    }


def take_over(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Start parameters from the ``tensors`` that have their name and shape."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in tensors and tensors[name].shape == parameter.shape:
                parameter.copy_(tensors[name])


def check_options(**at_least_one: int) -> None:
    """Raise ``ValueError`` for the first option that is below 1."""
    for name, value in at_least_one.items():
        if value < 1:
            raise ValueError(f"option {name} must be at least 1, got {value}")


def check_feature_layers(layers: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    """``layers``; raises ``ValueError`` where the target has no such layer outputs."""
    if not all(1 <= layer <= num_layers for layer in layers) or len(set(layers)) != len(layers):
        raise ValueError(
            f"option feature_layers is {','.join(map(str, layers))}: name different hidden states from 1 to "
            f"{num_layers}, the target's number of layers"
        )
    return layers
