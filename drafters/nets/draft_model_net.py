"""A small language model cut out of the target's own cloth: a few decoder layers between its embedding and its head.

    ids x(0) … x(i)   →  embedding (the target's)  →  layers of its sizes, with a KV cache of their own
                      →  final norm  →  head (the target's)  →  logits of x(i+1)

``DraftModelNet`` is the network; ``DraftModel`` keeps its context and offers as much of the ``Target`` contract as a
drafter needs that draws from a smaller model (``drafters/draft_model.py``). Parameters have Hugging Face's names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from spec_planner.decoding.contracts import PromptInput, Target, TargetInfo

from ..checkpoint import CheckpointError, load_strict, read_config, read_tensors
from ..draft_head import DraftHead, read_draft_tokens
from ..draft_net import ModelNet
from .layers import (
    DecoderLayer,
    DraftModule,
    KVCache,
    LayerSizes,
    Mask,
    RMSNorm,
    as_borrowed,
    causal_mask,
    distinct_bytes,
)
from .rope import Rope


class DraftModelNet(DraftModule):
    """Decoder layers and a final norm.

    Attributes:
        embedding: [V, d], borrowed from the target: no parameter of this module.
    """

    def __init__(self, config: Mapping[str, Any], names: Collection[str]) -> None:
        """From a Hugging Face config; ``names`` of the tensors say where there are biases and head norms.

        Raises:
            KeyError, TypeError, ValueError: the config lacks a number, or has one that no layer has.
        """
        super().__init__()
        self.sizes = LayerSizes.from_config(config, names)
        rope = Rope.from_config(config, self.sizes.head_dim)
        self.layers = nn.ModuleList(DecoderLayer(self.sizes, rope) for _ in range(int(config["num_hidden_layers"])))
        self.norm = RMSNorm(self.sizes.hidden_size, self.sizes.epsilon)
        self.embedding = torch.empty(0)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def new_cache(self) -> KVCache:
        """An empty cache in the type and on the device of the weights."""
        place = self.norm.weight
        return KVCache(
            len(self.layers), self.sizes.num_kv_heads, self.sizes.head_dim, dtype=place.dtype, device=place.device
        )

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, mask: Mask, cache: KVCache, wanted: torch.Tensor
                ) -> torch.Tensor:  # fmt: skip
        """ids, positions int64 [n] → what the head reads at the rows ``wanted``, int64 [w]: [w, d].

        ``mask``: bool [n, cache.length + n], which rows each row sees; None: all. n rows are added to ``cache``.
        """
        x = F.embedding(ids, self.embedding).to(self.norm.weight.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, positions, mask, cache, index, wanted if index == len(self.layers) - 1 else None)
        cache.advance(len(ids))
        result: torch.Tensor = self.norm(x)
        return result

    def read(self, ids: torch.Tensor, cache: KVCache, head: torch.Tensor) -> torch.Tensor:
        """See ``draft_net.ModelNet``."""
        start, count, device = cache.length, len(ids), ids.device
        mask = causal_mask(count, start, device) if count > 1 else None
        positions, last = torch.arange(start, start + count, device=device), torch.tensor([count - 1], device=device)
        return F.linear(self(ids, positions, mask, cache, last).to(head.dtype), head)


class DraftModel:
    """``net``, whose embedding has been set, before ``head``, and what it has read.

    ``info.context_length`` is the target's: the cache grows as it is used, and past the target's end nothing is said.
    """

    def __init__(self, net: ModelNet, head: DraftHead, name: str, context_length: int) -> None:
        self.net, self.head, self._cache = net, head, net.new_cache()
        self._info = TargetInfo(
            name=name,
            engine=net.engine,
            precision=net.precision,
            device=str(net.place.device),
            vocabulary_size=head.vocabulary.size,
            hidden_size=net.sizes.hidden_size,
            num_layers=net.num_layers,
            context_length=context_length,
            max_nodes=1,
            supports_tree=False,
            weight_bytes=net.num_bytes + head.own_bytes,
        )

    @staticmethod
    def load(source: Path, target: Target) -> DraftModel:
        """A distilled draft model for ``target``, in the type and on the device of the target's own embedding.

        Raises:
            CheckpointError: the checkpoint cannot be used, or was made for another target.
            Incompatible: the target lends no embedding or head.
        """
        source = Path(source)
        config, tensors = read_config(source), read_tensors(source)
        embedding = as_borrowed(target.lend("embedding"))
        names = {name: name.removeprefix("model.") for name in tensors}
        try:
            with torch.device("meta"):
                net = DraftModelNet(config, set(names.values())).to(embedding.dtype)
            made_for = int(config["vocab_size"]), net.sizes.hidden_size
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise CheckpointError(
                f"the config of the draft model in {source} lacks what a layer needs ({error!r}): use the config.json "
                f"that was stored with it"
            ) from error
        if made_for != tuple(embedding.shape):
            raise CheckpointError(
                f"the draft model in {source} was made for an embedding of {list(made_for)} and target "
                f"{target.info.name!r} has {list(embedding.shape)}: use one trained for this target"
            )
        load_strict(net, tensors, names.__getitem__, source, ignore=("*.inv_freq",))
        net.to(embedding.device).eval()
        net.embedding = embedding
        head = DraftHead(target.lend("head"), read_draft_tokens(source, len(embedding)))
        return DraftModel(net, head, source.name, target.info.context_length)

    @property
    def info(self) -> TargetInfo:
        return replace(self._info, kv_bytes=self._cache.num_bytes)

    @property
    def borrows(self) -> tuple[str, ...]:
        """What of the target's it reads where it lies."""
        return ("embedding", *self.head.borrows)

    @property
    def borrowed_bytes(self) -> int:
        """Bytes of it."""
        return distinct_bytes([self.net.embedding, *self.head.lent])

    @property
    def committed_length(self) -> int:
        return self._cache.length

    def truncate(self, length: int) -> None:
        self._cache.truncate(length)

    @torch.inference_mode()
    def extend(self, prompt: PromptInput) -> DraftModelOutput:
        """Read and keep ``prompt``; the result holds the logits after its last token."""
        ids = torch.tensor(prompt.ids, device=self.net.embedding.device)
        return DraftModelOutput(self.head.spread(self.net.read(ids, self._cache, self.head.weight)))

    def close(self) -> None:
        del self.net, self.head, self._cache


class DraftModelOutput:
    """Logits float32 [1, V] after the last token that was fed."""

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self._logits = logits

    def logits_row(self, node: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self._logits[node]
        return row
