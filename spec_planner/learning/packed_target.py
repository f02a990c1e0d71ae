"""A target that reads packs: transformers' model with the attention that follows a pack's forest.

Here it is frozen, and gives hidden states; ``finetune/adapted_model.py`` puts an adapter on it and trains that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from ..engines.decoder_config import ModelError, read_decoder_config
from ..quiet import quiet_transformers
from .forest_attention import ATTENTION, Forest, forest_attention
from .packing import PackRows


def load_packed(directory: Path, dtype: torch.dtype) -> Any:
    """The causal language model in ``directory``, on the CPU; its decoder takes ``forest=Forest(pack, device)``.

    Raises:
        ModelError: the directory holds no model of a supported family.
    """
    read_decoder_config(directory)  # its sentences name the file
    transformers.AttentionInterface.register(ATTENTION, forest_attention)
    with quiet_transformers():
        try:
            return transformers.AutoModelForCausalLM.from_pretrained(
                str(directory), dtype=dtype, attn_implementation=ATTENTION, local_files_only=True
            )
        except (OSError, ValueError) as error:
            first = str(error).strip().splitlines()[0]
            raise ModelError(f"{directory} cannot be loaded ({first}): copy the model directory again") from error


class PackedTarget:
    """The frozen target over packs."""

    def __init__(self, directory: Path, device: torch.device, dtype: torch.dtype) -> None:
        """Raises ``ModelError`` as ``load_packed``."""
        self._decoder = load_packed(directory, dtype).model.to(device).eval()
        self._device = device

    @torch.inference_mode()
    def hidden_states(self, pack: PackRows, layers: Sequence[int]) -> dict[int, Tensor]:
        """[rows, d] by Hugging Face ``hidden_states`` index: 0 the embedding, the last one after the final norm."""
        states = self._decoder(
            input_ids=torch.from_numpy(pack.ids)[None].to(self._device),
            position_ids=torch.from_numpy(pack.positions)[None].to(self._device),
            use_cache=False,
            output_hidden_states=True,
            forest=Forest(pack, self._device),
        ).hidden_states
        return {layer: states[layer][0] for layer in layers}
