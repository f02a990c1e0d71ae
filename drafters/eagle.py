"""EAGLE: a small network drafts from the target's own hidden states. EAGLE-1, -2, -3 and -3.1 are presets of one loop.

    position   0      1      …   t − 1    | t         t + 1
    features   f(0)   f(1)   …   f(t − 1) | unknown: the network's own output stands in
    tokens     x(1)   x(2)   …   anchor x(t) | draft   draft
    row        0      1      …   t − 1    | t         t + 1        predicts the token two places on

Row r reads the feature at r and the token at r + 1, so ids are shifted by one against features, and the anchor, which
the target has not read yet, completes the last row. Rows over true features stay in the drafter's KV cache; rows of a
draft are forgotten after it and run again when the target has read their tokens.

EAGLE-1 (2401.15077) and EAGLE-2 (2406.16858) share their weights: ``top_k=1`` drafts the chain, more the dynamic tree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spec_planner.decoding.contracts import DrafterRequirements, DraftSampler, Incompatible, Target
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.sampling import Law

from .checkpoint import CheckpointError, detect, load_strict, read_config, read_tensors
from .compiled.base import Compiling
from .compiled.eagle import CompiledEagle
from .draft_head import DraftHead, read_draft_tokens
from .draft_net import Cache, EagleNet
from .graphs.net_graphs import Compile
from .nets.eagle1_net import Eagle1Net
from .nets.eagle3_net import Eagle3Net
from .nets.layers import as_borrowed, causal_mask, distinct_bytes, is_copy, tree_mask
from .tree_growth.dynamic import Start, chain_shape, grow_likeliest, grow_shape, sampled_shape
from .vocab_map import VocabularyMap

Net = Eagle1Net | Eagle3Net
_RUN_AT_ONCE = 32  # committed rows wait for the next draft's pass, but a prompt is run as it comes, chunk by chunk
_FAMILIES: dict[str, type[Net]] = {"eagle1": Eagle1Net, "eagle3": Eagle3Net}
_IGNORED = ("*rotary_emb.inv_freq", "verifier_norm.weight", "verifier_lm_head.weight")


class EagleDrafter:
    """Drafts with ``net``, whose embedding and head have been set.

    At T = 0, and at T > 0 under rules that do not read draft laws, ``top_k`` above 1 grows the dynamic tree. Under
    rules that read them it samples a tree of a fixed shape and records its laws; rules for chains refuse it.

    Args:
        feature_layers: Hugging Face ``hidden_states`` indices, in the order the network reads them.
        vocabulary: draft ids among the target's.
        top_k: children per node and nodes per level; 1 drafts chains.
        depth: most levels of a tree behind the stem; a chain is as long as its budget.
        borrowed: weights lent by the target.
    """

    def __init__(self, net: EagleNet, feature_layers: Sequence[int], vocabulary: VocabularyMap, top_k: int = 1,
                 depth: int = 8, borrowed: Sequence[str] = ()) -> None:  # fmt: skip
        if top_k < 1 or depth < 1:
            raise ValueError(f"EAGLE needs top_k and depth of at least 1, got {top_k} and {depth}")
        self.name = net.kind  # EAGLE-2 is EAGLE-1 with a tree
        self._net, self._vocabulary, self._top_k, self._depth = net, vocabulary, top_k, depth
        tapped = sorted(set(feature_layers))
        self._order = [tapped.index(layer) for layer in feature_layers]
        self.requirements = DrafterRequirements(
            feature_layers=tuple(tapped),
            vocabulary_size=vocabulary.size,
            hidden_size=net.target_hidden_size,
            borrows=tuple(borrowed),
            draws_trees=top_k > 1,
        )
        self._device, self._dtype = net.embedding.device, net.embedding.dtype
        self._cache = net.new_cache()
        self._features = torch.zeros((0, net.hidden_size), dtype=self._dtype, device=self._device)  # grows by doubling
        self._ids: list[int] = []
        self._ahead: int | None = None  # the anchor that completed the last row, where that row has been run
        self._last = self._features[:0]  # and what it put out, [1, d],
        self._after = np.zeros(0, np.float32)  # and its logits [V_d]

    @staticmethod
    def load(directory: Path, target: Target, top_k: int = 1, depth: int = 8,
             feature_layers: Sequence[int] | None = None, compiler: Compile | None = None,
             ) -> EagleDrafter:  # fmt: skip
        """Load a published checkpoint (SafeAILab, speculators, SpecForge, ModelOpt) for ``target``.

        Args:
            feature_layers: Hugging Face indices to read instead of those the checkpoint names: converted checkpoints
                have been published that are off by one.
            compiler: run the network as a graph (``compiled/``); None: in torch.

        Raises:
            CheckpointError: the checkpoint is no complete EAGLE drafter, or not one for such a target.
            Incompatible: the target does not lend what the drafter borrows.
        """
        directory = Path(directory)
        kind = detect(directory)
        if kind not in _FAMILIES:
            raise CheckpointError(f"{directory} holds a drafter of kind {kind!r}: load it as such, not as EAGLE")
        family, config, tensors = _FAMILIES[kind], read_config(directory), read_tensors(directory)
        names = {_rename(name): name for name in tensors}
        apart = ("embed_tokens.weight", "d2t", "t2d", *(("lm_head.weight",) if kind == "eagle1" else ()))
        copies = {name: tensors[names[name]] for name in apart if name in names}
        size = target.info.vocabulary_size
        try:
            with torch.device("meta"):
                net = family(config, names)
            if net.vocabulary_size != size:
                raise ValueError(f"it was made for a vocabulary of {net.vocabulary_size} and the target has {size}")
            layers = feature_layers or family.feature_layers(config, target.info.num_layers)
            if len(layers) != net.num_features:
                raise ValueError(f"it reads {net.num_features} feature layers, {len(layers)} were named")
            vocabulary = VocabularyMap.from_checkpoint(
                copies.get("d2t"), copies.get("t2d"), net.draft_vocabulary_size, size
            )
        except (KeyError, TypeError, ValueError) as error:
            reason = f"config.json lacks {error}" if isinstance(error, KeyError) else str(error)
            raise CheckpointError(
                f"{directory} is no EAGLE drafter for target {target.info.name!r}: {reason}"
            ) from error
        borrowed = _share_weights(net, copies, target, directory)
        kept = read_draft_tokens(directory, size, _reads_a_whole_head(net))
        if kept is not None:
            head = DraftHead(net.head, kept)
            net.head, vocabulary = head.weight, head.vocabulary
            borrowed = [name for name in borrowed if name != "head" or head.borrows]
        net.to(net.embedding.dtype)
        load_strict(net, tensors, _rename, directory, ignore=[*_IGNORED, *(names[name] for name in copies)])
        net.to(net.embedding.device).requires_grad_(False)
        compiling = Compiling.of(compiler, target.info)
        asked = net if compiling is None else CompiledEagle(net, "head" in borrowed, compiling)
        return EagleDrafter(asked, layers, vocabulary, top_k, depth, borrowed)

    @property
    def network(self) -> str:
        """What runs its network, and in which precision; a certificate says it."""
        return f"{self._net.engine}, {self._net.precision}"

    @property
    def own_bytes(self) -> int:
        """Memory of the drafter alone: weights, KV cache and kept features, now."""
        own = [tensor for name, tensor in self._shared.items() if name not in self.requirements.borrows]
        return self._net.num_bytes + self._cache.num_bytes + distinct_bytes([self._features, *own])

    @property
    def borrowed_bytes(self) -> int:
        """Memory of weights that are read where the target holds them."""
        return distinct_bytes([tensor for name, tensor in self._shared.items() if name in self.requirements.borrows])

    @property
    def _shared(self) -> dict[str, torch.Tensor]:
        return {"embedding": self._net.embedding, "head": self._net.head}

    @torch.inference_mode()
    def truncate(self, length: int) -> None:
        if length < len(self._ids):
            del self._ids[length:]
            self._cache.truncate(max(length - 1, 0))  # the last row lacks its token again
            self._ahead = None

    @torch.inference_mode()
    def observe(self, committed_ids: Sequence[int], features: Any) -> None:
        if not len(committed_ids):
            return
        if features is None:
            raise Incompatible(f"drafter {self.name!r} needs hidden states and got none: tap its feature_layers")
        rows = torch.as_tensor(features)[:, self._order].to(device=self._device, dtype=self._dtype)
        self._keep(self._net.fuse(rows))
        if self._ahead != committed_ids[0]:
            self._cache.truncate(max(len(self._ids) - 1, 0))
        self._ahead = None
        self._ids.extend(committed_ids)
        if len(self._ids) - 1 - self._cache.length >= _RUN_AT_ONCE:
            self._run_committed(self._ids[self._cache.length + 1 :], slice(0))

    @torch.inference_mode()
    def draft(self, stem: Sequence[int], budget: int, sampler: DraftSampler) -> DraftTree:
        length = len(self._ids)
        # Without a guess; its label also says whether the rule will read the laws.
        bare = sampler.tree(stem, range(-1, len(stem) - 1), [*map(Law.point, stem[1:]), None])
        if not length:
            return bare
        if self._ahead != stem[0]:
            self._cache.truncate(length - 1)
            rest = [*self._ids[self._cache.length + 1 :], stem[0]]
            self._last, (self._after,) = self._run_committed(rest, slice(-1, None))
            self._ahead = stem[0]
        rows = _DraftRows(self._net, self._cache, self._vocabulary, self._last, self._after)
        try:
            start = Start(stem, length, rows.follow(stem[1:]))
            depth = min(self._depth, budget)
            if self._top_k > 1 and not bare.proposal.needs_laws:
                return grow_likeliest(start, budget, self._top_k, depth, rows.expand, sampler)
            shape = chain_shape(budget) if self._top_k == 1 else sampled_shape(budget, self._top_k, depth)
            return grow_shape(start, shape, rows.expand, sampler)
        finally:
            self._cache.truncate(length)

    def close(self) -> None:
        del self._net, self._cache, self._features

    def _keep(self, fused: torch.Tensor) -> None:
        """Store row inputs [n, d] behind those of the committed context."""
        start, end = len(self._ids), len(self._ids) + len(fused)
        if end > len(self._features):
            larger = self._features.new_zeros((max(end, 2 * len(self._features), 64), self._net.hidden_size))
            larger[:start] = self._features[:start]
            self._features = larger
        self._features[start:end] = fused

    def _run_committed(self, tokens: Sequence[int], scored: slice) -> tuple[torch.Tensor, NDArray[np.float32]]:
        """Run the next rows over true features, completed by ``tokens``; what the last puts out, [1, d], and logits."""
        start, end = self._cache.length, self._cache.length + len(tokens)
        mask = causal_mask(len(tokens), start, self._device) if len(tokens) > 1 else None
        hidden, positions = self._features[start:end], range(start, end)
        output, logits = self._net.step(tokens, hidden, positions, mask, self._cache, scored)
        return output[-1:], logits


class _DraftRows:
    """Rows of one draft. Each reads its parent's output and sees the committed rows, the stem's and its ancestors."""

    def __init__(self, net: EagleNet, cache: Cache, vocabulary: VocabularyMap, last: torch.Tensor,
                 after: NDArray[np.float32]) -> None:  # fmt: skip
        self._net, self._cache, self._vocabulary = net, cache, vocabulary
        self._outputs, self._after = [last], after  # [1, d]; of the stem's end, then of every row of the tree
        self._seen: list[list[int]] = [[]]  # slots of a row and its ancestors in the tree; likewise

    def follow(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Run the rest of the stem; logits [V] after it."""
        for token in tokens:
            at = [self._cache.length]
            output, (self._after,) = self._net.step([token], self._outputs[0], at, None, self._cache, slice(None))
            self._outputs = [output]
        self._base = self._cache.length
        return self._vocabulary.spread(self._after)

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> list[NDArray[np.float32]]:
        """Run a level of the tree; see ``tree_growth.dynamic.Expand``."""
        first = self._cache.length
        seen = [[*self._seen[parent + 1], first + i] for i, parent in enumerate(parents)]
        mask = tree_mask(seen, self._base, first + len(tokens), self._outputs[0].device)
        hidden = torch.cat([self._outputs[parent + 1] for parent in parents])
        positions = [self._base + len(slots) - 1 for slots in seen]
        output, logits = self._net.step(tokens, hidden, positions, mask, self._cache, slice(None))
        self._outputs += output.split(1)
        self._seen += seen
        return [self._vocabulary.spread(row) for row in logits]


def _rename(name: str) -> str:
    """A tensor's name in any published style → its name in our networks."""
    name = re.sub(r"^(model|draft_model|eagle_module)\.", "", name)
    return re.sub(r"^(midlayer|transformer)\.", "layers.0.", name).replace("fusion_fc.", "fc.")


def _share_weights(net: Net, copies: Mapping[str, torch.Tensor], target: Target, directory: Path) -> list[str]:
    """Set the network's embedding and head; the names of those that are the target's.

    Checkpoints often bring a copy of the target's. It is kept only where it is not the same.
    """
    info, wants = target.info, ["embedding"]
    if _reads_a_whole_head(net):
        wants.append("head")
    borrowed = []
    for name, stored in (("embedding", "embed_tokens.weight"), ("head", "lm_head.weight")):
        if name not in wants:
            continue
        copy = copies.get(stored)
        lent = as_borrowed(target.lend(name)) if name in info.lendable else None
        if lent is not None and (copy is None or is_copy(copy, lent, lent.dtype)):
            if lent.shape[1] != net.hidden_size:
                raise CheckpointError(
                    f"{directory} brings no {stored} and its network is {net.hidden_size} wide, the {name} of target "
                    f"{info.name!r} {lent.shape[1]}: use a complete checkpoint made for this target"
                )
            setattr(net, name, lent)
            borrowed.append(name)
        elif copy is None:
            raise Incompatible(f"target {info.name!r} does not lend its {name}, which {directory} lacks")
        elif copy.shape != (info.vocabulary_size, net.hidden_size):
            raise CheckpointError(
                f"{stored} in {directory} is {list(copy.shape)}, expected {[info.vocabulary_size, net.hidden_size]}: "
                f"use a checkpoint made for this target"
            )
        else:
            setattr(net, name, copy if lent is None else copy.to(device=lent.device, dtype=lent.dtype))
    return borrowed


def _reads_a_whole_head(net: Net) -> bool:
    """The target's or a copy of it; other networks have a head of their own."""
    return isinstance(net, Eagle1Net) or net.lm_head is None
