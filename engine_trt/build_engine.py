"""Graphs → engines: on the robot with its TensorRT, or with TensorRT-RTX for a GPU given by name.

An engine directory holds NAME.plan for every network, the manifest of the graphs, and ``engine.json``: what it was
built with and for, which must be what it is run with, and how large it came out. It appears whole or not at all.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spec_planner.engines.decoder_config import ModelError

from .bindings import MANIFEST_FILE, Manifest, Network, read_manifest
from .engine_key import EngineKey
from .inspect_engine import Compiled, check_network, compiled
from .precisions import PRECISIONS
from .trt_module import Log, TensorRt, load_tensorrt
from .whole_directory import written_whole

ENGINE_FILE, TIMING_FILE = "engine.json", "timing.cache"
Report = Callable[[str], None]
Progress = Callable[[float, str], None]  # share done, of what


@dataclass(frozen=True)
class Built:
    """One engine as it came out. Bytes: ``weights`` in the plan, ``activations`` of the larger profile while it runs;
    0 where TensorRT did not say.
    """

    plan: int
    weights: int
    activations: int
    compiled: Compiled


@dataclass(frozen=True)
class EngineRecord:
    """``engine.json``."""

    key: EngineKey
    engines: dict[str, Built]

    @property
    def plan_bytes(self) -> int:
        return sum(built.plan for built in self.engines.values())

    @property
    def activation_bytes(self) -> int:
        return max(built.activations for built in self.engines.values())


def build(graphs: Path, directory: Path, *, capability: str = "", timing_file: Path | None = None,
          report: Report = lambda line: None, progress: Progress = lambda share, what: None,
          interrupted: Callable[[], bool] = lambda: False) -> EngineRecord:  # fmt: skip
    """Build every network that ``spec-planner export`` wrote to ``graphs``.

    Args:
        capability: "sm89", …; left empty, the GPU that is there.
        timing_file: measurements of kernels, read and written again, that make the next build on this device faster;
            the full TensorRT alone makes any.
        interrupted: asked now and then; the build ends when it says so.

    Raises:
        EngineUnavailable: there is no TensorRT.
        ModelError: the graphs cannot be used, or not on that GPU.
        KeyboardInterrupt: it was interrupted; nothing is left behind.
    """
    manifest = read_manifest(graphs)
    trt = load_tensorrt()
    key = EngineKey.of(trt, manifest, capability)
    _check_capability(trt, manifest, key)
    record = EngineRecord(key, {})

    def make(scratch: Path) -> None:
        for name, network in manifest.networks.items():
            report(f"building {manifest.kind} {name} for {key.capability} with {trt.flavour} {trt.version}")
            builder = _Builder(trt, key, timing_file, progress, interrupted)
            plan, record.engines[name] = builder.build(graphs / f"{name}.onnx", network)
            (scratch / f"{name}.plan").write_bytes(plan)
        shutil.copyfile(graphs / MANIFEST_FILE, scratch / MANIFEST_FILE)
        (scratch / ENGINE_FILE).write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")

    written_whole(directory, make)
    return record


def read_record(directory: Path) -> EngineRecord:
    """Raises ``ModelError`` where there is no engine, or one that another version wrote."""
    path = directory / ENGINE_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        engines = {
            name: Built(**{**entry, "compiled": Compiled(**entry["compiled"])})
            for name, entry in content["engines"].items()
        }
        return EngineRecord(EngineKey(**content["key"]), engines)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{directory} holds no engine ({error}): make one with `spec-planner build`") from error


class _Builder:
    """One network through TensorRT's builder."""

    def __init__(self, trt: TensorRt, key: EngineKey, timing_file: Path | None, progress: Progress,
                 interrupted: Callable[[], bool]) -> None:  # fmt: skip
        self._trt, self._key = trt, key
        self._timing_file = timing_file if trt.keeps_timings else None
        self._progress, self._interrupted = progress, interrupted

    def build(self, graph: Path, network: Network) -> tuple[bytes, Built]:
        """The plan, and how it came out. Raises as ``build`` does."""
        api, log = self._trt.api, self._trt.make_log()
        builder = api.Builder(log.listener)
        definition = builder.create_network(1 << int(api.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = api.OnnxParser(definition, log.listener)
        if not parser.parse_from_file(str(graph)):
            reasons = "; ".join(parser.get_error(index).desc() for index in range(parser.num_errors))
            raise ModelError(
                f"{self._trt.flavour} {self._trt.version} cannot read {graph} ({reasons}): export it with --trt 10.3"
            )
        check_network(self._trt, definition, network, graph)
        config = self._config(builder, network)
        plan = builder.build_serialized_network(definition, config)
        if self._interrupted():
            raise KeyboardInterrupt
        if plan is None:
            raise ModelError(
                f"{self._trt.flavour} {self._trt.version} cannot build {graph} for {self._key.capability} "
                f"({log.reason}): try another --precision"
            )
        self._save_timings(config)
        layers = compiled(log.lines, network)
        return bytes(plan), Built(int(plan.nbytes), _last(log, "Weights"), _greatest(log, "Activation"), layers)

    def _config(self, builder: Any, network: Network) -> Any:
        api = self._trt.api
        config = builder.create_builder_config()
        if self._trt.names_capability:
            config.num_compute_capabilities = 1
            config.set_compute_capability(getattr(api.ComputeCapability, self._key.capability.upper()), 0)
        config.profiling_verbosity = api.ProfilingVerbosity.DETAILED  # so that the engine can be read back
        for index in range(len(network.profiles)):
            profile = builder.create_optimization_profile()
            for tensor in network.inputs:
                if any(isinstance(extent, str) for extent in tensor.shape):
                    profile.set_shape(tensor.name, *network.shapes(index, tensor))
            config.add_optimization_profile(profile)
        if self._timing_file is not None:
            stored = self._timing_file.read_bytes() if self._timing_file.is_file() else b""
            # One of another device or version is not taken, and a fresh one begun.
            if not config.set_timing_cache(config.create_timing_cache(stored), False):
                config.set_timing_cache(config.create_timing_cache(b""), False)
        config.progress_monitor = self._monitor()
        return config

    def _monitor(self) -> Any:
        api, progress, interrupted = self._trt.api, self._progress, self._interrupted

        class Monitor(api.IProgressMonitor):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                api.IProgressMonitor.__init__(self)
                self._steps: dict[str, int] = {}

            def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
                self._steps[phase_name] = num_steps

            def step_complete(self, phase_name: str, step: int) -> bool:
                progress((step + 1) / max(self._steps.get(phase_name, 1), step + 1), phase_name)
                return not interrupted()

            def phase_finish(self, phase_name: str) -> None:
                self._steps.pop(phase_name, None)

        return Monitor()

    def _save_timings(self, config: Any) -> None:
        if self._timing_file is None:
            return
        self._timing_file.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._timing_file.with_suffix(".new")
        scratch.write_bytes(bytes(config.get_timing_cache().serialize()))
        scratch.replace(self._timing_file)


def _check_capability(trt: TensorRt, manifest: Manifest, key: EngineKey) -> None:
    needed, number = PRECISIONS[manifest.precision].compute_capability, int(key.capability.removeprefix("sm"))
    if number < needed:
        raise ModelError(
            f"precision {manifest.precision} needs a GPU of compute capability {needed} or above, {key.capability} is "
            f"below: export in another precision, int8 runs everywhere"
        )
    if trt.flavour == "tensorrt" and not trt.at_least(manifest.dialect):
        raise ModelError(
            f"these graphs need TensorRT {manifest.dialect} and this is {trt.version}: export them with --trt 10.3"
        )


def _sizes(log: Log, what: str) -> list[int]:
    found = (re.match(rf"Total {what} Memory: (\d+)", line) for line in log.lines)
    return [int(match[1]) for match in found if match]


def _greatest(log: Log, what: str) -> int:
    return max(_sizes(log, what), default=0)


def _last(log: Log, what: str) -> int:
    return (_sizes(log, what) or [0])[-1]
