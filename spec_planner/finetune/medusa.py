"""Medusa-2 (2401.10774): the adapter and Medusa heads learn together, from one pass of the model.

    pack ──decoder with adapter──▶ h, after the final norm ──frozen head──▶ L_LM
                                   └──heads, frozen head or their own──▶ Σ λ^k CE(head k)

Both are sums over the answers of a pack; the loss is (L_LM + λ0 · heads) / answer tokens. On packs of general text
L_LM is the distance to the base model's law, and the heads learn the base model's answers. What comes out is a new
target, and heads for that one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drafters.training.medusa import MedusaTrainee
from drafters.training.medusa2 import StoredHeads, go_on, read_heads, trained_for

from ..engines.decoder_config import read_decoder_config
from ..learning.files import RunError
from ..learning.packing import Example, Pack
from ..train.batches import Drawn, make_batch
from ..train.learner import DrafterLearner, read_target_weights
from .adapted_model import AdaptedModel
from .learner import PlanLearner

PREFIX = "medusa."  # of the heads' parameters among those of a run


@dataclass(frozen=True, eq=False)
class WarmHeads:
    """Heads that learned on the target as it is, and a hash of their weights."""

    heads: StoredHeads
    fingerprint: str

    @staticmethod
    def read(directory: Path, target: Path, identity: str) -> WarmHeads:
        """Those in ``directory`` for ``target``, whose identity is ``identity``. No model is loaded.

        Raises:
            ValueError: no heads, or heads for another model; one sentence.
        """
        config = read_decoder_config(target)
        heads = read_heads(directory, config.hidden_size, config.vocabulary_size)
        made_for = trained_for(directory)
        if made_for not in (None, identity):
            raise RunError(
                f"the heads in {directory} were trained for another model ({made_for}) than {target.name} "
                f"({identity}): train heads for this one with `spec-planner train --drafter medusa`"
            )
        digest = hashlib.sha256()
        for name, tensor in sorted(heads.net.state_dict().items()):
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
        return WarmHeads(heads, digest.hexdigest()[:12])

    def trainee(self, model: AdaptedModel, target: Path, examples: Iterable[Example]) -> MedusaTrainee:
        """Over ``model``, loaded from ``target``: it borrows the model's own frozen head.

        Args:
            examples: whose answers say which tokens are frequent (``rows.LossVocabulary``).
        """
        answers = (each.ids[each.answer :].tolist() for each in examples)
        weights = read_target_weights(target, torch.device("cpu"), model.dtype, answers)
        weights = dataclasses.replace(
            weights, name=f"{target.name} with its adapter", embedding=model.embedding, head=model.head
        )
        return go_on(self.heads, weights)


class JointLearner:
    """A ``learning.trainer.Learner`` over an adapted model and the heads on it."""

    def __init__(self, model: AdaptedModel, trainee: MedusaTrainee, weight: float) -> None:
        """``weight``: λ0."""
        self._model, self._weight, self.trainee = model, weight, trainee
        self._plans, self._heads = PlanLearner(model), DrafterLearner(trainee, model.device, model.dtype)
        self._layer = trainee.feature_layers[0]
        self.device = model.device
        heads = {PREFIX + name: parameter for name, parameter in self._heads.parameters.items()}
        self.parameters: dict[str, nn.Parameter] = {**model.parameters, **heads}

    def loss(self, pack: Pack) -> tuple[Tensor, float]:
        hidden = self._model.hidden_states(pack)
        plans, count = self._plans.loss(pack, hidden)
        heads, _ = self._heads.loss(self._drawn(pack, hidden, zlib.crc32(pack.ids.tobytes())))  # the same every time
        return plans + self._weight * heads, count

    def measure(self, pack: Pack) -> Tensor:
        """What ``PlanLearner`` and then ``DrafterLearner`` measure, one behind the other."""
        hidden = self._model.hidden_states(pack)
        return torch.cat([self._plans.measure(pack, hidden), self._heads.measure(self._drawn(pack, hidden))])

    def record(self, sums: Tensor) -> dict[str, Any]:
        """Those of the plans; and of the heads, on the experts' plans, each before it teacher-forced: their mean loss,
        tokens per pass of greedy chains, and the chance that k drafts are all right."""
        heads = self._heads.record(sums[PlanLearner.SUMS :])
        return self._plans.record(sums[: PlanLearner.SUMS]) | {
            "heads_loss": heads["validation_loss"],
            "acceptance_length": heads["acceptance_length"],
            "by_depth": heads["by_depth"],
        }

    def shown(self, record: Mapping[str, Any]) -> str:
        return f"{self._plans.shown(record)}, heads {record['acceptance_length']:.2f} tokens a pass"

    def calibrate(self, packs: Sequence[Pack]) -> None:
        """Count the ranks of true tokens in ``packs``, held out, for the heads' trees (``MedusaTrainee.calibrate``)."""
        with torch.no_grad():
            self.trainee.calibrate(self._drawn(pack, self._model.hidden_states(pack)).batch for pack in packs)

    def _drawn(self, pack: Pack, hidden: Tensor, seed: int | None = None) -> Drawn:
        return Drawn(make_batch(pack, {self._layer: hidden}, self.device), seed)
