"""DFlash 2: DFlash's block, and a selector that walks it from left to right so that the tokens fit each other.

    block       as in ``dflash.py``, from a network with local mixing
    candidates  C_t, the 16 likeliest tokens of slot t
    selector    S_t(a, b) = logit of b at t + a product of codes of a, of b and of the slot's hidden state
    walk        x_t ~ q_t = softmax(S_t(x_{t−1}, ·) / T) over C_t; x_0 is the anchor, the last token of the stem

q_t is a law given the tokens drawn before it, and it is the one recorded, so chains are exact under rejection as well.
Trees: a beam over the selector (``tree_growth/selector_beam.py``), best-first over it, or a fixed shape; in each the
children of a node come from the law of that node's own branch.

A constraint may forbid all candidates of a slot. The other tokens therefore keep their order far below the candidates:
they have no chance as long as one candidate is allowed, and take over when none is. Candidates are of the tokens that
the drafter keeps (``draft_head.py``); those it leaves out stand far below the others yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Union

import numpy as np
import torch
from numpy.typing import NDArray

from spec_planner.decoding.contracts import DraftSampler, Target
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.sampling import Law

from .compiled.base import Compiling
from .dflash import DFlashDrafter
from .draft_head import DraftHead, read_draft_tokens
from .graphs.net_graphs import Compile
from .nets.dflash2_net import DFlash2Net, PathSelector, load_dflash2
from .nets.layers import as_borrowed
from .tree_growth.marginals import Shape, draft_from_marginals
from .tree_growth.selector_beam import grow_beam

_BEHIND = -1e4  # of tokens that are no candidates; exp(−1e4 / T) is 0 up to T = 13

SelectorShape = Union[Shape, Literal["beam"]]  # noqa: UP007 (evaluated at run time, Python 3.10 style)


class DFlash2Drafter(DFlashDrafter):
    """Drafts with a DFlash 2 network.

    Args:
        embedding, head, draft_tokens, compiling: as for ``DFlashDrafter``.
        shape: "chain", "beam", "best-first", or rank paths, most valuable first.
        beam_width: branches that a beam follows per slot.
    """

    name = "dflash2"

    def __init__(self, net: DFlash2Net, embedding: Any, head: Any, shape: SelectorShape = "chain",
                 beam_width: int = 4, draft_tokens: Sequence[int] | None = None,
                 compiling: Compiling | None = None) -> None:  # fmt: skip
        if beam_width < 1:
            raise ValueError(f"a beam follows at least 1 branch, got {beam_width}")
        super().__init__(net, embedding, head, "best-first" if shape == "beam" else shape, draft_tokens, compiling)
        self._selector, self._beam_width = net.candidate_selector, beam_width if shape == "beam" else 0

    @classmethod
    def load(cls, source: Path, target: Target, shape: SelectorShape = "chain", beam_width: int = 4,
             compiler: Compile | None = None) -> DFlash2Drafter:  # fmt: skip
        embedding, head = as_borrowed(target.lend("embedding")), as_borrowed(target.lend("head"))
        net = load_dflash2(source, embedding.dtype, embedding.device)
        kept = read_draft_tokens(source, target.info.vocabulary_size)
        return cls(net, embedding, head, shape, beam_width, kept, Compiling.of(compiler, target.info))

    @torch.inference_mode()
    def draft(self, stem: Sequence[int], budget: int, sampler: DraftSampler) -> DraftTree:
        hidden, logits = self._guess(stem, budget)
        lattice = Lattice(self._selector, hidden, logits, stem[-1], self._head)
        selecting = _SelectorSampler(sampler, lattice, len(stem))
        shape = self._shape
        if self._beam_width:
            shape = grow_beam(
                lambda branch: selecting.law(lattice.rows[len(branch)], [*stem, *branch]),
                *(len(hidden), self._beam_width, budget),
            )
        return draft_from_marginals(stem, list(lattice.rows), budget, self._cache.length, selecting, shape)

    def close(self) -> None:
        super().close()
        del self._selector


class Lattice:
    """Candidates of every slot and what the selector needs to score them, in host memory.

    Attributes:
        candidates: int64 [n, k], ascending per slot.
        rows: float32 [n, V]; logits, all put behind any score of a candidate.
    """

    def __init__(
        self, selector: PathSelector, hidden: torch.Tensor, logits: torch.Tensor, anchor: int, head: DraftHead
    ) -> None:
        """hidden [n, d] of the slots after ``anchor``, and their logits float32 [n, V_d] by ``head``."""
        self._selector = selector
        places = selector.likeliest(logits).sort(dim=-1).values
        ids = places if head.kept is None else head.kept[places]
        self.candidates: NDArray[np.int64] = ids.cpu().numpy()
        self._unary: NDArray[np.float32] = logits.gather(1, places).cpu().numpy()
        self._gated: NDArray[np.float32] = selector.gated(hidden, ids).cpu().numpy()
        self.rows: NDArray[np.float32] = head.spread(logits + _BEHIND)
        self._codes: dict[int, NDArray[np.float32]] = {}
        self._fetch([anchor, *np.unique(self.candidates[:-1]).tolist()])  # predecessors, in one go

    def scores(self, slot: int, predecessor: int) -> NDArray[np.float32]:
        """S of the slot's candidates after ``predecessor``, any token: float32 [k]."""
        if predecessor not in self._codes:
            self._fetch([predecessor])
        return np.asarray(self._unary[slot] + self._gated[slot] @ self._codes[predecessor], dtype=np.float32)

    def logits(self, slot: int, predecessor: int) -> NDArray[np.float32]:
        """The same over the whole vocabulary, float32 [V]."""
        row = self.rows[slot].copy()
        row[self.candidates[slot]] = self.scores(slot, predecessor)
        return row

    def _fetch(self, tokens: list[int]) -> None:
        codes = self._selector.codes(torch.tensor(tokens, device=self._selector.predecessor_codebook.device))
        self._codes.update(zip(tokens, codes.cpu().numpy(), strict=True))


class _SelectorSampler:
    """The run's sampler, with the selector's scores in the place of a slot's own logits; each law is made once."""

    def __init__(self, sampler: DraftSampler, lattice: Lattice, stem_length: int) -> None:
        self._sampler, self._lattice, self._stem_length = sampler, lattice, stem_length
        self._laws: dict[tuple[int, ...], Law] = {}
        self.pick, self.pick_siblings, self.tree = sampler.pick, sampler.pick_siblings, sampler.tree

    def law(self, logits: NDArray[np.float32], branch: Sequence[int]) -> Law:
        key = tuple(branch)
        if key not in self._laws:
            scored = self._lattice.logits(len(branch) - self._stem_length, branch[-1])
            self._laws[key] = self._sampler.law(scored, branch)
        return self._laws[key]
