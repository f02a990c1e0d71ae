"""One ``Decoder`` in torch and its KV cache, on CPU or GPU: the reference for every other engine.

Nothing is allocated per pass but its own activations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..decoding.sampling import NumericError
from .decoder import Decoder, KVCache
from .passes import PassRows
from .session_target import first_moved


class TorchSession:
    """A ``Session`` (see ``session_target.py``)."""

    def __init__(self, decoder: Decoder, capacity: int) -> None:
        self.decoder = decoder
        self._cache = KVCache(decoder.config, capacity, decoder.dtype, decoder.device)

    @property
    def weight_bytes(self) -> int:
        return self.decoder.num_bytes

    @property
    def kv_bytes(self) -> int:
        return self._cache.num_bytes

    @property
    def versions(self) -> Mapping[str, str]:
        return {"torch": str(torch.__version__)}

    def make_room(self, needed: int, keep: int) -> int:
        """The cache lies as it will at capacity; a pass looks at as much of it as it needs."""
        self._cache.reach(needed)
        return needed

    @torch.inference_mode()
    def run(self, rows: PassRows, scored: Sequence[int], hidden_layers: Sequence[int], wanted: int) -> TorchOutput:
        """See ``session_target.Session``."""
        inputs = [torch.from_numpy(array).to(self.decoder.device) for array in pass_arrays(rows, scored)]
        logits, *states = self._compute(*inputs, hidden_layers)
        if self.decoder.device.type == "cuda":
            torch.cuda.synchronize(self.decoder.device)  # so that whoever times a pass times all of it
        return TorchOutput(logits[:wanted], states)

    @torch.inference_mode()
    def keep(self, start: int, path: Sequence[int]) -> None:
        """See ``session_target.Session``. Row i's keys are in slot start + i already, where most belong."""
        moved = first_moved(path)
        if moved < len(path):
            sources = torch.tensor(path[moved:], device=self.decoder.device) + start
            self._cache.move(sources, start + moved)

    @torch.inference_mode()
    def clear(self) -> None:
        """See ``session_target.Session``."""
        self._cache.clear()

    def lend(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = getattr(self.decoder, name)
        return tensor

    def _compute(self, ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, mask: torch.Tensor,
                 scored: torch.Tensor, hidden_layers: Sequence[int]) -> list[torch.Tensor]:  # fmt: skip
        """Logits [len(scored), V] and the hidden states [n, d] asked for, all on the device."""
        hidden, tapped = self.decoder.forward(ids, positions, slots, mask, self._cache, hidden_layers)
        return [self.decoder.logits(hidden[scored]), *(tapped[layer] for layer in hidden_layers)]


class TorchOutput:
    """A ``TargetOutput``: logits [n, V] and tapped states, each [width, d], on the device until asked for."""

    def __init__(self, logits: torch.Tensor, states: list[torch.Tensor]) -> None:
        self._logits, self._states = logits, states

    @torch.inference_mode()
    def argmax(self) -> NDArray[np.int64]:
        values, ids = self._logits.max(dim=-1)  # the first of equal maxima
        if not bool(values.isfinite().all()):
            raise NumericError("the target's logits are not finite: use float32, or another checkpoint")
        best: NDArray[np.int64] = ids.cpu().numpy()
        return best

    def logits_row(self, node: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self._logits[node].float().cpu().numpy()
        return row

    @torch.inference_mode()
    def features(self, path: Sequence[int]) -> torch.Tensor | None:
        """[len(path), layers, d] in the order tapped; None where nothing was."""
        if not self._states:
            return None
        rows = list(path)
        return torch.stack([state[rows] for state in self._states], dim=1)


def pass_arrays(rows: PassRows, scored: Sequence[int]) -> list[NDArray]:
    """ids, positions and cache slots int64 [n], mask bool [n, S], scored rows int64 [r]."""
    slots = np.arange(rows.start, rows.start + len(rows.ids))
    return [rows.ids, rows.positions, slots, rows.mask, np.asarray(scored, dtype=np.int64)]
