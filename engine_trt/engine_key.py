"""What an engine was built with and for. It runs there and nowhere else."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from spec_planner.engines.decoder_config import ModelError

from .bindings import LAYOUT, Manifest
from .trt_module import TensorRt

_TEGRA_RELEASE = Path("/etc/nv_tegra_release")
NO_GPU = "torch sees no GPU here (on a Jetson install NVIDIA's torch wheel)"
_NAMES = {
    "flavour": "TensorRT flavour",
    "version": "TensorRT version",
    "capability": "GPU",
    "device": "device",
    "release": "Jetson Linux release",
    "graph_hash": "graph",
    "precision": "precision",
    "layout": "layout",
}


@dataclass(frozen=True)
class EngineKey:
    """What must be equal.

    Attributes:
        capability: as "sm89".
        device: name and number of multiprocessors, for which the full TensorRT chooses kernels; "" of TensorRT-RTX,
            which chooses them for a capability.
        release: of Jetson Linux; "" elsewhere, and in a container that does not have ``/etc/nv_tegra_release`` of its
            Jetson (mount it, or build and run in the same container).
    """

    flavour: str
    version: str
    capability: str
    device: str
    release: str
    graph_hash: str
    precision: str
    layout: int

    @staticmethod
    def of(trt: TensorRt, manifest: Manifest, capability: str = "") -> EngineKey:
        """The key of an engine of ``manifest`` made here; ``capability``: for that GPU instead of the one here.

        Raises:
            ModelError: no such GPU can be compiled for, or none is here and none named.
        """
        return EngineKey(
            flavour=trt.flavour,
            version=trt.version,
            capability=_capability(trt, capability),
            device=device_name() if trt.flavour == "tensorrt" else "",
            release=jetson_release(),
            graph_hash=manifest.graph_hash,
            precision=manifest.precision,
            layout=LAYOUT,
        )

    def differences(self, other: EngineKey) -> list[str]:
        """ "GPU sm86 and not sm89", …: this key's values and the other's."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{_NAMES[name]} {_short(name, mine[name])} and not {_short(name, theirs[name])}"
            for name in mine
            if mine[name] != theirs[name]
        ]


def jetson_release(path: Path = _TEGRA_RELEASE) -> str:
    """ "R36.4.3" of "# R36 (release), REVISION: 4.3, …"; "" where the file is not there."""
    try:
        words = path.read_text(encoding="utf-8").replace(",", " ").split()
        return f"{words[1]}.{words[words.index('REVISION:') + 1]}"
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, IndexError) as error:
        raise ModelError(f"{path} does not say which Jetson Linux this is ({error!r})") from error


def device_capability() -> str:
    """ "sm87" of the GPU that is here, "" without one."""
    if not torch.cuda.is_available():
        return ""
    major, minor = torch.cuda.get_device_capability()
    return f"sm{major}{minor}"


def device_name() -> str:
    """ "Orin (16 multiprocessors)" of the GPU that is here, "" without one."""
    if not torch.cuda.is_available():
        return ""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return f"{properties.name} ({properties.multi_processor_count} multiprocessors)"


def _capability(trt: TensorRt, wanted: str) -> str:
    wanted, here, offered = wanted.lower(), device_capability(), trt.capabilities()
    if not wanted and not here:
        raise ModelError(
            f"there is no GPU here to build for: name one with --compute-capability ({', '.join(offered)})"
            if offered
            else f"{NO_GPU}, and the full TensorRT builds only for the GPU it runs on: build on the robot"
        )
    if wanted and not offered and wanted != here:
        raise ModelError(
            f"the full TensorRT builds only for the GPU it runs on, {here or 'none'} here, not {wanted}: build there"
        )
    if offered and (wanted or here) not in offered:
        raise ModelError(
            f"{trt.flavour} {trt.version} cannot build for {wanted or here}: it knows {', '.join(offered)}"
        )
    return wanted or here


def _short(name: str, value: object) -> str:
    return str(value)[: 16 if name == "graph_hash" else None] or "none"
