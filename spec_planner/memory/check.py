"""Refuse a planner that would not fit, before anything of it is loaded, and say what would."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..config import DEVICES_OF, PRECISIONS_OF, PlannerConfig
from ..drafter_choice import GRAFT, chosen
from ..engines.decoder_config import ModelError, read_decoder_config
from ..graphs.block_quant import BLOCK, PRECISION_BITS
from .available import Memory, gpu_memory, main_memory, resident_bytes
from .budget import MemoryBudget, memory_budget

_SHORTEST_CONTEXT = 512  # tokens below which there is no room for a prompt with skills, a scene and an answer
_QUANTISED = {precision for precision, bits in PRECISION_BITS.items() if bits[1]}


class DoesNotFit(ModelError):
    """There is not enough memory."""


@dataclass(frozen=True)
class Fit:
    """A budget beside what there is. ``needed``: bytes still to be taken on ``memory.device``."""

    budget: MemoryBudget
    memory: Memory
    needed: int

    @property
    def fits(self) -> bool | None:
        """None where it is unknown what there is."""
        return None if self.memory.available is None else self.needed <= self.memory.available


def check_budget(config: PlannerConfig, directory: Path, report: Callable[[str], None] = lambda line: None) -> None:
    """Refuse ``config`` where the memory for it is not there; call before anything is loaded.

    Args:
        config: with its engine named.
        directory: the target's.

    Raises:
        DoesNotFit: says what would.
        ValueError: target or drafter cannot be used.
    """
    try:
        fit = measure(config, directory, held=resident_bytes())
    except ImportError as error:
        raise ModelError(
            f"drafter {config.drafter!r} needs the package {error.name}: install it, or set drafter to lookup"
        ) from error
    report(f"memory: {gigabytes(fit.needed)} are needed on {fit.memory.device}, {_available(fit.memory)}")
    if fit.fits is False:
        raise DoesNotFit(f"{shortage(fit)}: {remedy(config, directory, fit)}")


def measure(config: PlannerConfig, directory: Path, memory: Memory | None = None, held: int = 0) -> Fit:
    """The budget of ``config`` beside the memory of the device it runs on.

    Args:
        memory: of that device, where it is known already.
        held: bytes of main memory that the planner's process has already, of those ``process`` stands for.

    Raises:
        ValueError, ImportError: as ``memory_budget``.
    """
    return weigh(memory_budget(config, directory), memory or device_memory(config), held)


def weigh(budget: MemoryBudget, memory: Memory, held: int = 0) -> Fit:
    """``budget`` beside ``memory``; on a GPU of its own the process takes none of it."""
    process = max(budget.process - held, 0) if memory.device == "cpu" else 0
    return Fit(budget, memory, budget.network + process)


def device_memory(config: PlannerConfig) -> Memory:
    """Of the device that the target of ``config`` runs on."""
    on_gpu = config.engine_name in ("torch", "tensorrt") and config.device != "cpu"
    return (gpu_memory() if on_gpu else None) or main_memory()


def shortage(fit: Fit) -> str:
    """What is needed and what there is."""
    need = f"the planner needs {gigabytes(fit.needed)} of memory on {fit.memory.device}"
    return f"{need} and {_available(fit.memory)}"


def remedy(config: PlannerConfig, directory: Path, short: Fit) -> str:
    """What to lower, with what the planner would then need: of each kind of setting the mildest change that fits.

    Where none does, another engine that runs on the CPU.
    """
    config = chosen(config, directory)
    held = short.budget.total - short.needed if short.memory.device == "cpu" else 0

    def mildest(changes: Iterable[tuple[str, PlannerConfig]]) -> list[str]:
        fits = [(measure(lower, directory, short.memory, held), name) for name, lower in changes]
        enough = [(fit.needed, name) for fit, name in fits if fit.needed < short.needed and fit.fits]
        return [f"{name} ({gigabytes(needed)})" for needed, name in sorted(enough)[-1:]]

    kinds = (_precisions(config, directory), _contexts(config), _drafters(config))
    ways = [way for changes in kinds for way in mildest(changes)] or mildest(_engines(config, directory))
    if not ways:
        return "use a smaller model, or end what else holds memory"
    return f"set {', or '.join(ways)}, or use a smaller model"


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _available(memory: Memory) -> str:
    return "what there is is unknown" if memory.available is None else f"{gigabytes(memory.available)} are available"


def _precisions(config: PlannerConfig, directory: Path) -> Iterator[tuple[str, PlannerConfig]]:
    for precision in _runnable(config.engine_name, directory):
        if precision != config.precision:
            yield f"precision to {precision}", replace(config, engine=config.engine_name, precision=precision)


def _engines(config: PlannerConfig, directory: Path) -> Iterator[tuple[str, PlannerConfig]]:
    if config.device == "cuda" or config.engine_name == "tensorrt":
        return
    for engine, places in DEVICES_OF.items():
        if engine == config.engine_name or "cpu" not in places:
            continue
        for precision in _runnable(engine, directory):
            also = "" if precision == config.precision else f" with precision {precision}"
            yield f"engine to {engine}{also}", replace(config, engine=engine, precision=precision)


def _runnable(engine: str, directory: Path) -> list[str]:
    """Precisions that ``engine`` runs the model in; a row of a matrix must fill whole blocks to be quantised."""
    anything = engine == "tensorrt" or read_decoder_config(directory).hidden_size % BLOCK == 0
    return [precision for precision in PRECISIONS_OF[engine] if anything or precision not in _QUANTISED]


def _contexts(config: PlannerConfig) -> Iterator[tuple[str, PlannerConfig]]:
    length = config.context_length // 2
    while length >= _SHORTEST_CONTEXT:
        yield f"context_length to {length}", replace(config, context_length=length)
        length //= 2


def _drafters(config: PlannerConfig) -> Iterator[tuple[str, PlannerConfig]]:
    if config.drafter.removeprefix(GRAFT) not in ("none", "lookup"):
        yield "drafter to lookup", replace(config, drafter="lookup")
