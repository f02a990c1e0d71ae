"""Medusa: heads on the target's last hidden state, each guessing one place further on, all at once (2401.10774).

    committed   x0 … x(t−1)          with h(t−1), the target's hidden state at the last of them, after the final norm
    anchor      x(t)                 what the target's own head said at h(t−1); the heads do not see it
    head k      x(t+1+k)             so head 0 guesses the token after the anchor
    stem        x(t) … x(t+m)        m forced tokens: heads 0 … m − 1 would guess those and are left out, head m comes
                                     first; from K forced tokens on no head reaches far enough

The heads do not depend on each other's tokens, so a draft is a chain of independent draws, or a tree over all of their
laws at the cost of one pass of the heads (``tree_growth/marginals.py``). Which nodes it gets is one of

    best-first   those that the laws at hand make likeliest, under the grammar too: wide where the heads are unsure,
                 deep where they are sure; keeps the most, and is what trees are unless ``config.json`` says otherwise
    measured     the same in every context: what accepts most if the heads are right as often as on held-out answers;
                 fewer laws to work out, since a leaf needs none
    published    Medusa's own 63 paths, found like that for Vicuna-7B
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from spec_planner.decoding.contracts import DrafterRequirements, DraftSampler, Incompatible, Target, TargetInfo
from spec_planner.decoding.draft_tree import DraftTree

from .checkpoint import CheckpointError, read_config
from .compiled.base import Compiling
from .compiled.medusa import CompiledMedusa
from .draft_head import DraftHead, read_draft_tokens
from .draft_net import MedusaHeads
from .graphs.net_graphs import Compile
from .nets.layers import as_borrowed, distinct_bytes
from .nets.medusa_net import MedusaNet, load_medusa
from .tree_growth.best_first import Path as RankPath
from .tree_growth.marginals import Shape, draft_from_marginals, stem_alone
from .tree_growth.static import MEDUSA_63, tree_from_accuracy

Accuracy = Sequence[Sequence[float]]  # how often the true token had rank r in head k, [K, ranks]


class MedusaDrafter:
    """Drafts with Medusa heads; it keeps no cache but the hidden states themselves.

    Args:
        lent: the target's head [V, d] for heads without an output of their own.
        shape: "chain", "best-first", or rank paths, most valuable first (``tree_growth/static.py``).
        accuracy: one row per head; draw the trees that accept most under it, and no other shape.
        draft_tokens: what of ``lent`` is read (``draft_head.py``); None: all.
        compiling: run the heads as a graph; None: in torch.
    """

    name = "medusa"

    def __init__(
        self, net: MedusaNet, target: TargetInfo, lent: Any = None, shape: Shape = "chain",
        accuracy: Accuracy | None = None, draft_tokens: Sequence[int] | None = None,
        compiling: Compiling | None = None,
    ) -> None:  # fmt: skip
        if net.borrows_head and lent is None:
            raise ValueError("these Medusa heads have no output of their own: lend them the target's head")
        self._shape, self._accuracy = shape, accuracy
        self._trees: dict[tuple[int, int], tuple[RankPath, ...]] = {}  # by number of heads and budget
        self._head = DraftHead(lent, draft_tokens) if net.borrows_head else None
        self._net: MedusaHeads = net
        if compiling is not None:
            self._net = CompiledMedusa(net, self._head, compiling)
        self._states: list[torch.Tensor] = []  # h(i) of every committed token, each [d]
        self.requirements = DrafterRequirements(
            feature_layers=(target.num_layers,),
            vocabulary_size=net.vocabulary_size,
            hidden_size=net.hidden_size,
            borrows=() if self._head is None else self._head.borrows,
            draws_trees=shape != "chain" or accuracy is not None,
        )

    @staticmethod
    def load(source: Path, target: Target, shape: Shape | Literal["stored"] = "chain",
             compiler: Compile | None = None) -> MedusaDrafter:  # fmt: skip
        """Published heads for ``target``, in the type and on the device of the target's own head.

        Args:
            shape: "stored" takes the trees that ``config.json`` asks for (``stored_tree``).

        Raises:
            CheckpointError: the checkpoint cannot be used, or was made for another target.
        """
        head = as_borrowed(target.lend("head"))
        info = target.info
        net = load_medusa(source, info.hidden_size, info.vocabulary_size, head.dtype, head.device)
        kept = read_draft_tokens(source, info.vocabulary_size, net.borrows_head)
        tree = stored_tree(source, len(net)) if shape == "stored" else (shape, None)
        return MedusaDrafter(net, info, head, *tree, kept, Compiling.of(compiler, info))

    @property
    def network(self) -> str:
        """What runs its network, and in which precision; a certificate says it."""
        return f"{self._net.engine}, {self._net.precision}"

    @property
    def own_bytes(self) -> int:
        """Weights and hidden states that are this drafter's."""
        rows = 0 if self._head is None else self._head.own_bytes
        return self._net.num_bytes + rows + sum(state.nbytes for state in self._states)

    @property
    def borrowed_bytes(self) -> int:
        """Weights of the target that this drafter uses and did not copy."""
        return 0 if self._head is None else distinct_bytes(self._head.lent)

    def truncate(self, length: int) -> None:
        del self._states[length:]

    @torch.inference_mode()
    def observe(self, committed_ids: Sequence[int], features: Any) -> None:
        if features is None:
            raise Incompatible(
                f"drafter {self.name!r} needs hidden states and got none: tap the target's feature_layers"
            )
        rows = torch.as_tensor(features)[:, 0].to(device=self._net.place.device, dtype=self._net.place.dtype)
        self._states.extend(rows.unbind())

    @torch.inference_mode()
    def draft(self, stem: Sequence[int], budget: int, sampler: DraftSampler) -> DraftTree:
        forced = len(stem) - 1
        heads = range(forced, min(len(self._net), forced + budget))
        if not heads or not self._states:
            return stem_alone(stem, sampler)
        if self._head is None:
            logits = self._net.logits(self._states[-1][None], heads)[:, 0].float().cpu().numpy()
        else:
            logits = self._head.spread(self._net.logits(self._states[-1][None], heads, self._head.weight)[:, 0])
        shape = self._shape if self._accuracy is None else self._measured(self._accuracy[forced:], budget)
        return draft_from_marginals(stem, list(logits), budget, len(self._states), sampler, shape)

    def _measured(self, accuracy: Accuracy, budget: int) -> tuple[RankPath, ...]:
        """The best tree for the last heads, those that ``accuracy`` is of; each is searched once."""
        key = len(accuracy), budget
        if key not in self._trees:
            self._trees[key] = tree_from_accuracy(accuracy, budget)
        return self._trees[key]

    def close(self) -> None:
        self._states.clear()
        del self._net, self._head


def stored_tree(source: Path, num_heads: int) -> tuple[Shape, Accuracy | None]:
    """The shape that ``medusa_tree`` in ``config.json`` names, best-first where nothing does; its accuracies if any.

    Raises:
        CheckpointError: there is no such tree, or no table of accuracies to make it from.
    """
    config = read_config(source) if (source / "config.json").is_file() else {}
    kind = config.get("medusa_tree", "best-first")
    if kind == "best-first":
        return "best-first", None
    if kind == "published":
        return MEDUSA_63, None
    if kind != "measured":
        raise CheckpointError(
            f"{source / 'config.json'} asks for medusa_tree {kind!r}: choose best-first, measured or published"
        )
    accuracy = config.get("medusa_rank_accuracy")
    if not (isinstance(accuracy, list) and len(accuracy) == num_heads and all(map(_are_shares, accuracy))):
        raise CheckpointError(
            f"{source / 'config.json'} asks for the measured tree and its medusa_rank_accuracy has not one row of "
            f"shares from 0 to 1 for each of the {num_heads} heads: train them again, or set medusa_tree to best-first"
        )
    return "best-first", accuracy


def _are_shares(row: Any) -> bool:
    return isinstance(row, list) and all(isinstance(share, (int, float)) and 0 <= share <= 1 for share in row)
