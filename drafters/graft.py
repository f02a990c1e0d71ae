"""Prompt lookup beside a model: words seen before are copied, others are guessed, in one draft.

    model     a ─ b ─ c          lookup    a ─ b ─ x ─ y           the draft    a ─ b ─ c
               └─ d                                                              │   └─ x ─ y
                                                                                 └─ d

Lookup is worth its rows where the last words match a long stretch of the text; there it gets half of the budget, and
elsewhere the model gets all of it. A draft that must be a chain is lookup's in the first case, at no pass of the model,
and the model's in the second. Which case it is depends on committed tokens alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spec_planner.decoding.contracts import Drafter, DraftSampler, Incompatible
from spec_planner.decoding.draft_tree import DraftTree

from .lookup import LookupDrafter


class GraftedDrafter:
    """Drafts of ``lookup`` and ``model``, trees if ``trees``, else chains.

    Copied tokens follow no law that the model knows, so no rule that reads draft laws may judge such a draft.
    """

    def __init__(self, lookup: LookupDrafter, model: Drafter, trees: bool) -> None:
        self._lookup, self._model, self._trees = lookup, model, trees
        self.name = f"{lookup.name}+{model.name}"
        self.requirements = replace(model.requirements, draws_trees=trees)

    @property
    def network(self) -> str | None:
        """The model's; lookup has none."""
        return getattr(self._model, "network", None)

    @property
    def own_bytes(self) -> int:
        """The model's own weights and caches, and lookup's index."""
        return int(getattr(self._model, "own_bytes", 0)) + self._lookup.own_bytes

    @property
    def borrowed_bytes(self) -> int:
        """Weights of the target that the model uses."""
        return int(getattr(self._model, "borrowed_bytes", 0))

    def truncate(self, length: int) -> None:
        self._lookup.truncate(length)
        self._model.truncate(length)

    def observe(self, committed_ids: Sequence[int], features: Any) -> None:
        self._lookup.observe(committed_ids, None)
        self._model.observe(committed_ids, features)

    def draft(self, stem: Sequence[int], budget: int, sampler: DraftSampler) -> DraftTree:
        """As ``Drafter.draft``.

        Raises:
            Incompatible: the rule reads draft laws.
        """
        seen = self._lookup.knows_well(stem)
        if seen and (not self._trees or budget == 1):
            return self._lookup.draft(stem, budget, sampler)
        guessed = self._model.draft(stem, budget // 2 if seen else budget, sampler)
        if guessed.proposal.needs_laws:
            raise Incompatible(f"drafter {self.name!r} has no law that a rule could read: use drafter-invariant")
        left = len(stem) + budget - guessed.num_nodes
        return grafted(guessed, self._lookup.draft(stem, left, sampler)) if seen else guessed

    def close(self) -> None:
        self._lookup.close()
        self._model.close()


def grafted(tree: DraftTree, scion: DraftTree) -> DraftTree:
    """``tree`` with those nodes of ``scion``, another draft of the same stem, that it does not have, labelled as it is.

    Neither has draft laws. To rules that read none, copied tokens are as good as any.
    """
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    places = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
    place = {-1: -1}  # node of the scion → node of the whole
    for node, (parent, token) in enumerate(zip(scion.parents.tolist(), scion.tokens.tolist(), strict=True)):
        key = (place[parent], token)
        if key not in places:
            places[key] = len(tokens)
            tokens.append(token)
            parents.append(key[0])
        place[node] = places[key]
    return DraftTree(np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int64), tree.proposal)
