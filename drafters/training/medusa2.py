"""Medusa-2 (2401.10774): heads that are there already go on learning, now together with the target under them.

    L = L_LM + λ0 · Σ λ^k CE(head k)        the heads' part is ``medusa.py``'s, and its slope goes on into h(t−1)

The labels are the tokens of the data, never the target's own laws: while the target learns, its laws are what changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ..checkpoint import CheckpointError, detect, read_config
from ..draft_head import read_draft_tokens
from ..nets.medusa_net import MedusaNet, load_medusa
from .batch import TargetWeights
from .draft_tokens import DraftTokens
from .medusa import MedusaTrainee


@dataclass(frozen=True, eq=False)
class StoredHeads:
    """Heads, float32, and the tokens that they say."""

    net: MedusaNet
    draft_tokens: DraftTokens


def read_heads(directory: Path, hidden_size: int, vocabulary_size: int) -> StoredHeads:
    """The heads in ``directory``.

    Raises:
        CheckpointError: there are none, or they are for another hidden size or vocabulary.
    """
    kind = detect(directory)
    if kind != "medusa":
        raise CheckpointError(
            f"{directory} holds a drafter of kind {kind!r}, and only Medusa heads learn together with a target: "
            f"give heads of `spec-planner train --drafter medusa`"
        )
    net = load_medusa(directory, hidden_size, vocabulary_size)
    kept = read_draft_tokens(directory, vocabulary_size, net.borrows_head)
    return StoredHeads(net, DraftTokens(None if kept is None else torch.tensor(kept)))


def trained_for(directory: Path) -> str | None:
    """The identity of the target that ``spec-planner train`` trained the drafter for; None: another program made it."""
    if not (directory / "config.json").is_file():
        return None
    note = read_config(directory).get("spec_planner")
    target = note.get("target") if isinstance(note, dict) else None
    return None if target is None else str(target)


def go_on(heads: StoredHeads, target: TargetWeights, loss_vocabulary: int = 1024) -> MedusaTrainee:
    """A trainee that begins as ``heads``; ``loss_vocabulary`` as in ``MedusaTrainee.Options``."""
    net = heads.net
    options = MedusaTrainee.Options(
        num_heads=len(net),
        num_layers=len(net[0]) - (not net.borrows_head),  # type: ignore[arg-type]
        borrows_head=net.borrows_head,
        soft=False,
        loss_vocabulary=loss_vocabulary,
    )
    trainee = MedusaTrainee(target, options, heads.draft_tokens.to(target.head.device))
    trainee.net.load_state_dict(net.state_dict(), strict=False)  # heads without biases get some, which begin at 0
    return trainee
