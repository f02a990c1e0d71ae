"""Pieces that several losses share."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F


class GrowingCache:
    """Stands in for ``nets.layers.KVCache`` where gradients must flow: rows are kept by joining, not by writing.

    ``write`` and ``advance`` as there; slots are rows in the order in which they were written.
    """

    def __init__(self, num_layers: int) -> None:
        self.length = 0
        self._kept: list[tuple[Tensor, Tensor] | None] = [None] * num_layers

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """n rows [n, g, e] → all keys and values in view, [g, length + n, e]."""
        new = keys.transpose(0, 1), values.transpose(0, 1)
        kept = self._kept[layer]
        if kept is not None:
            new = torch.cat((kept[0][:, : self.length], new[0]), 1), torch.cat((kept[1][:, : self.length], new[1]), 1)
        self._kept[layer] = new
        return new

    def advance(self, count: int) -> None:
        self.length += count


def soft_cross_entropy(logits: Tensor, law_logits: Tensor) -> Tensor:
    """−Σ p log q [...] in nats, p from ``law_logits`` and q from ``logits``, [..., V] both."""
    return -(law_logits.softmax(-1) * F.log_softmax(logits.float(), -1)).sum(-1)


def frequent_tokens(ranks: Tensor, size: int) -> Tensor:
    """The ``size`` ids of the highest ``TargetWeights.token_ranks``, ascending, int64; of equals the lowest."""
    order = torch.argsort(ranks, descending=True, stable=True)[:size]
    return order.sort().values


def write_checkpoint(
    directory: Path, net: nn.Module, config: Mapping[str, Any], extra: Mapping[str, Tensor] | None = None,
    rename: Mapping[str, str] | None = None, file: str = "model.safetensors",
) -> None:  # fmt: skip
    """``config.json`` and the parameters of ``net`` in float16, with ``extra`` tensors as they are."""
    names = rename or {}
    tensors = {
        names.get(name, name): value.detach().to("cpu", torch.float16) for name, value in net.state_dict().items()
    }
    tensors |= {name: value.cpu() for name, value in (extra or {}).items()}
    save_file({name: value.contiguous() for name, value in tensors.items()}, directory / file, {"format": "pt"})
    with (directory / file).open("rb") as stored:
        os.fsync(stored.fileno())
    text = re.sub(
        r"\[[\d\s,-]+\]", lambda numbers: "".join(numbers[0].split()).replace(",", ", "), json.dumps(config, indent=2)
    )
    (directory / "config.json").write_text(text + "\n", encoding="utf-8")  # lists of numbers in one line each
