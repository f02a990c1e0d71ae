"""What every pass over a transformer with a KV cache needs to know: which token, at which position, seeing which slots.

A pass runs at one of a few widths, the draft padded up to the next: a matrix product over 2 or 3 rows can cost more
than one over 4. It looks at a multiple of 64 cached slots, the tail masked. Both decide about bits, not only speed: a
kernel sums in an order that depends on its shapes, so with a *single* width, and extents in steps of 512, a position's
logits are the same to the last bit wherever in a pass its row stands (measured: docs/exactness.md). The step must be
that of the attention kernel's own blocks: within a block of keys the matrix product may split its sum by how many keys
there are, as it does between 192 and 384 on torch's CPU build; whole blocks add exact zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..decoding.contracts import Incompatible
from ..decoding.draft_tree import DraftTree
from .decoder_config import DecoderConfig, ModelError

DECODE_WIDTHS = (1, 4, 8, 16, 24, 32, 48, 64)
MAX_NODES = DECODE_WIDTHS[-1]
EXTENT_STEP = 64  # a multiple of every SIMD vector a CPU kernel uses
BITWISE_EXTENT_STEP = 512  # torch's flash attention on CPU takes keys in blocks of 512


@dataclass(frozen=True)
class PassRows:
    """The rows of one pass.

    Attributes:
        ids, positions: int64 [width].
        start: cache slot of row 0; row i writes slot start + i.
        mask: bool [width, S]; True where row i may look.
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    start: int
    mask: NDArray[np.bool_]


class Extents:
    """How many cached slots S a pass looks at, and how many the cache needs."""

    def __init__(self, widths: Sequence[int], context_length: int, step: int | None = None) -> None:
        """``step``: left to us, it is fine, but coarse with a single width, where bits are promised."""
        self._step = step or (BITWISE_EXTENT_STEP if len(widths) == 1 else EXTENT_STEP)
        # A padded pass writes past its last real row: leave room for one whole pass beyond the context.
        self.capacity = _round_up(context_length + max(widths), EXTENT_STEP)

    def of(self, start: int, width: int) -> int:
        """S for a pass of ``width`` rows from slot ``start`` on."""
        return min(_round_up(start + width, self._step), self.capacity)


def rows_of(tree: DraftTree, width: int, start: int, context_length: int, extent: int) -> PassRows:
    """The nodes of ``tree`` after ``start`` committed tokens, padded to ``width`` rows that see themselves.

    Args:
        extent: slots S the pass looks at.

    Raises:
        Incompatible: the nodes do not fit into a context of ``context_length``.
    """
    n = tree.num_nodes
    if start + n > context_length:
        raise Incompatible(f"{start} tokens of context and {n} more exceed the {context_length} the KV cache holds")
    ids = np.zeros(width, dtype=np.int64)
    ids[:n] = tree.tokens
    positions = np.full(width, start, dtype=np.int64)
    positions[:n] += tree.depths
    mask = np.zeros((width, extent), dtype=np.bool_)
    mask[:n, :start] = True
    mask[:n, start : start + n] = tree.ancestor_mask
    padding = np.arange(n, width)
    mask[padding, start + padding] = True  # a row that sees nothing would be NaN
    return PassRows(ids, positions, start, mask)


def check_context(config: DecoderConfig, context_length: int, directory: Path) -> None:
    """Raise ``ModelError`` if the model in ``directory`` was not made for contexts of ``context_length``."""
    if context_length > config.context_length:
        raise ModelError(
            f"context_length {context_length} exceeds the {config.context_length} positions {directory} was made "
            f"for: lower context_length"
        )


def _round_up(slots: int, step: int) -> int:
    return -(-slots // step) * step
