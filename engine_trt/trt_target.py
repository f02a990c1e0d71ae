"""A target on TensorRT, for NVIDIA GPUs and Jetsons. It has **never run on a GPU**: see ``trt_session.py``.

An engine is exported and built when first asked for, or made beforehand (``spec-planner export``, ``build``) and named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from spec_planner.decoding.contracts import Incompatible
from spec_planner.engines.decoder_config import EngineUnavailable, read_decoder_config
from spec_planner.engines.passes import BITWISE_EXTENT_STEP, DECODE_WIDTHS, Extents, check_context
from spec_planner.engines.session_target import SessionTarget

from .bindings import read_manifest
from .build_engine import read_record
from .checkpoint_lender import CheckpointLender
from .engine_cache import check_engine_directory, engine_directory, ensure_engine
from .engine_key import NO_GPU
from .precisions import PRECISIONS
from .trt_module import load_tensorrt
from .trt_session import TrtSession

Report = Callable[[str], None]


class TrtTarget(SessionTarget):
    """See ``SessionTarget``."""

    engine = "tensorrt"
    _session: TrtSession

    @classmethod
    def load(cls, directory: Path, *, context_length: int, precision: str = "float16", pass_width: int | None = None,
             engine_file: str = "", report: Report = lambda line: None) -> TrtTarget:  # fmt: skip
        """Load the engine of a Llama, Qwen2 or Qwen3 checkpoint.

        Args:
            directory: of the checkpoint, which the engine must be of; weights that are lent are read from it.
            pass_width: every verify pass has that width (same bits).
            engine_file: an engine made beforehand: its directory, or a file in it. "": the one in the cache, which is
                built if need be.

        Raises:
            EngineUnavailable: there is no TensorRT, or no GPU.
            ModelError: the checkpoint or the engine cannot be used; one sentence.
        """
        trt = load_tensorrt()
        if not torch.cuda.is_available():
            raise EngineUnavailable(
                f"engine 'tensorrt' needs an NVIDIA GPU, and {NO_GPU}: run it where there is one, or use another engine"
            )
        config = read_decoder_config(directory)
        check_context(config, context_length, directory)
        if engine_file:
            place = engine_directory(engine_file)
            manifest = check_engine_directory(place, directory, context_length=context_length, precision=precision)
        else:
            place = ensure_engine(directory, context_length=context_length, precision=precision, report=report)
            manifest = read_manifest(place)
        device = torch.device("cuda")
        lender = CheckpointLender(directory, context_length)
        dtype: torch.dtype = getattr(torch, PRECISIONS[manifest.precision].compute)

        def lend(name: str) -> torch.Tensor:
            return lender.lend(name, dtype).to(device)

        widths = DECODE_WIDTHS if pass_width is None else (pass_width,)
        weight_bytes = read_record(place).weight_bytes + manifest.lent_bytes
        session = TrtSession(trt, place / "decoder.plan", manifest, lend, widths, device, weight_bytes=weight_bytes)
        # Every extent is a CUDA graph of its own, and attention over slots that are masked costs little.
        extents = Extents(widths, context_length, BITWISE_EXTENT_STEP)
        return cls(session, config, directory.name, precision, str(device), context_length, widths, extents)

    def first_layers(self, num_layers: int, context_length: int) -> TrtTarget:
        """Raises ``Incompatible``: an engine cannot be cut short."""
        raise Incompatible(
            f"engine 'tensorrt' cannot draft with the first layers of {self.info.name!r}: give draft_model, or use "
            f"another drafter"
        )

    def tap(self, feature_layers: Sequence[int]) -> None:
        """Raises ``Incompatible`` where the engine was exported without one of them."""
        missing = [layer for layer in feature_layers if not self._session.puts_out(layer)]
        if missing:
            raise Incompatible(
                f"the engine of target {self.info.name!r} does not put out hidden state {missing[0]}: export it again "
                f"without --taps, or with this one too"
            )
        super().tap(feature_layers)
        self._session.forget_other_taps(feature_layers)
