"""Torch passes on a GPU as CUDA graphs: one per shape, recorded once and replayed with new numbers in its inputs.

At batch 1 a small model's pass is hundreds of kernels of a few microseconds each, which a CPU cannot launch as fast as
the GPU runs them. A graph is launched as one. Everything it touches stays where it is: inputs, KV cache, results.

    numbers of a pass ──copied──▶ static inputs ──replay──▶ static results ──copied──▶ the output of the pass

Widths are few (``passes.py``) and the extent grows in coarse steps, so the graphs are few; they share one memory pool,
as they never run at the same time. A prompt's full chunks have one of these widths too; other passes run as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch

from .decoder import Decoder
from .passes import PassRows
from .torch_session import TorchOutput, TorchSession, pass_arrays

Run = Callable[[], list[torch.Tensor]]
Capture = Callable[[Run], tuple[Callable[[], None], list[torch.Tensor]]]
_WARM_UPS = 3  # before recording: kernels are chosen, and libraries allocate, in the first runs


class GraphedTorchSession(TorchSession):
    """A ``Session`` whose passes of ``widths`` rows are replayed.

    Args:
        capture: records a run: returns what replays it, and the tensors that then hold its results.
    """

    def __init__(self, decoder: Decoder, capacity: int, widths: Sequence[int], capture: Capture | None = None) -> None:
        super().__init__(decoder, capacity)
        self._widths = frozenset(widths)
        self._capture = capture or CudaCapture(decoder.device)
        self._recorded: dict[tuple[int, int, int, tuple[int, ...]], _Recorded] = {}

    @torch.inference_mode()
    def run(self, rows: PassRows, scored: Sequence[int], hidden_layers: Sequence[int], wanted: int) -> TorchOutput:
        """See ``session_target.Session``."""
        width = len(rows.ids)
        if width not in self._widths:
            return super().run(rows, scored, hidden_layers, wanted)
        key = (width, len(scored), rows.mask.shape[1], tuple(hidden_layers))
        arrays = [torch.from_numpy(array) for array in pass_arrays(rows, scored)]
        if key not in self._recorded:
            inputs = [array.to(self.decoder.device, copy=True) for array in arrays]
            try:
                self._recorded[key] = _Recorded(self._capture, inputs, lambda: self._compute(*inputs, hidden_layers))
            except RuntimeError as error:  # this GPU, driver or kernel does not record: slower, not wrong
                (reason, *_) = str(error).strip().splitlines() or [type(error).__name__]
                warnings.warn(f"torch records no CUDA graphs here ({reason}): passes run one by one", stacklevel=2)
                self._widths = frozenset()
                return super().run(rows, scored, hidden_layers, wanted)
        logits, *states = self._recorded[key].run(arrays)
        if self.decoder.device.type == "cuda":
            torch.cuda.synchronize(self.decoder.device)
        return TorchOutput(logits[:wanted], states)


class _Recorded:
    """One recorded pass."""

    def __init__(self, capture: Capture, inputs: list[torch.Tensor], compute: Run) -> None:
        self._inputs = inputs
        # A pass over the same inputs writes the same keys into the same slots, so warming up and recording leave the
        # cache as the pass itself would.
        self._replay, self._results = capture(compute)

    def run(self, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        for static, array in zip(self._inputs, arrays, strict=True):
            static.copy_(array)
        self._replay()
        return [result.clone() for result in self._results]  # the next replay writes over them


class CudaCapture:
    """Records CUDA graphs on ``device``; they share one pool of memory, and one stream with its workspaces."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, compute: Run) -> tuple[Callable[[], None], list[torch.Tensor]]:
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    compute()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                results = compute()
        return graph.replay, results
