"""Packs of tasks as what the training loop learns from, and how well a model has learnt them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..learning.packing import Pack
from .adapted_model import AdaptedModel


class PlanLearner:
    """A ``learning.trainer.Learner`` over an adapted model.

    ``hidden`` in its methods: the pack's ``AdaptedModel.hidden_states``, where they are known.
    """

    SUMS = 4  # that ``measure`` gives

    def __init__(self, model: AdaptedModel) -> None:
        self._model = model
        self.parameters, self.device = model.parameters, model.device

    def loss(self, pack: Pack, hidden: Tensor | None = None) -> tuple[Tensor, float]:
        return self._model.loss_sum(pack, hidden), pack.num_answer_tokens

    def measure(self, pack: Pack, hidden: Tensor | None = None) -> Tensor:
        """Nats, answer tokens, plans that greedy decoding would repeat token by token, plans: float64 [4]."""
        logits = self._model.answer_logits(pack, hidden).float()
        targets = torch.from_numpy(pack.targets).to(logits.device)
        nats = F.cross_entropy(logits, targets, reduction="none").cpu()
        right = (logits.argmax(-1) == targets).tolist()
        everyone = {asker for askers in pack.askers for asker in askers}
        wrong = {asker for askers, good in zip(pack.askers, right, strict=True) if not good for asker in askers}
        total = float((nats * torch.from_numpy(pack.weights)).sum())
        return torch.tensor(
            [total, pack.num_answer_tokens, len(everyone) - len(wrong), len(everyone)], dtype=torch.float64
        )

    def record(self, sums: Tensor) -> dict[str, Any]:
        """Answer tokens' mean −log p in nats, and the share of plans that come out exactly."""
        nats, tokens, exact, plans = sums.tolist()
        return {"validation_loss": round(nats / max(tokens, 1), 4), "exact": round(exact / max(plans, 1), 4)}

    def shown(self, record: Mapping[str, Any]) -> str:
        return f"validation {record['validation_loss']:.3f} ({record['exact']:.0%} exact)"
