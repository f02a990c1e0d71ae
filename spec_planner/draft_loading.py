"""Drafter checkpoint → loaded drafter: its network on ONNX Runtime beside targets that run as graphs, else in torch.

Measured for every drafter that comes with the package (``docs/add_a_drafter.md``; medians of paired runs): on one
thread a graph with 8-bit matrices makes a draft of 7 tokens 1.7 to 3.4 times as fast as torch does, of 15 tokens up to
3.8 times (``mtp``), and about as much of it is kept. No token changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from drafters.registry import GRAPHS_BESIDE, TorchOnly, load_drafter

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

    Where its network has no graph, or none can be made or loaded here, torch runs it and ``report`` says why.

    Raises:
        ModelError: a package is missing without which torch cannot run it either.
        ValueError: it cannot be used, or not with this target.
    """
    try:
        import torch

        if config.threads:  # which another engine has kept to itself
            torch.set_num_threads(config.threads)
        if target.info.engine in GRAPHS_BESIDE:
            try:
                return load_drafter(checkpoint, target, branches, _compiler(config.threads))
            except TorchOnly as error:
                report(f"drafter {checkpoint.name}: {error}")
        return load_drafter(checkpoint, target, branches)
    except ImportError as error:
        raise ModelError(
            f"drafter {config.drafter!r} needs the package {error.name}: install it, or set drafter to lookup, then "
            f"configure again"
        ) from error


def _compiler(threads: int) -> Compile:
    """Raises ``TorchOnly``, as what it returns does, where no graph can be run here."""
    with _torch_otherwise():
        from .engines.onnx_runner import open_runner
    return _torch_otherwise()(
        lambda graphs: open_runner(
            graphs.key(_BITS), lambda directory: graphs.write(directory, _BITS), graphs.lent, threads
        )
    )


@contextlib.contextmanager
def _torch_otherwise() -> Iterator[None]:
    """What stands in a graph's way becomes ``TorchOnly``; the checkpoint's own errors do not pass through here."""
    try:
        yield
    except ImportError as error:
        raise TorchOnly(f"its graph needs the package {error.name}: install it; torch runs it instead") from error
    except ModelError as error:
        raise TorchOnly(f"{error}; torch runs it instead") from error
