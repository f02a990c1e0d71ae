"""The only place that imports TensorRT: the full one, which JetPack brings, or TensorRT-RTX from PyPI.

Both have nearly one interface, and the rest of this package keeps to what TensorRT 10.3 … 11 and TensorRT-RTX share.
TensorRT-RTX also compiles for GPUs that are not there, which is how engines are built and tested without one.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any

from spec_planner.engines.decoder_config import EngineUnavailable

_FULL, _RTX = "tensorrt", "tensorrt-rtx"
OLDEST = "10.3"  # JetPack 6; JetPack 5 has 8.5
_MODULES = (("tensorrt", _FULL), ("tensorrt_rtx", _RTX), ("tensorrt_rtx_bindings", _RTX))
HOW_TO_GET = (
    "on a Jetson it comes with JetPack (apt install tensorrt, and a venv with --system-site-packages), elsewhere "
    "pip install tensorrt, or -r requirements/tensorrt-rtx.txt to build without a GPU"
)


@dataclass(frozen=True)
class TensorRt:
    """A loaded TensorRT.

    Attributes:
        api: the module.
        flavour: "tensorrt" or "tensorrt-rtx".
    """

    api: Any
    flavour: str

    @property
    def version(self) -> str:
        return str(self.api.__version__)

    @property
    def names_capability(self) -> bool:
        """Whether it compiles for a GPU by name."""
        return hasattr(self.api, "ComputeCapability")

    @property
    def keeps_timings(self) -> bool:
        """Whether it measures kernels when it builds. TensorRT-RTX chooses them without."""
        return self.flavour == _FULL

    def at_least(self, version: str) -> bool:
        """Whether it is ``version`` ("10.15") or newer; versions of TensorRT-RTX count for themselves."""
        return [int(part) for part in self.version.split(".")[:2]] >= [int(part) for part in version.split(".")]

    def capabilities(self) -> list[str]:
        """Names of the GPUs it compiles for, "sm89", …; empty where it does so only for the one that is there."""
        if not self.names_capability:
            return []
        return sorted(name.lower() for name in dir(self.api.ComputeCapability) if name.startswith("SM"))

    def make_log(self) -> Log:
        """A log for builders and runtimes, that keeps what was said."""
        log = Log()
        log.listener = _listener_class(self.api.ILogger)(log)
        _LISTENERS.append(log.listener)
        return log


_LISTENERS: list[Any] = []  # TensorRT keeps a pointer to the first it is given, for as long as the process lives


class Log:
    """What TensorRT said: errors, and the few lines that say how large things are."""

    def __init__(self) -> None:
        self.listener: Any = None
        self.errors: list[str] = []
        self.lines: list[str] = []

    def take(self, is_error: bool, message: str) -> None:
        if is_error:
            self.errors.append(message)
        elif message.startswith(("Layers:", "Total Activation Memory", "Total Weights Memory")):
            self.lines.append(message)

    @property
    def reason(self) -> str:
        """The last error, for a sentence: earlier ones may be of something that was got over."""
        return " ".join(self.errors[-1].split())[:300] if self.errors else "it gave no reason"


@functools.cache
def _listener_class(base: Any) -> Any:
    """A class, because TensorRT calls a method of its own base class; made once per TensorRT."""

    class Listener(base):  # type: ignore[misc]
        def __init__(self, log: Log) -> None:
            base.__init__(self)
            self._log = log

        def log(self, severity: Any, message: str) -> None:
            self._log.take(severity in (base.ERROR, base.INTERNAL_ERROR), message)

    return Listener


def load_tensorrt() -> TensorRt:
    """Raises ``EngineUnavailable`` where there is none, or one that is too old."""
    reasons = []
    for name, flavour in _MODULES:
        try:
            trt = TensorRt(importlib.import_module(name), flavour)
            if flavour == _RTX or trt.at_least(OLDEST):
                return trt
            reasons.append(f"{name} is there in version {trt.version}, and {OLDEST} is the oldest that can be used")
        except ModuleNotFoundError as error:
            if error.name != name:
                reasons.append(f"{name} lacks {error.name}")
        except (ImportError, OSError) as error:  # its libraries are not there, or not those of this CUDA
            reasons.append(f"{name} cannot be loaded: {' '.join(str(error).split())}")
    said = f" ({'; '.join(reasons)})" if reasons else ""
    raise EngineUnavailable(f"engine 'tensorrt' needs TensorRT, which is not installed here{said}: {HOW_TO_GET}")
