"""What a drafter borrows, read from the target's checkpoint: enough to load the drafter without loading the target."""

from __future__ import annotations

from pathlib import Path

import torch

from spec_planner.decoding.contracts import Incompatible, TargetInfo
from spec_planner.engines.checkpoint import load_weights
from spec_planner.engines.decoder_config import read_decoder_config
from spec_planner.engines.passes import MAX_NODES
from spec_planner.engines.session_target import LENDABLE


class CheckpointLender:
    """The part of a ``Target`` that drafters use when they are loaded."""

    def __init__(self, model: Path, context_length: int) -> None:
        """Raises ``ModelError`` when the checkpoint in ``model`` cannot be used."""
        config = read_decoder_config(model)
        weights = load_weights(model, config)  # mapped: what is not lent is not read
        self._lent = {
            "embedding": weights["model.embed_tokens.weight"],
            "head": weights["model.embed_tokens.weight" if config.tied_head else "lm_head.weight"],
            "final_norm": weights["model.norm.weight"],
        }
        self.info = TargetInfo(
            name=model.name,
            engine="tensorrt",
            precision="float32",
            device="cpu",
            vocabulary_size=config.vocabulary_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
            context_length=context_length,
            max_nodes=MAX_NODES,
            supports_tree=True,
            lendable=LENDABLE,
        )

    def lend(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """``name`` in ``dtype``; the checkpoint's own mapped pages where it has that type."""
        if name not in self._lent:
            raise Incompatible(f"target {self.info.name!r} lends {', '.join(LENDABLE)}, not {name!r}")
        return self._lent[name].to(dtype)
