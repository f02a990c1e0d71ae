"""Prompt lookup: find where the last few tokens stood before and guess that the same words follow.

A robot's plan repeats its instruction, its scene and its skill names, so what comes next has often been seen. No
weights, no training ("prompt lookup decoding", Saxena 2023; also the n-gram drafts of llama.cpp and transformers).

    context   … go to ( kitchen ) … go to ( table ) … go to ( | ?        anchor: "("
    matches             └ n-gram ┘→ table ) …   is the draft; with branches, kitchen ) … grows beside it
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from spec_planner.decoding.contracts import DrafterRequirements, DraftSampler
from spec_planner.decoding.draft_tree import DraftTree

_MEASURED = 4096  # tokens; the index of a longer context is in proportion


class LookupDrafter:
    """Longest match first, from ``max_ngram`` tokens down to ``min_ngram``; among equals, the latest.

    The draft is a fixed function of the committed context: a point mass, whatever the temperature. With ``branches``
    above 1, that many matches that continue differently share one tree, half of the budget going to the first, half of
    the rest to the second, and so on; common beginnings are stored once.
    """

    name = "lookup"

    def __init__(self, max_ngram: int = 4, min_ngram: int = 2, branches: int = 1) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"prompt lookup needs 1 ≤ min_ngram ≤ max_ngram, got {min_ngram} and {max_ngram}")
        if branches < 1:
            raise ValueError(f"prompt lookup needs at least 1 branch, got {branches}")
        self.requirements = DrafterRequirements(draws_trees=branches > 1)
        self._sizes, self._branches = range(max_ngram, min_ngram - 1, -1), branches
        self._ids: list[int] = []
        self._followers: dict[tuple[int, ...], list[int]] = {}  # n-gram → indices of what followed it, latest last

    @property
    def own_bytes(self) -> int:
        """Memory of the index over the committed context, now."""
        return sum(map(sys.getsizeof, (self._ids, self._followers, *self._followers, *self._followers.values())))

    @classmethod
    def most_bytes(cls, length: int) -> int:
        """``own_bytes`` after ``length`` tokens of which no two meet again."""
        index, measured = cls(), min(length, _MEASURED)
        index.observe(range(measured), None)
        return index.own_bytes * length // max(measured, 1)

    @property
    def borrowed_bytes(self) -> int:
        """None: there are no weights."""
        return 0

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
                    self._followers.setdefault(tuple(self._ids[end - size :]), []).append(end)

    def draft(self, stem: Sequence[int], budget: int, sampler: DraftSampler) -> DraftTree:
        tokens, parents = list(stem), list(range(-1, len(stem) - 1))
        places: dict[tuple[int, int], int] = {}  # (parent node, token) → node
        branches, last, most = 0, len(stem) - 1, len(stem) + budget
        for start in self._matches(stem):
            left = most - len(tokens)
            branches += 1
            share = left if branches == self._branches else (left + 1) // 2
            before = len(tokens)
            node = last
            for token in self._copy(start, stem, share):
                if (node, token) not in places:
                    places[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = places[node, token]
            branches -= len(tokens) == before  # nothing new in this one
            if branches == self._branches or len(tokens) >= most:
                break
        return DraftTree(np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int64))

    def knows_well(self, stem: Sequence[int]) -> bool:
        """The last ``max_ngram`` tokens, ``stem`` included, stood somewhere before."""
        return tuple(self._recent(stem)[-self._sizes[0] :]) in self._followers

    def close(self) -> None:
        self.truncate(0)

    def _matches(self, stem: Sequence[int]) -> Iterator[int]:
        """Indices of what followed earlier occurrences of the last tokens, best match first, none twice."""
        seen: set[int] = set()
        recent = self._recent(stem)
        for size in self._sizes:
            # The stem is not indexed yet, so whatever matches ended earlier.
            suffix = tuple(recent[-size:]) if size <= len(recent) else ()
            for follower in reversed(self._followers.get(suffix, ())):
                if follower not in seen:
                    seen.add(follower)
                    yield follower

    def _recent(self, stem: Sequence[int]) -> list[int]:
        return [*self._ids[max(len(self._ids) - self._sizes[0], 0) :], *stem]

    def _copy(self, start: int, stem: Sequence[int], count: int) -> Iterator[int]:
        """``count`` tokens from index ``start``; past the stem it goes on with its own copy, so loops continue."""
        source = [*self._ids[start : start + count], *stem]
        for index in range(count):
            yield source[index % len(source)]
