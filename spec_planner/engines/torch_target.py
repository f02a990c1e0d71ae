"""The reference target: one transformer in torch over a static KV cache, on CPU or GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from .checkpoint import load_weights
from .decoder import Decoder
from .decoder_config import ModelError, read_decoder_config
from .passes import BITWISE_EXTENT_STEP, DECODE_WIDTHS, MAX_NODES, Extents, check_context
from .session_target import SessionTarget
from .torch_graphs import GraphedTorchSession
from .torch_session import TorchSession

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TorchTarget(SessionTarget):
    """A ``SessionTarget`` over a ``Decoder``; on a GPU its verify passes are recorded as CUDA graphs."""

    engine = "torch"

    def __init__(self, decoder: Decoder, context_length: int, name: str, precision: str,
                 widths: Sequence[int] = DECODE_WIDTHS) -> None:  # fmt: skip
        self._decoder = decoder
        on_gpu = decoder.device.type == "cuda"
        # Every extent is a graph of its own there, and attention over slots that are masked costs little.
        extents = Extents(widths, context_length, BITWISE_EXTENT_STEP if on_gpu else None)
        capacity = extents.capacity
        session = GraphedTorchSession(decoder, capacity, widths) if on_gpu else TorchSession(decoder, capacity)
        super().__init__(session, decoder.config, name, precision, str(decoder.device), context_length, widths, extents)

    @staticmethod
    def load(directory: Path, *, context_length: int, precision: str = "float32", device: str = "auto",
             threads: int = 0, pass_width: int | None = None) -> TorchTarget:  # fmt: skip
        """Load a Llama, Qwen2 or Qwen3 checkpoint; with ``pass_width``, every verify pass has that width (same bits).

        Raises:
            ModelError: the directory cannot be used, the context is longer than the model knows, or no such device.
        """
        config = read_decoder_config(directory)
        check_context(config, context_length, directory)
        place = _device(device)
        if threads and place.type == "cpu":
            torch.set_num_threads(threads)
        weights = load_weights(directory, config)
        decoder = Decoder(config, weights, context_length + MAX_NODES, DTYPES[precision], place)
        widths = DECODE_WIDTHS if pass_width is None else (pass_width,)
        return TorchTarget(decoder, context_length, directory.name, precision, widths)

    def first_layers(self, num_layers: int, context_length: int) -> TorchTarget:
        """A smaller target made of this one's first layers, sharing its weights: a draft model that costs only KV."""
        decoder = self._decoder.first_layers(num_layers)
        name = f"{self.info.name}, first {num_layers} layers"
        smaller = TorchTarget(decoder, context_length, name, self.info.precision, self._widths)
        smaller.info = replace(smaller.info, weight_bytes=0)  # they are this one's, and counted there
        return smaller

    def close(self) -> None:
        del self._decoder
        super().close()


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            "device is 'cuda' but torch sees no GPU: set device to cpu or auto, or install a CUDA build of torch"
        )
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")
