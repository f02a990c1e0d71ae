"""One TensorRT engine of a target, and its KV cache, on a GPU. It has **never run on a GPU**: none was at hand.

What has run is everything around the execution context: tests put ONNX Runtime behind the same calls, on the CPU, and
the conformance suite passes there.

    numbers of a pass ─copied─▶ input buffers ─▶ execution context ─▶ output buffers ─copied─▶ the output of the pass
                                                       │ in place, or new rows copied in afterwards
                                                   KV cache

Verify passes are recorded as CUDA graphs, one per shape, each with a context of its own: a context used for another
shape in between could change what a recorded copy reads. A prompt's passes are not recorded, and a long prompt is read
in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from spec_planner.decoding.contracts import Incompatible
from spec_planner.engines.passes import PassRows
from spec_planner.engines.session_target import first_moved
from spec_planner.engines.torch_graphs import Capture, CudaCapture
from spec_planner.engines.torch_session import TorchOutput, pass_arrays

from .bindings import DECODE, PREFILL, Manifest
from .trt_buffers import Buffers, TrtCache
from .trt_engine import TrtEngine
from .trt_module import TensorRt

Lend = Callable[[str], torch.Tensor]
_Shape = tuple[tuple[int, ...], tuple[int, ...]]  # n, r and S; hidden states put out


class TrtSession:
    """A ``Session`` (see ``spec_planner/engines/session_target.py``).

    Args:
        plan: the engine of ``manifest``'s network ``decoder``.
        lend: gives the target's weights by name, on the device and in the engine's type.
        widths: of the passes that are recorded.
        capture: records a run: returns what replays it, and the tensors that then hold its results.
        weight_bytes: of the built engine and what it is lent; 0: as exported.
    """

    def __init__(self, trt: TensorRt, plan: Path, manifest: Manifest, lend: Lend, widths: Collection[int],
                 device: torch.device, capture: Capture | None = None, weight_bytes: int = 0) -> None:  # fmt: skip
        """Raises ``ModelError`` when the plan cannot be opened, or is not what the manifest says."""
        self._network, self._manifest, self._device = manifest.networks["decoder"], manifest, device
        self._versions = {trt.flavour: trt.version, "engine": manifest.key}
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._engine = TrtEngine(trt, plan, self._network, device, self._stream)
        self._capture = capture or CudaCapture(device)
        self._make_lent, self._lent = lend, {name: lend(name) for name in manifest.lent}
        layers = [str(layer) for layer in range(manifest.sizes["num_layers"])]
        self._cache = TrtCache(layers, self._network.cache[0], device)
        self._buffers = Buffers(self._network, self._cache, self._lent, device)
        self._contexts = [self._engine.new_context(profile, self._buffers) for profile in (DECODE, PREFILL)]
        self._widths = frozenset(widths)
        self._recorded: dict[_Shape, tuple[Callable[[], None], list[torch.Tensor]]] = {}
        self._weight_bytes = weight_bytes or manifest.weight_bytes + manifest.lent_bytes

    @property
    def weight_bytes(self) -> int:
        return self._weight_bytes

    @property
    def kv_bytes(self) -> int:
        return self._cache.rows.nbytes

    @property
    def versions(self) -> Mapping[str, str]:
        return self._versions

    def make_room(self, needed: int, keep: int) -> int:
        """The cache lies as it will at capacity; a pass looks at as much of it as it needs."""
        return needed

    @torch.inference_mode()
    def run(self, rows: PassRows, scored: Sequence[int], hidden_layers: Sequence[int], wanted: int) -> TorchOutput:
        """See ``session_target.Session``."""
        with torch.cuda.stream(self._stream):  # where there is no GPU, None and of no effect
            parts = [self._part(*part, hidden_layers) for part in self._parts(rows, scored)]
            logits = parts[-1][0]  # of a prompt in parts the last row alone is scored
            states = [torch.cat(each) for each in zip(*(part[1:] for part in parts), strict=True)]
        if self._stream is not None:
            self._stream.synchronize()  # so that whoever times a pass times all of it
            reader = torch.cuda.current_stream(self._device)
            for result in (logits, *states):  # its memory is not to be used again here while it is read there
                result.record_stream(reader)
        return TorchOutput(logits[:wanted], states)

    @torch.inference_mode()
    def keep(self, start: int, path: Sequence[int]) -> None:
        """See ``session_target.Session``. Row i's keys are in slot start + i already, where most belong."""
        moved = first_moved(path)
        if moved < len(path):
            with torch.cuda.stream(self._stream):
                self._cache.move(torch.tensor(path[moved:], device=self._device) + start, start + moved)

    @torch.inference_mode()
    def clear(self) -> None:
        """See ``session_target.Session``."""
        with torch.cuda.stream(self._stream):
            self._cache.rows.zero_()

    def lend(self, name: str) -> torch.Tensor:
        """The buffer that the engine itself is bound to, where it is lent one; else a copy, made when first wanted."""
        if name == "head" and self._manifest.tied_head:
            name = "embedding"  # one matrix, one buffer
        if name not in self._lent:
            self._lent[name] = self._make_lent(name)
        return self._lent[name]

    def puts_out(self, layer: int) -> bool:
        """Whether the engine has hidden state ``layer`` among its outputs."""
        return f"hidden.{layer}" in self._buffers

    def forget_other_taps(self, hidden_layers: Sequence[int]) -> None:
        """Drop the recordings that put out other hidden states: each holds a context and a graph."""
        self._recorded = {key: kept for key, kept in self._recorded.items() if key[1] == tuple(hidden_layers)}

    def _parts(self, rows: PassRows, scored: Sequence[int]) -> Iterator[tuple[PassRows, list[int]]]:
        """Passes that the profiles have room for, each with the rows to score, of which there must be one.

        Raises:
            Incompatible: more rows are to be scored than a pass scores.
        """
        most = [ranges["n"][2] for ranges in self._network.profiles]
        count = len(rows.ids)
        if count <= most[DECODE]:
            yield rows, list(scored)
            return
        if list(scored) != [count - 1]:
            raise Incompatible(f"a pass of {count} rows scores its last alone; one of up to {most[DECODE]} scores any")
        for first in range(0, count, most[PREFILL]):
            piece = slice(first, first + most[PREFILL])
            part = PassRows(rows.ids[piece], rows.positions[piece], rows.start + first, rows.mask[piece])
            yield part, [len(part.ids) - 1]

    def _part(self, rows: PassRows, scored: list[int], hidden_layers: Sequence[int]) -> list[torch.Tensor]:
        """One pass: logits and hidden states in memory of their own."""
        sizes = {"n": len(rows.ids), "r": len(scored), "S": rows.mask.shape[1]}
        ids, positions, slots, mask, wanted_rows = (torch.from_numpy(array) for array in pass_arrays(rows, scored))
        numbers = {"ids": ids, "positions": positions, "slots": slots, "start": slots[:1], "mask": mask}
        for name, values in {**numbers, "rows": wanted_rows}.items():
            if name in self._buffers:
                self._buffers.view(name, sizes).copy_(values)
        if sizes["n"] == sizes["r"] and sizes["n"] in self._widths:
            key = tuple(sizes.values()), tuple(hidden_layers)
            if key not in self._recorded:
                self._recorded[key] = self._record(sizes, hidden_layers)
            replay, results = self._recorded[key]
            replay()
        else:
            context = self._contexts[DECODE if sizes["n"] <= self._network.profiles[DECODE]["n"][2] else PREFILL]
            self._engine.set_sizes(context, sizes)
            results = self._execute(context, sizes, hidden_layers)
        return [result.clone() for result in results]  # the next pass writes over them

    def _record(
        self, sizes: Mapping[str, int], hidden_layers: Sequence[int]
    ) -> tuple[Callable[[], None], list[torch.Tensor]]:
        """What runs a pass of ``sizes`` again, and its results."""
        context = self._engine.new_context(DECODE, self._buffers, sizes)
        if self._engine.can_be_recorded(context):
            return self._capture(lambda: self._execute(context, sizes, hidden_layers))

        def run() -> None:
            self._execute(context, sizes, hidden_layers)

        return run, self._results(sizes, hidden_layers)

    def _execute(self, context: Any, sizes: Mapping[str, int], hidden_layers: Sequence[int]) -> list[torch.Tensor]:
        """Run ``context`` on the current stream; the results are the buffers themselves."""
        self._engine.execute(context)
        self._buffers.store_new_rows(sizes)
        return self._results(sizes, hidden_layers)

    def _results(self, sizes: Mapping[str, int], hidden_layers: Sequence[int]) -> list[torch.Tensor]:
        return [self._buffers.view(name, sizes) for name in ("logits", *(f"hidden.{layer}" for layer in hidden_layers))]
