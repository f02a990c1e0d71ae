"""Drafter checkpoint → loaded drafter: its network on ONNX Runtime beside targets that run as graphs, else in torch.

Measured for every drafter that comes with the package (``docs/add_a_drafter.md``): as a graph with 8-bit matrices each
drafts 1.7 to 3.8 times as fast on one thread as in torch, and about as much of it is kept. No token changes.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from drafters.registry import TorchOnly, load_drafter

from .config import PlannerConfig
from .decoding.contracts import Drafter
from .engines.decoder_config import ModelError

if TYPE_CHECKING:
    from drafters.registry import Compile

    from .target_loading import ModelTarget

Report = Callable[[str], None]
_BITS = 8


def load_network(
    checkpoint: Path, config: PlannerConfig, target: ModelTarget, branches: int, report: Report
) -> Drafter:
    """The drafter in ``checkpoint``, which ``config`` names, for ``target``.

    Raises:
        ModelError: a package is missing, or the graph cannot be written or loaded.
        ValueError: it cannot be used, or not with this target.
    """
    try:
        import torch

        if config.threads:  # which another engine has kept to itself
            torch.set_num_threads(config.threads)
        compiler = _compiler(target, config.threads)
        if compiler is None:
            return load_drafter(checkpoint, target, branches)
        try:
            return load_drafter(checkpoint, target, branches, compiler)
        except TorchOnly as error:
            report(f"drafter {checkpoint.name}: {error}")
            return load_drafter(checkpoint, target, branches)
    except ImportError as error:
        raise ModelError(
            f"drafter {config.drafter!r} needs the package {error.name}: install it, or set drafter to lookup, then "
            f"configure again"
        ) from error


def _compiler(target: ModelTarget, threads: int) -> Compile | None:
    """None where torch is to run the network: torch's own targets, those on a GPU, or no ONNX Runtime."""
    if target.info.engine not in ("onnx", "openvino") or find_spec("onnxruntime") is None:
        return None
    from .engines.onnx_runner import open_runner

    return lambda graphs: open_runner(
        graphs.key(_BITS), lambda directory: graphs.write(directory, _BITS), graphs.lent, threads
    )
