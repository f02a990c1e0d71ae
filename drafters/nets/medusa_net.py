"""Medusa's heads (Cai et al., 2401.10774): each looks at one hidden state of the target and guesses a place further on.

    h(i)    the target's hidden state at token i, after the final norm: what its own head reads to predict x(i+1)
    head k  r = h + silu(W h + b), once per layer; logits = U r; predicts x(i+2+k), k = 0 … K − 1

Heads know nothing of each other, and nothing of the tokens between. Two forms are published: with a U of their own
[V, d], or without one (the older form), and then the target's head stands in for U. The weights of one do not work as
the other. Parameters have the names of the published files: ``{k}.{layer}.linear.weight``, ``{k}.{layers}.weight``.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from ..checkpoint import CheckpointError, load_strict, read_tensors
from .layers import DraftModule

# Files of heads alone, whole Medusa-2 models, and the same heads as vLLM stores them.
_BLOCK = re.compile(
    r"(?:(?:(?:model\.)?medusa_heads?\.)?(\d+)\.(\d+)\.linear|blocks\.(\d+)\.layers\.(\d+))\.(weight|bias)"
)
_OUTPUT = re.compile(r"(?:(?:(?:model\.)?medusa_heads?\.)?(\d+)\.\d+|lm_heads\.(\d+))\.weight")


class ResidualBlock(nn.Module):
    """x + silu(linear(x)); x [n, d]."""

    def __init__(self, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.silu(self.linear(x))


class MedusaNet(DraftModule, nn.ModuleList):
    """K heads, each a chain of residual blocks and, unless ``borrows_head``, an output matrix of its own."""

    def __init__(self, hidden_size: int, vocabulary_size: int, num_heads: int, num_layers: int = 1,
                 borrows_head: bool = False, bias: bool = True) -> None:  # fmt: skip
        heads = []
        for _ in range(num_heads):
            blocks: list[nn.Module] = [ResidualBlock(hidden_size, bias) for _ in range(num_layers)]
            if not borrows_head:
                blocks.append(nn.Linear(hidden_size, vocabulary_size, bias=False))
            heads.append(nn.Sequential(*blocks))
        super().__init__(heads)
        self.hidden_size, self.vocabulary_size, self.borrows_head = hidden_size, vocabulary_size, borrows_head

    def logits(self, hidden: torch.Tensor, heads: range, lent: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [len(heads), n, V] of the wanted heads at ``hidden`` [n, d]; ``lent``: the target's head [V, d]."""
        results = torch.stack([self[k](hidden) for k in heads])
        return F.linear(results, lent) if self.borrows_head else results


def load_medusa(source: Path, hidden_size: int, vocabulary_size: int, dtype: torch.dtype = torch.float32,
                device: torch.device | str = "cpu") -> MedusaNet:  # fmt: skip
    """Published heads: a directory or file of heads alone, or a whole Medusa-2 model, of which only they are read.

    How many heads and layers there are, and whether each has an output of its own, is read off the tensors: published
    configs name 2 heads where the file has 5. Published code repeats one block where a head has several layers, so a
    block that is stored once counts for all.

    Raises:
        CheckpointError: no heads, incomplete ones, or heads for another hidden size or vocabulary.
    """
    tensors = read_tensors(source, lambda name: bool(_BLOCK.fullmatch(name) or _OUTPUT.fullmatch(name)))
    blocks = {name: match for name in tensors if (match := _BLOCK.fullmatch(name))}
    outputs = {name: match for name in tensors if (match := _OUTPUT.fullmatch(name))}
    if not blocks:
        raise CheckpointError(
            f"{source} holds no Medusa heads: give the directory of medusa_lm_head, or a Medusa-2 model"
        )
    places: dict[str, str] = {}
    layers = 1
    for name, match in blocks.items():
        head, layer = match[1] or match[3], match[2] or match[4]
        layers = max(layers, int(layer) + 1)
        places[name] = f"{head}.{layer}.linear.{match[5]}"
    stored_after = [int(name.split(".")[-2]) for name, match in outputs.items() if match[1]]
    layers = max([layers, *stored_after])
    for name, match in outputs.items():
        places[name] = f"{match[1] or match[2]}.{layers}.weight"
    for name, place in list(places.items()):
        head, layer, *rest = place.split(".")
        for other in range(1, layers) if layer == "0" and rest[0] == "linear" else ():
            twin = ".".join((head, str(other), *rest))
            if twin not in places.values():
                tensors[f"{name} again {other}"], places[f"{name} again {other}"] = tensors[name], twin
    num_heads = 1 + max(int(place.split(".")[0]) for place in places.values())
    biased = any(place.endswith("bias") for place in places.values())
    with torch.device("meta"):
        net = MedusaNet(hidden_size, vocabulary_size, num_heads, layers, not outputs, biased).to(dtype)
    load_strict(net, tensors, places.__getitem__, source)
    return net.to(device).eval()
