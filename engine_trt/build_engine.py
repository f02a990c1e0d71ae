"""Graphs → engines: on the robot with its TensorRT, or with TensorRT-RTX for a GPU given by name.

An engine directory holds NAME.plan for every network, the manifest of the graphs, and ``engine.json``: what it was
built with and for, which must be what it is run with, and how large it came out. It appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spec_planner.engines.decoder_config import ModelError

from .bindings import MANIFEST_FILE, SCATTER, Manifest, Network, read_manifest
from .build_watch import BuildWatch, Progress
from .digests import sha256_of
from .engine_key import EngineKey
from .inspect_engine import Compiled, check_network, compiled
from .precisions import PRECISIONS
from .timings import Timings
from .trt_module import Log, TensorRt, load_tensorrt
from .whole_directory import written_whole

ENGINE_FILE, TIMING_FILE = "engine.json", "timing.cache"
WORKSPACE_LIMIT = 1 << 30  # scratch memory a kernel may ask for; unlimited, TensorRT takes what the builder's GPU has
Report = Callable[[str], None]


@dataclass(frozen=True)
class Built:
    """One engine as it came out. Bytes: ``weights`` in the plan, ``activations`` of the larger profile while it runs;
    0 where TensorRT did not say. ``sha256`` of the plan.
    """

    plan: int
    sha256: str
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
    def weight_bytes(self) -> int:
        """Of all engines; of one that TensorRT did not speak of, its whole plan, which is little more."""
        return sum(built.weights or built.plan for built in self.engines.values())

    @property
    def activation_bytes(self) -> int:
        """Of all engines, each of which has its own."""
        return sum(built.activations for built in self.engines.values())


def build(graphs: Path, directory: Path, *, capability: str = "", timing_file: Path | None = None,
          report: Report = lambda line: None, progress: Progress = lambda share, what: None,
          interrupted: Callable[[], bool] = lambda: False) -> EngineRecord:  # fmt: skip
    """Build every network that ``spec-planner export`` wrote to ``graphs``.

    Args:
        capability: "sm89", …; left empty, the GPU that is there.
        timing_file: measurements of kernels, read and written again, that make the next build on this device faster;
            the full TensorRT alone makes any.
        progress: told the share of a network's build that is done, and what is being done.
        interrupted: asked now and then; the build ends when it says so, as it does on Ctrl-C.

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
            watch = BuildWatch(progress, interrupted)
            builder = _Builder(trt, key, manifest.dialect, Timings(timing_file if trt.keeps_timings else None, report))
            record.engines[name] = builder.build(graphs / f"{name}.onnx", network, scratch / f"{name}.plan", watch)
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


def check_plans(directory: Path, record: EngineRecord) -> None:
    """Raises ``ModelError`` where a plan in ``directory`` is not the one that was built."""
    for name, built in record.engines.items():
        path = directory / f"{name}.plan"
        try:
            found = path.stat().st_size
            damaged = found != built.plan or sha256_of([path]) != built.sha256
        except OSError as error:
            raise ModelError(
                f"{path} cannot be read ({error}): make the engine again with `spec-planner build`, or delete "
                f"{directory} if it is in the cache"
            ) from error
        if damaged:
            raise ModelError(
                f"{path} is not the plan that was built ({found} bytes, {built.plan} expected with the SHA-256 "
                f"{built.sha256[:16]}…): make the engine again with `spec-planner build`, or delete {directory} if it "
                f"is in the cache"
            )


class _Builder:
    """One network through TensorRT's builder."""

    def __init__(self, trt: TensorRt, key: EngineKey, dialect: str, timings: Timings) -> None:
        self._trt, self._key, self._dialect, self._timings = trt, key, dialect, timings

    def build(self, graph: Path, network: Network, plan: Path, watch: BuildWatch) -> Built:
        """Write ``plan``. Raises as ``build`` does."""
        return watch.call(lambda: self._build(graph, network, plan, watch))

    def _build(self, graph: Path, network: Network, path: Path, watch: BuildWatch) -> Built:
        api, log = self._trt.api, self._trt.make_log()
        builder = definition = parser = config = plan = content = None
        try:
            builder = api.Builder(log.listener)
            definition = builder.create_network(1 << int(api.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
            parser = api.OnnxParser(definition, log.listener)
            if not parser.parse_from_file(str(graph)):
                reasons = "; ".join(parser.get_error(index).desc() for index in range(parser.num_errors))
                raise ModelError(
                    f"{self._trt.flavour} {self._trt.version} cannot read {graph} ({reasons}): {self._advice}"
                )
            check_network(self._trt, definition, network, graph, self._advice)
            config = self.config(builder, network)
            config.progress_monitor = watch.monitor(api)
            plan = builder.build_serialized_network(definition, config)
            watch.check()
            if plan is None:
                raise ModelError(
                    f"{self._trt.flavour} {self._trt.version} cannot build {graph} for {self._key.capability} "
                    f"({log.reason}): try another --precision"
                )
            content = memoryview(plan)  # of TensorRT's own memory: a plan is as large as the model
            path.write_bytes(content)
            self._timings.keep(config)
            return Built(
                plan=int(plan.nbytes),
                sha256=hashlib.sha256(content).hexdigest(),
                weights=_last(log, "Weights"),
                activations=_greatest(log, "Activation"),
                compiled=compiled(log.lines, network),
            )
        except BaseException as error:
            failure = error.with_traceback(None)  # whose frames hold TensorRT's objects
        finally:  # in this order and now, not whenever and in what order garbage is collected
            content = plan = config = parser = definition = builder = None
        raise failure

    @property
    def _advice(self) -> str:
        return "try another --precision" if self._dialect == SCATTER else "export it with --trt 10.3"

    def config(self, builder: Any, network: Network) -> Any:
        """What the builder is told."""
        api = self._trt.api
        config = builder.create_builder_config()
        if hasattr(api.BuilderFlag, "TF32"):
            config.clear_flag(api.BuilderFlag.TF32)  # else products in float32 keep 10 bits of their factors
        if hasattr(api.BuilderFlag, "REQUIRE_USER_ALLOCATION"):  # no pass allocates: all can be recorded
            config.set_flag(api.BuilderFlag.REQUIRE_USER_ALLOCATION)
        config.set_memory_pool_limit(api.MemoryPoolType.WORKSPACE, WORKSPACE_LIMIT)
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
        self._timings.give(config)
        return config


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
