"""Prompt lookup: find where the last few tokens stood before and guess that the same words follow.

A robot's plan repeats its instruction, its scene and its skill names, so what comes next has often been seen. No
weights, no training ("prompt lookup decoding", Saxena 2023; also the n-gram drafts of llama.cpp and transformers).

    context   … go to ( kitchen ) … pick ( cup ) … go to ( | ?        anchor: "("
    match             └ n-gram ┘→ kitchen ) … are the draft
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spec_planner.decoding.contracts import DrafterRequirements, DraftSampler
from spec_planner.decoding.draft_tree import DraftTree


class LookupDrafter:
    """Longest match first, from ``max_ngram`` tokens down to ``min_ngram``; of several, the latest.

    The draft is a fixed function of the committed context: a point mass, whatever the temperature.
    """

    name = "lookup"
    requirements = DrafterRequirements()

    def __init__(self, max_ngram: int = 4, min_ngram: int = 2) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"prompt lookup needs 1 ≤ min_ngram ≤ max_ngram, got {min_ngram} and {max_ngram}")
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._ids: list[int] = []
        self._followers: dict[tuple[int, ...], int] = {}  # n-gram → index of what followed it last

    def truncate(self, length: int) -> None:
        kept = self._ids[:length]
        self._ids, self._followers = [], {}
        self.observe(kept, None)

    def observe(self, committed_ids: Sequence[int], features: Any) -> None:
        for token in committed_ids:
            self._ids.append(token)
            end = len(self._ids)
            for size in self._sizes:
                if size <= end:
                    self._followers[tuple(self._ids[end - size :])] = end

    def draft(self, anchor: int, budget: int, sampler: DraftSampler) -> DraftTree:
        # The anchor is not indexed yet, so whatever matches ended earlier.
        end = len(self._ids) + 1
        for size in self._sizes:
            suffix = (*self._ids[max(0, end - size) :], anchor)
            follower = self._followers.get(suffix) if len(suffix) == size else None
            if follower is not None:
                return DraftTree.chain((anchor, *self._copy(follower, anchor, budget)))
        return DraftTree.root(anchor)

    def close(self) -> None:
        self.truncate(0)

    def _copy(self, start: int, anchor: int, count: int) -> list[int]:
        """``count`` tokens from index ``start``; past the anchor it goes on with its own copy, so loops continue."""
        source = [*self._ids[start : start + count], anchor]
        if start + count <= len(self._ids):
            return source[:-1]
        copied: list[int] = []
        while len(copied) < count:
            copied.append(source[len(copied)] if len(copied) < len(source) else copied[len(copied) - len(source)])
        return copied
