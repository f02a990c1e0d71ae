"""What drafters ask of their networks, so that a compiled one can take the place of torch's.

The algorithm stays with the drafter: which rows to run, what they see, what is drawn. The network makes numbers of
them: ``nets/`` in torch, the reference; ``compiled/`` the same networks as written by ``graphs/``, run by an engine.
Rows go in and out as torch tensors, which on a CPU cost nothing to look at as arrays. So do logits, where the network
is: on torch's device, or in host memory from an engine; only EAGLE's are arrays, in host memory always.

A network keeps no context: that is in its cache, one that it has made, and whoever asks truncates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # what a drafter needs is looked up on machines without torch too
    import torch


class Cache(Protocol):
    """Keys and values of the rows that were run, the first ``length`` of which count."""

    length: int

    @property
    def num_bytes(self) -> int:
        """Memory in use."""

    def truncate(self, length: int) -> None:
        """Forget all but the first ``length`` rows; longer than the cache changes nothing."""


class DraftNet(Protocol):
    """Of every kind.

    Attributes:
        engine: "torch", or what runs its graphs; ``precision``: of its matrices, as the target's is named.
    """

    @property
    def engine(self) -> str: ...

    @property
    def precision(self) -> str: ...

    @property
    def num_bytes(self) -> int:
        """Memory of its own weights; what it borrows is counted by the drafter."""

    @property
    def place(self) -> torch.Tensor:
        """A tensor in the type and on the device of the rows it reads."""


class EagleNet(DraftNet, Protocol):
    """``nets/eagle1_net.py``, ``nets/eagle3_net.py``, ``compiled/eagle.py``.

    Attributes:
        embedding, head: [V, d]; the head is empty where the network has one of its own.
    """

    kind: str  # "eagle1" or "eagle3"
    hidden_size: int
    target_hidden_size: int
    embedding: torch.Tensor
    head: torch.Tensor

    def new_cache(self) -> Any:
        """An empty cache."""

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """Target features [n, m, d_t] → what rows read, [n, d]."""

    def step(
        self,
        ids: Sequence[int],
        hidden: torch.Tensor,
        positions: Sequence[int],
        mask: torch.Tensor | None,
        cache: Any,
        scored: slice,
    ) -> tuple[torch.Tensor, NDArray[np.float32]]:
        """Tokens and hidden [n, d] → what is fed back, [n, d], and logits [r, V_d] of the rows ``scored``.

        n rows are added to ``cache``. ``mask``: bool [n, cache.length + n]; None: all visible.
        """


class MedusaHeads(DraftNet, Protocol):
    """``nets/medusa_net.py``, ``compiled/medusa.py``."""

    hidden_size: int
    vocabulary_size: int
    borrows_head: bool

    def __len__(self) -> int:
        """Number of heads."""

    def logits(self, hidden: torch.Tensor, heads: range, lent: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [len(heads), 1, V_d] of the wanted heads at ``hidden`` [1, d].

        ``lent``: the target's head or rows of it, [V_d, d], for heads without an output; a compiled net has them.
        """


class BlockNet(DraftNet, Protocol):
    """``nets/dflash_net.py``, ``nets/dflash2_net.py``, ``compiled/dflash.py``."""

    config: Any

    def new_cache(self) -> Any:
        """An empty cache for context rows."""

    def follow(self, features: torch.Tensor, cache: Any) -> None:
        """Append context rows: hidden states [n, m, d] of the next n committed tokens."""

    def guess(
        self,
        rows: torch.Tensor,
        cache: Any,
        anchor: int,
        asked: slice,
        head: torch.Tensor,
        kept: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Embedded block rows [n, d] right behind the context → hidden [r, d] of the rows ``asked`` and their logits.

        The cache keeps nothing. ``anchor``: the row of the anchor. ``head`` [V_d, d] has the rows of tokens ``kept``,
        None: of all; a compiled net has them. Logits are float32 [r, V_d].
        """


class ModulesNet(DraftNet, Protocol):
    """``nets/mtp_net.py``'s sequential modules, ``compiled/mtp.py``."""

    hidden_size: int

    def __len__(self) -> int:
        """Number of modules."""

    def new_caches(self) -> list[Any]:
        """An empty cache for each module."""

    def guess(
        self,
        depth: int,
        hidden: torch.Tensor,
        embedded: torch.Tensor,
        position: int,
        cache: Any,
        head: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows [n, d] into module ``depth``, each seeing those before it; what the next step gets, [n, d].

        And the logits [1, V_d] of the last row by ``head`` [V_d, d], which a compiled net has; where None is given
        nobody asks. The first row reads the token at ``position``. n rows are added to ``cache``.
        """


class ParallelNet(DraftNet, Protocol):
    """``nets/mtp_net.py``'s parallel heads, ``compiled/mtp.py``."""

    hidden_size: int

    def __len__(self) -> int:
        """Number of heads."""

    def new_cache(self) -> Any:
        """An empty cache."""

    def follow(self, trunk: torch.Tensor, cache: Any) -> None:
        """Put ``trunk`` [n, d], what enters the target's last layer, behind the cache."""

    def guess(
        self, trunk: torch.Tensor, wanted: range, cache: Any, final_norm: torch.Tensor, head: torch.Tensor
    ) -> torch.Tensor:
        """The same, and logits [len(wanted), V_d] of the wanted heads at the last row.

        By the target's ``final_norm`` [d] and ``head`` [V_d, d]; a compiled net has them.
        """


class ModelNet(DraftNet, Protocol):
    """``nets/draft_model_net.py``, ``compiled/draft_model.py``; ``embedding`` [V, d] is the target's."""

    embedding: torch.Tensor
    sizes: Any
    num_layers: int

    def new_cache(self) -> Any:
        """An empty cache."""

    def read(self, ids: torch.Tensor, cache: Any, head: torch.Tensor) -> torch.Tensor:
        """int64 [n] behind the cache → logits [1, V_d] after the last of them, by ``head`` [V_d, d].

        A compiled net has the head. n rows are added to ``cache``.
        """
