"""DFlash: all tokens of a block are guessed in one pass of a small network that reads the target's hidden states.

    committed   x0 … x(s−1)           fused hidden states of each: keys and values in the draft cache, written once
    anchor      x(s)                  block slot 0, with its embedding; it has no hidden state yet
    masks       slots 1 … B − 1       slot j guesses x(s+j): its own position, no shift (some drafters are trained with
                                      a shift of one; then slots 0 … B − 1 guess x(s+1) … x(s+B))
    stem        x(s) … x(s+m)         m forced tokens: rows with their embeddings before and up to the anchor, which is
                                      x(s+m) then; B − 1 masks follow it as ever

A slot does not know what stands in the other slots, so drafts are chains of independent draws, q recorded for each, or
a tree over all the marginals (DDTree, 2604.12989; ``tree_growth/marginals.py``). The block keeps its trained width
however small the budget: the number of masks is visible to the network, so answers are cut, not masks.

Forced tokens have no hidden states before the target has seen them. The other choice would have been to leave them out
and let the block see a hole of m places; as rows they are seen, in the one form in which the network knows tokens
without a hidden state: as it knows the anchor. Either way a draft is a function of committed context and stem alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from spec_planner.decoding.contracts import DrafterRequirements, DraftSampler, Incompatible, Target
from spec_planner.decoding.draft_tree import DraftTree

from .compiled.base import Compiling
from .compiled.dflash import CompiledDFlash
from .draft_head import DraftHead, read_draft_tokens
from .draft_net import BlockNet
from .graphs.net_graphs import Compile
from .nets.dflash_net import DFlashNet, load_dflash
from .nets.layers import as_borrowed, distinct_bytes
from .tree_growth.marginals import Shape, draft_from_marginals


class DFlashDrafter:
    """Drafts with a DFlash network.

    Args:
        embedding, head: the target's, [V, d] each; used where they lie.
        shape: "chain", "best-first", or rank paths, most valuable first (``tree_growth/static.py``).
        draft_tokens: what of ``head`` is read, a copy of these rows (``draft_head.py``); None: all.
        compiling: run the network as a graph; None: in torch.
    """

    name = "dflash"

    def __init__(self, net: DFlashNet, embedding: Any, head: Any, shape: Shape = "chain",
                 draft_tokens: Sequence[int] | None = None, compiling: Compiling | None = None) -> None:  # fmt: skip
        self._shape, config = shape, net.config
        size = (config.vocabulary_size, config.hidden_size)
        for what, lent in (("embedding", embedding), ("head", head)):
            if tuple(lent.shape) != size:
                raise Incompatible(
                    f"drafter {self.name!r} was made for a target whose {what} is {list(size)} but this one's is "
                    f"{list(lent.shape)}: use a drafter trained for this target"
                )
        self._embedding, self._head = as_borrowed(embedding), DraftHead(head, draft_tokens)
        self._net: BlockNet = net
        if compiling is not None:
            self._net = CompiledDFlash(net, self._head, compiling)
        self._cache = self._net.new_cache()
        layers = sorted(set(config.feature_layers))
        self._order = [layers.index(layer) for layer in config.feature_layers]
        self.requirements = DrafterRequirements(
            feature_layers=tuple(layers),
            vocabulary_size=config.vocabulary_size,
            hidden_size=config.hidden_size,
            borrows=("embedding", *self._head.borrows),
            draws_trees=shape != "chain",
        )

    @classmethod
    def load(cls, source: Path, target: Target, shape: Shape = "chain",
             compiler: Compile | None = None) -> DFlashDrafter:  # fmt: skip
        """A published directory for ``target``, in the type and on the device of the target's own embedding.

        Raises:
            CheckpointError: the directory cannot be used.
            Incompatible: it was made for another target.
        """
        embedding, head = as_borrowed(target.lend("embedding")), as_borrowed(target.lend("head"))
        net = load_dflash(source, embedding.dtype, embedding.device)
        kept = read_draft_tokens(source, target.info.vocabulary_size)
        return cls(net, embedding, head, shape, kept, Compiling.of(compiler, target.info))

    @property
    def network(self) -> str:
        """What runs its network, and in which precision; a certificate says it."""
        return f"{self._net.engine}, {self._net.precision}"

    @property
    def own_bytes(self) -> int:
        """Weights and draft cache that are this drafter's."""
        return self._net.num_bytes + self._head.own_bytes + self._cache.num_bytes

    @property
    def borrowed_bytes(self) -> int:
        """Weights of the target that this drafter uses and did not copy; a tied head counts once."""
        return distinct_bytes([self._embedding, *self._head.lent])

    def truncate(self, length: int) -> None:
        self._cache.truncate(length)

    @torch.inference_mode()
    def observe(self, committed_ids: Sequence[int], features: Any) -> None:
        if features is None:
            raise Incompatible(f"drafter {self.name!r} reads hidden states and got none: tap its feature_layers")
        place = self._net.place
        rows = torch.as_tensor(features)[:, self._order].to(device=place.device, dtype=place.dtype)
        self._net.follow(rows, self._cache)

    @torch.inference_mode()
    def draft(self, stem: Sequence[int], budget: int, sampler: DraftSampler) -> DraftTree:
        logits = self._head.spread(self._guess(stem, budget)[1])
        return draft_from_marginals(stem, list(logits), budget, self._cache.length, sampler, self._shape)

    def close(self) -> None:
        del self._net, self._cache, self._embedding, self._head

    def _guess(self, stem: Sequence[int], budget: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden [depth, d] of the slots that guess what follows ``stem``, as many as ``budget`` can use, and their
        logits float32 [depth, V_d], of the tokens kept."""
        config = self._net.config
        ids = [*stem, *[config.mask_token_id] * (config.block_size - 1)]
        rows = F.embedding(torch.tensor(ids, device=self._embedding.device), self._embedding).to(self._net.place.dtype)
        first, anchor = len(stem) - config.shift, len(stem) - 1
        asked = slice(first, min(first + budget, len(ids)))
        return self._net.guess(rows, self._cache, anchor, asked, self._head.weight, self._head.kept)
