"""A reduced draft vocabulary: the target tokens a drafter can say, and its logits spread over the target's vocabulary.

EAGLE-3 (2503.01840) gives its head only the most frequent tokens. Checkpoints store ``d2t``, an *offset* (draft id i is
target id i + d2t[i]), and ``t2d``, which target ids are there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Of a token that is not there. Finite, so that a law exists even where a constraint allows no other token.
ABSENT = np.float32(-1e30)


class VocabularyMap:
    """Draft id → target id, the same for every context.

    Attributes:
        draft_to_target: int64 [V_d], each id once.
        size: V, tokens of the target.

    Raises:
        ValueError: the map leads outside the target's vocabulary, names a token twice, or contradicts ``present``.
    """

    def __init__(self, draft_to_target: ArrayLike, size: int, present: ArrayLike | None = None) -> None:
        self.draft_to_target: NDArray[np.int64] = np.asarray(draft_to_target, dtype=np.int64)
        self.size = size
        ids = self.draft_to_target
        if ids.ndim != 1 or not len(ids) or ids.min() < 0 or ids.max() >= size:
            raise ValueError(
                f"the draft vocabulary leads to target ids {ids.min()} to {ids.max()} of {size}: d2t must hold offsets "
                f"(target id − draft id) and belong to this target"
            )
        if len(np.unique(ids)) != len(ids):
            raise ValueError("two draft tokens lead to one target token: d2t must hold offsets (target id − draft id)")
        if present is not None:
            marked = np.flatnonzero(np.asarray(present))
            if not np.array_equal(marked, np.sort(ids)):
                raise ValueError(
                    f"t2d marks {len(marked)} target tokens, d2t leads to {len(ids)}, and they are not the same: "
                    f"copy the checkpoint again"
                )
        self.is_identity = len(ids) == size and bool(np.array_equal(ids, np.arange(size)))

    @staticmethod
    def from_offsets(offsets: ArrayLike, size: int, present: ArrayLike | None = None) -> VocabularyMap:
        """From the tensors ``d2t`` [V_d] and ``t2d`` [V] of a checkpoint."""
        offset = np.asarray(offsets, dtype=np.int64)
        return VocabularyMap(np.arange(len(offset)) + offset, size, present)

    @staticmethod
    def from_checkpoint(
        offsets: ArrayLike | None, present: ArrayLike | None, draft_size: int, size: int
    ) -> VocabularyMap:
        """From what a checkpoint has of ``d2t`` and ``t2d`` beside a head of ``draft_size`` tokens."""
        if offsets is None:
            if draft_size != size:
                raise ValueError(f"its head has {draft_size} of {size} tokens and no d2t says which")
            return VocabularyMap.identity(size)
        if np.shape(offsets) != (draft_size,):
            raise ValueError(f"d2t is {list(np.shape(offsets))}, expected [{draft_size}]")
        # With a full vocabulary t2d may have been left unset.
        return VocabularyMap.from_offsets(
            offsets, size, present if present is not None and np.asarray(present).any() else None
        )

    @staticmethod
    def identity(size: int) -> VocabularyMap:
        return VocabularyMap(np.arange(size), size)

    def spread(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Draft logits [..., V_d] → target logits [..., V]; ``ABSENT`` where the drafter has no such token."""
        if self.is_identity:
            return logits
        full = np.full((*logits.shape[:-1], self.size), ABSENT, dtype=np.float32)
        full[..., self.draft_to_target] = logits
        return full
