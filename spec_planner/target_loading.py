"""Configuration → loaded target, whichever engine runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        EngineUnavailable: the engine's library is missing, cannot be loaded or is too old.
        ModelError: the directory or the device cannot be used.
    """
    try:
        target = _target_class(config.engine)
    except ImportError as error:
        raise EngineUnavailable(
            f"engine {config.engine!r} needs the package {error.name}: {HOW_TO_INSTALL[config.engine]}, then configure "
            f"again"
        ) from error
    except OSError as error:  # the package is there, and a library of its is not
        raise EngineUnavailable(
            f"engine {config.engine!r} cannot be loaded ({error}): {HOW_TO_INSTALL[config.engine]} again"
        ) from error
    settings = {
        "torch": {"device": config.device, "threads": config.threads},
        "tensorrt": {"engine_file": config.engine_file, "report": report},
    }.get(config.engine, {"threads": config.threads, "report": report})
    return target.load(
        directory,
        context_length=config.context_length,
        precision=config.precision,
        pass_width=config.pass_width,
        **settings,
    )


def _target_class(engine: str) -> Any:
    """Each library is imported only where it is used."""
    if engine == "torch":
        from .engines.torch_target import TorchTarget

        return TorchTarget
    if engine == "tensorrt":
        from engine_trt.trt_target import TrtTarget

        return TrtTarget
    if engine == "openvino":
        from .engines.openvino_target import OpenVinoTarget

        return OpenVinoTarget
    if engine == "onnx":
        from .engines.onnx_target import OnnxTarget

        return OnnxTarget
    raise ValueError(f"no target runs on engine {engine!r}: name one, or let chosen_engine do so")
