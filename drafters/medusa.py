"""Medusa: heads on the target's last hidden state, each guessing one place further on, all at once (2401.10774).

    committed   x0 … x(t−1)          with h(t−1), the target's hidden state at the last of them, after the final norm
    anchor      x(t)                 what the target's own head said at h(t−1); the heads do not see it
    head k      x(t+1+k)             so head 0 guesses the token after the anchor
    stem        x(t) … x(t+m)        m forced tokens: heads 0 … m − 1 would guess those and are left out, head m comes
                                     first; from K forced tokens on no head reaches far enough

The heads do not depend on each other's tokens, so a draft is a chain of independent draws, or a tree over all of their
laws at the cost of one pass of the heads: of a fixed shape, or best-first (``tree_growth/marginals.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from spec_planner.decoding.contracts import DrafterRequirements, DraftSampler, Incompatible, Target, TargetInfo
from spec_planner.decoding.draft_tree import DraftTree

from .nets.layers import module_bytes
from .nets.medusa_net import MedusaNet, load_medusa
from .tree_growth.marginals import Shape, draft_from_marginals, stem_alone


class MedusaDrafter:
    """Drafts with Medusa heads; it keeps no cache but the hidden states themselves.

    Args:
        lent: the target's head [V, d] for heads without an output of their own.
        shape: "chain", "best-first", or rank paths, most valuable first (``tree_growth/static.py``).
    """

    name = "medusa"

    def __init__(self, net: MedusaNet, target: TargetInfo, lent: Any = None, shape: Shape = "chain") -> None:
        if net.borrows_head and lent is None:
            raise ValueError("these Medusa heads have no output of their own: lend them the target's head")
        self._net, self._shape = net, shape
        self._lent = None if lent is None else torch.as_tensor(lent)
        self._place = next(net.parameters())
        self._states: list[torch.Tensor] = []  # h(i) of every committed token, each [d]
        self.requirements = DrafterRequirements(
            feature_layers=(target.num_layers,),
            vocabulary_size=net.vocabulary_size,
            hidden_size=net.hidden_size,
            borrows=("head",) if net.borrows_head else (),
            draws_trees=shape != "chain",
        )

    @staticmethod
    def load(source: Path, target: Target, shape: Shape = "chain") -> MedusaDrafter:
        """Published heads for ``target``, in the type and on the device of the target's own head.

        Raises:
            CheckpointError: the checkpoint cannot be used, or was made for another target.
        """
        head = torch.as_tensor(target.lend("head"))
        info = target.info
        net = load_medusa(source, info.hidden_size, info.vocabulary_size, head.dtype, head.device)
        return MedusaDrafter(net, info, head if net.borrows_head else None, shape)

    @property
    def own_bytes(self) -> int:
        """Weights and hidden states that are this drafter's."""
        return module_bytes(self._net) + sum(state.numel() * state.element_size() for state in self._states)

    @property
    def borrowed_bytes(self) -> int:
        """Weights of the target that this drafter uses and did not copy."""
        return 0 if self._lent is None else self._lent.numel() * self._lent.element_size()

    def truncate(self, length: int) -> None:
        del self._states[length:]

    @torch.inference_mode()
    def observe(self, committed_ids: Sequence[int], features: Any) -> None:
        if features is None:
            raise Incompatible(
                f"drafter {self.name!r} needs hidden states and got none: tap the target's feature_layers"
            )
        rows = torch.as_tensor(features)[:, 0].to(device=self._place.device, dtype=self._place.dtype)
        self._states.extend(rows.unbind())

    @torch.inference_mode()
    def draft(self, stem: Sequence[int], budget: int, sampler: DraftSampler) -> DraftTree:
        forced = len(stem) - 1
        heads = range(forced, min(len(self._net), forced + budget))
        if not heads or not self._states:
            return stem_alone(stem, sampler)
        logits = self._net.logits(self._states[-1][None], heads, self._lent)[:, 0].float().cpu().numpy()
        return draft_from_marginals(stem, list(logits), budget, len(self._states), sampler, self._shape)

    def close(self) -> None:
        self._states.clear()
        del self._net, self._lent, self._place
