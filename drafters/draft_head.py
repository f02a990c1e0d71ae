"""The target's head as a drafter reads it: all of it where it lies, or a copy of the rows of a few tokens.

    hidden [n, d]  ──rows of the kept tokens, [V_d, d]──▶  logits [n, V_d]  ──spread──▶  logits [n, V]

A small network spends most of its time in the target's large head, once per draft token. A few thousand tokens are
nearly all that is ever said, and a draft is only a guess, so the other rows need not be read (FR-Spec, 2502.14856): q
is a law over the kept tokens, and where a grammar allows none of them, over what it does allow.

``config.json`` names them in ``draft_tokens``: ids of the target, ascending. A loader that does not know the field
reads the whole head, and guesses no worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .checkpoint import CheckpointError, read_config
from .nets.layers import as_borrowed
from .vocab_map import VocabularyMap

FIELD = "draft_tokens"


class DraftHead:
    """A head over the whole vocabulary or a part of it.

    Attributes:
        weight: [V_d, d]; the lent head itself where every token is kept.
        vocabulary: draft id → target id; ``kept``: the same as a tensor, None where every token is kept.
        borrows: what of the target's it reads, as ``DrafterRequirements`` names it.
    """

    def __init__(self, head: Any, kept: Sequence[int] | None = None) -> None:
        """``head`` [V, d], lent by the target; ``kept``: ids, ascending, as ``read_draft_tokens`` gives them."""
        lent = as_borrowed(head)
        self.vocabulary = VocabularyMap.identity(len(lent)) if kept is None else VocabularyMap(kept, len(lent))
        whole = self.vocabulary.is_identity
        self.kept = None if whole else torch.as_tensor(self.vocabulary.draft_to_target, device=lent.device)
        self.weight = lent if self.kept is None else lent[self.kept]
        self.borrows: tuple[str, ...] = ("head",) if whole else ()

    @property
    def own_bytes(self) -> int:
        """Of the copied rows."""
        return 0 if self.borrows else self.weight.nbytes

    @property
    def lent(self) -> list[torch.Tensor]:
        """The weights that are read where the target holds them."""
        return [self.weight] if self.borrows else []

    def give_up_rows(self) -> None:
        """Forget the copied rows: a compiled network has them. What is lent stays."""
        if not self.borrows:
            self.weight = self.weight[:0].clone()

    def spread(self, logits: torch.Tensor) -> NDArray[np.float32]:
        """Logits [..., V_d] of the kept tokens → [..., V], in host memory."""
        return self.vocabulary.spread(logits.float().cpu().numpy())


def read_draft_tokens(source: Path, size: int, borrows_head: bool = True) -> list[int] | None:
    """The tokens that a drafter's checkpoint keeps of ``size``; None: all, as in every checkpoint without the field.

    Raises:
        CheckpointError: they are not tokens of this target, each once and in order; or the drafter borrows no head.
    """
    directory = Path(source) if Path(source).is_dir() else Path(source).parent
    if not (directory / "config.json").is_file():
        return None
    kept = read_config(directory).get(FIELD)
    if kept is None:
        return None
    if not borrows_head:
        raise CheckpointError(
            f"{FIELD} in {directory / 'config.json'} is for drafters that borrow the target's head, and this one has "
            f"an output of its own: remove the field"
        )
    if not (isinstance(kept, list) and kept and all(type(token) is int and 0 <= token < size for token in kept)):
        raise CheckpointError(
            f"{FIELD} in {directory / 'config.json'} must list ids from 0 to {size - 1}, the target's vocabulary: use "
            f"a drafter trained for this target, or remove the field to read the whole head"
        )
    if not all(a < b for a, b in pairwise(kept)):
        raise CheckpointError(
            f"{FIELD} in {directory / 'config.json'} must name each id once and in ascending order: copy the "
            f"checkpoint again, or remove the field to read the whole head"
        )
    return kept
