"""A separate, smaller language model with the target's tokenizer guesses one token after another.

The classic drafter (Leviathan et al., 2211.17192; Chen et al., 2302.01318). Its network is anything that meets the
``Target`` contract; only ``truncate`` and ``extend`` are used.

    committed   x0 … x(t−1)     in the target's KV, and in the network's up to where the last draft went wrong
    anchor      x(t)            fed together with what the network still misses
    drafts      x(t+1) …        each drawn from the network's law after the one before
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spec_planner.decoding.contracts import DrafterRequirements, DraftSampler, PromptInput, Target
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.sampling import Law

# Committed ids are fed with the next anchor to save a pass, but a prompt is fed as it comes, chunk by chunk.
_FEED_AT_ONCE = 32


class ModelDrafter:
    """Drafts chains with a network of its own KV cache."""

    name = "draft-model"

    def __init__(self, net: Target) -> None:
        self._net = net
        self.requirements = DrafterRequirements(vocabulary_size=net.info.vocabulary_size)
        self._ids: list[int] = []  # the target's committed context
        self._fed: list[int] = []  # what the network's KV holds; may run astray after a rejected draft

    def truncate(self, length: int) -> None:
        del self._ids[length:]

    def observe(self, committed_ids: Sequence[int], features: Any) -> None:
        self._ids.extend(committed_ids)
        if len(committed_ids) >= _FEED_AT_ONCE and len(self._ids) <= self._net.info.context_length:
            self._follow(self._ids)

    def draft(self, anchor: int, budget: int, sampler: DraftSampler) -> DraftTree:
        position = len(self._ids)
        # Feeding the anchor and all drafts but the last must fit the network's own context.
        budget = min(budget, self._net.info.context_length - position)
        if budget < 1:
            return DraftTree.root(anchor)
        tokens, laws = [anchor], list[Law]()
        logits = self._follow([*self._ids, anchor])
        while True:
            law = sampler.law(logits)
            laws.append(law)
            tokens.append(sampler.pick(law, position + len(tokens), slot=len(tokens)))
            if len(tokens) > budget:
                return sampler.tree(tokens, range(-1, budget), [*laws, None])
            logits = self._feed(tokens[-1:])

    def close(self) -> None:
        self._net.close()

    def _follow(self, ids: list[int]):
        """Bring the network's context to ``ids``; logits [V] after the last of them."""
        agreed = next(
            (i for i, (a, b) in enumerate(zip(self._fed, ids, strict=False)) if a != b), min(len(self._fed), len(ids))
        )
        agreed = min(agreed, len(ids) - 1)  # the last token is fed again if need be: its logits are wanted
        self._net.truncate(agreed)
        del self._fed[agreed:]
        return self._feed(ids[agreed:])

    def _feed(self, ids: list[int]):
        self._fed.extend(ids)
        return self._net.extend(PromptInput(tuple(ids))).logits_row(0)
