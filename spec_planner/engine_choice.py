"""Which engine ``engine: auto`` is on this machine.

    on a GPU     tensorrt where an engine_file is given, else torch, else (a precision torch has not) tensorrt
    on the CPU   the fastest of onnx, torch and openvino, of those that have the precision and are installed

The fastest is found by a short trial at the first start and remembered in the cache. It must not be found anew at every
start: engines round differently, so that near ties between tokens may turn with the engine, and a trial's outcome may
turn with what else the machine is doing. For the same reason a near tie between engines keeps a fixed order.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import __version__
from .config import CPU_PRECISIONS, ConfigError, PlannerConfig
from .decoding.contracts import PromptInput, Target
from .decoding.draft_tree import DraftTree
from .engines.cache import cache_directory, locked
from .engines.decoder_config import EngineUnavailable, ModelError, read_decoder_config
from .engines.identity import target_identity
from .engines.threads import share_the_cpu
from .machine import cpu_model
from .memory.check import DoesNotFit, check_budget
from .target_loading import HOW_TO_INSTALL, Report, load_target

Measure = Callable[[PlannerConfig, Path, Report], float]

PREFERRED = ("onnx", "torch", "openvino")  # of engines that are about as fast, the first is taken
FASTER_BY = 0.10  # share of the time that an engine must save to be taken before one that is preferred
PROMPT_TOKENS, WARM_UP_PASSES, TIMED_PASSES = 128, 3, 9
_LIBRARIES = {"onnx": "onnxruntime", "torch": "torch", "openvino": "openvino"}
_VERSIONS_OF = ("torch", "onnx", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Trial:
    """What was found once: the fastest engine, and milliseconds per verify pass of every engine tried."""

    engine: str
    milliseconds: dict[str, float]


def chosen_engine(
    config: PlannerConfig, directory: Path, report: Report = lambda line: None, measure: Measure | None = None
) -> PlannerConfig:
    """``config`` with its engine named, for the model in ``directory``; one that is named already stays.

    Args:
        measure: milliseconds of a verify pass on the engine of a config; by default it is loaded and timed.

    Raises:
        ConfigError: there is no GPU here, and the settings need one.
        EngineUnavailable: no engine with this precision is installed.
        ModelError: (``DoesNotFit``, …) the model cannot be loaded, or the cache cannot be written.
    """
    share_the_cpu()  # before anything imports torch
    candidates = engines_to_try(config)
    if len(candidates) == 1:
        return replace(config, engine=candidates[0])
    path, key = _place(config, directory, candidates)
    trial = _read(path, key, report)
    if trial is None:
        trial = _try(config, directory, candidates, report, measure or pass_milliseconds)
    times = ", ".join(f"{engine} {found:.3g} ms" for engine, found in trial.milliseconds.items())
    place = f"remembered in {path.parent.name}/{path.name}" if path.is_file() else "not remembered"
    engine = _that_fits(config, directory, trial, report)
    report(f"engine auto: {engine} ({_rows(config)} rows: {times}; {place})")
    return replace(config, engine=engine)


def remembered_engine(config: PlannerConfig, directory: Path) -> str | None:
    """The engine that ``chosen_engine`` would name without trying any; None where it would have to.

    Raises:
        ValueError: as ``chosen_engine``.
    """
    candidates = engines_to_try(config)
    if len(candidates) == 1:
        return candidates[0]
    trial = _read(*_place(config, directory, candidates), lambda line: None)
    return trial.engine if trial else None


def engines_to_try(config: PlannerConfig) -> tuple[str, ...]:
    """The engines among which ``config`` leaves the choice, as far as they are installed; one where it leaves none.

    Raises:
        ConfigError: there is no GPU here, and the settings need one.
        EngineUnavailable: no engine with this precision is installed.
    """
    if config.engine != "auto":
        return (config.engine,)
    on_cpu = tuple(engine for engine in PREFERRED if engine in config.engines and config.device != "cuda")
    if config.device == "cuda" or (config.device == "auto" and _torch_sees_a_gpu()):
        if config.engine_file:
            return ("tensorrt",)
        if "torch" in config.engines:
            return ("torch",)
        if not on_cpu or importlib.util.find_spec("tensorrt"):
            return ("tensorrt",)
    elif config.engine_file:
        raise ConfigError("engine_file is given and torch sees no GPU here: leave it empty, or set engine to tensorrt")
    elif not on_cpu:
        raise ConfigError(
            f"precision {config.precision!r} runs on a GPU only (engine tensorrt) and torch sees none here: set "
            f"precision to one of {', '.join(CPU_PRECISIONS)}"
        )
    installed = tuple(engine for engine in on_cpu if importlib.util.find_spec(_LIBRARIES[engine]))
    if not installed:
        raise _none_runs(config, on_cpu)
    return installed


def pass_milliseconds(config: PlannerConfig, directory: Path, report: Report) -> float:
    """Load the engine of ``config``, time verify passes as decoding would make them, and close it."""
    target = load_target(config, directory, report)
    try:
        rows = _rows(config)
        return 1e3 * pass_seconds(target, rows, min(PROMPT_TOKENS, config.context_length - rows))
    finally:
        target.close()


def pass_seconds(target: Target, rows: int, context: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Median time of a verify pass over a chain of ``rows`` nodes after ``context`` tokens."""
    vocabulary = target.info.vocabulary_size
    target.extend(PromptInput(tuple((7 + 13 * index) % vocabulary for index in range(context))))
    chain, times = DraftTree.chain([(5 + 11 * index) % vocabulary for index in range(rows)]), []
    for _ in range(WARM_UP_PASSES + TIMED_PASSES):
        began = clock()
        target.verify(chain).argmax()  # never committed, so the next pass begins at the same place
        times.append(clock() - began)
    return statistics.median(times[WARM_UP_PASSES:])


def fastest(milliseconds: dict[str, float]) -> str:
    """The engine to take: the first preferred, unless a later one is faster than what is held by more than a tenth."""
    held, *others = (engine for engine in PREFERRED if engine in milliseconds)
    for engine in others:
        if milliseconds[engine] < (1 - FASTER_BY) * milliseconds[held]:
            held = engine
    return held


def _that_fits(config: PlannerConfig, directory: Path, trial: Trial, report: Report) -> str:
    """The trial's winner, or where it does not fit into the memory there is now, the fastest that does.

    Raises:
        DoesNotFit: none does; about the winner.
    """
    others = sorted((ms, engine) for engine, ms in trial.milliseconds.items() if engine != trial.engine)
    first: DoesNotFit | None = None
    for engine in (trial.engine, *(engine for _, engine in others)):
        try:
            check_budget(replace(config, engine=engine), directory)
            return engine
        except DoesNotFit as error:
            report(f"engine auto: {engine} does not fit now: {error}")
            first = first or error
    raise first or _none_runs(config, tuple(trial.milliseconds))


def _try(config: PlannerConfig, directory: Path, candidates: Sequence[str], report: Report, measure: Measure) -> Trial:
    """Measure, one process at a time, and remember. Whoever waited for another process takes what that one found."""
    path, key = _place(config, directory, candidates)
    with contextlib.ExitStack() as held:
        try:  # before minutes are spent on what could not be remembered
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(path.parent / ".lock"))
        except OSError as error:
            raise _unwritable(path, error) from error
        trial = _read(path, key, lambda line: None)
        if trial is None:
            trial, whole = _measured(config, directory, candidates, report, measure)
            try:
                if whole:
                    _write(path, key, trial)
            except OSError as error:
                raise _unwritable(path, error) from error
        return trial


def _measured(
    config: PlannerConfig, directory: Path, candidates: Sequence[str], report: Report, measure: Measure
) -> tuple[Trial, bool]:
    """What was found, and whether it holds for later: not where memory was short, which it may not be then."""
    milliseconds: dict[str, float] = {}
    too_large: DoesNotFit | None = None
    for engine in candidates:
        report(f"engine auto: trying {engine} (once)")
        named = replace(config, engine=engine)
        try:
            check_budget(named, directory)
            milliseconds[engine] = round(measure(named, directory, report), 3)
        except (EngineUnavailable, DoesNotFit) as error:
            report(f"engine auto: {engine} is left out: {error}")
            too_large = error if isinstance(error, DoesNotFit) else too_large
        else:
            report(f"engine auto: {engine} takes {milliseconds[engine]:.3g} ms for a pass of {_rows(config)} rows")
    if not milliseconds:
        raise too_large or _none_runs(config, candidates)
    return Trial(fastest(milliseconds), milliseconds), too_large is None


def _rows(config: PlannerConfig) -> int:
    """Of the widest verify pass: the anchor and the draft.

    The same with and without a drafter: plain and speculative decoding must not come to run on different engines.
    """
    return min(config.num_draft_tokens + 1, config.context_length // 2)  # a draft may be as long as a short context


def _place(config: PlannerConfig, directory: Path, candidates: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """The file in which the trial is remembered, and what it holds for: another machine, model, width or library is
    tried by itself.
    """
    decoder = read_decoder_config(directory)
    key = {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": config.threads,
        "precision": config.precision,
        "rows": _rows(config),
        "context_length": config.context_length,  # by which an engine may not fit into memory
        "pass_widths": {engine: replace(config, engine=engine).pass_width for engine in candidates},
        "target": target_identity(directory),
        "sizes": [
            *(decoder.num_layers, decoder.hidden_size, decoder.intermediate_size, decoder.num_heads),
            *(decoder.num_kv_heads, decoder.head_dim, decoder.vocabulary_size),
        ],
        "versions": {"spec_planner": __version__, **{name: _version(name) for name in _VERSIONS_OF}},
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_directory() / "trials" / f"{digest}.json", key


def _read(path: Path, key: dict[str, Any], report: Report) -> Trial | None:
    """What was remembered; None where nothing was, or nothing that can be used."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        trial = Trial(content["engine"], {str(name): float(ms) for name, ms in content["milliseconds"].items()})
        if not all(0 < found < math.inf for found in trial.milliseconds.values()):
            raise ValueError("its times are none")
        if content["key"] != key or trial.engine not in trial.milliseconds or trial.engine not in key["pass_widths"]:
            raise ValueError("it is of another trial")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        report(f"{path.parent.name}/{path.name} is damaged ({type(error).__name__}: {error}): trying the engines again")
        return None
    return trial


def _write(path: Path, key: dict[str, Any], trial: Trial) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    content = {"engine": trial.engine, "milliseconds": trial.milliseconds, "key": key}
    try:
        scratch.write_text(json.dumps(content, indent=1), encoding="utf-8")
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)  # gone already after the rename


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_sees_a_gpu() -> bool:
    try:
        import torch
    except (ImportError, OSError):  # a CUDA library may be missing
        return False
    return bool(torch.cuda.is_available())


def _none_runs(config: PlannerConfig, candidates: Sequence[str]) -> EngineUnavailable:
    ways = "; or ".join(f"for {engine}, {HOW_TO_INSTALL[engine]}" for engine in candidates)
    return EngineUnavailable(
        f"no engine that runs precision {config.precision!r} on this CPU can be used: {ways}; then configure again"
    )


def _unwritable(path: Path, error: OSError) -> ModelError:
    return ModelError(
        f"cannot remember which engine is the fastest in {path.parent} ({error}): free space, set SPEC_PLANNER_CACHE, "
        f"or set engine to {', '.join(PREFERRED[:-1])} or {PREFERRED[-1]}"
    )
