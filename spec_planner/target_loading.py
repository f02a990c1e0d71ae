"""Configuration → loaded target, whichever engine runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .config import PlannerConfig
from .engines.decoder_config import EngineUnavailable

if TYPE_CHECKING:
    from engine_trt.trt_target import TrtTarget

    from .engines.exported_target import ExportedTarget
    from .engines.torch_target import TorchTarget

    ModelTarget = TorchTarget | ExportedTarget | TrtTarget

Report = Callable[[str], None]
HOW_TO_INSTALL = {
    "torch": "install it",
    "onnx": "pip install onnx onnxruntime",
    "openvino": "pip install onnx openvino",
    "tensorrt": "on a Jetson it comes with JetPack, elsewhere pip install it",
}


def load_target(config: PlannerConfig, directory: Path, report: Report = lambda line: None) -> ModelTarget:
    """The model in ``directory`` on the engine that ``config`` names, ``auto`` having been named before.

    Raises:
        EngineUnavailable: the engine's library is missing or too old.
        ModelError: the directory or the device cannot be used.
    """
    try:
        return _load(config, directory, report)
    except ImportError as error:
        raise EngineUnavailable(
            f"engine {config.engine!r} needs the package {error.name}: {HOW_TO_INSTALL[config.engine]}, then configure "
            f"again"
        ) from error


def _load(config: PlannerConfig, directory: Path, report: Report) -> ModelTarget:
    """Each library is imported only where it is used."""
    context, precision, threads, width = config.context_length, config.precision, config.threads, config.pass_width
    if config.engine == "torch":
        from .engines.torch_target import TorchTarget

        return TorchTarget.load(
            directory,
            context_length=context,
            precision=precision,
            device=config.device,
            threads=threads,
            pass_width=width,
        )
    if config.engine == "tensorrt":
        from engine_trt.trt_target import TrtTarget

        return TrtTarget.load(
            directory,
            context_length=context,
            precision=precision,
            pass_width=width,
            engine_file=config.engine_file,
            report=report,
        )
    return _exported_target(config.engine).load(
        directory, context_length=context, precision=precision, threads=threads, pass_width=width, report=report
    )


def _exported_target(engine: str) -> type[ExportedTarget]:
    if engine == "openvino":
        from .engines.openvino_target import OpenVinoTarget

        return OpenVinoTarget
    if engine == "onnx":
        from .engines.onnx_target import OnnxTarget

        return OnnxTarget
    raise ValueError(f"no target runs on engine {engine!r}: name one, or let chosen_engine do so")
