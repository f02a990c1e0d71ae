"""Which drafter a configuration means, and the files it is read from. Nothing here loads one."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from drafters.registry import DRAFTERS, GRAPHS_BESIDE, drafter_class

from .config import ConfigError, PlannerConfig
from .decoding.accept import Rule
from .decoding.draft_tree import Proposal
from .engines.default_model import model_directory
from .engines.identity import target_identity
from .graphs.block_quant import stored_precision
from .shipped_drafters import (
    BEST_FIRST,
    DISTILLED,
    NAMED,
    TREES_OF,
    check_shipped,
    find_shipped,
    shipped_drafter,
)

if TYPE_CHECKING:
    from drafters.footprint import GraphBytes

AUTO = "auto"
GRAFT = "lookup+"  # before a drafter's name: prompt lookup beside it


def check_fits(config: PlannerConfig, rule: Rule) -> None:
    """Refuse combinations of settings that could only fail later.

    Raises:
        ConfigError: no such drafter, or the rule cannot judge what the drafter would draw.
        NotShipped: a drafter of this name does not come with the package.
    """
    name = config.drafter.removeprefix(GRAFT)
    is_graft = name != config.drafter
    known = (AUTO, "none", *DRAFTERS, *NAMED)
    if name not in known and not Path(name).expanduser().is_dir():
        raise ConfigError(
            f"no drafter is called {config.drafter!r}; choose {', '.join(known)} or a checkpoint's directory, or put "
            f"lookup+ before one of them"
        )
    if is_graft and name in (AUTO, "none", "lookup"):
        raise ConfigError(f"drafter {config.drafter!r} has nothing to put prompt lookup beside: set drafter to lookup")
    if name in NAMED:
        check_shipped(name)
    if name in TREES_OF and (rule.chains_only or config.exactness == "bitwise"):
        raise ConfigError(f"drafter {name!r} draws trees and chains are wanted here: use {NAMED[name]}, its chain")
    if config.draft_branches > 1 and rule.chains_only and config.drafter != "none":
        raise ConfigError(f"rule {rule.name!r} judges chains only: set draft_branches to 1 or choose a tree rule")
    if is_graft and rule.drafting.needs_laws:
        raise ConfigError(
            f"rule {rule.name!r} reads the law that a draft was drawn from, and what {config.drafter} copies was drawn "
            f"from none: use drafter-invariant or point-mass"
        )
    if config.drafter == "lookup" and Proposal.POINT_MASS not in rule.proposals:
        raise ConfigError(
            f"rule {rule.name!r} needs a drafter that draws from a law of its own, and lookup does not: "
            f"use drafter-invariant or point-mass"
        )
    if config.exactness == "bitwise" and not rule.same_tokens:
        raise ConfigError(f"exactness 'bitwise' needs rule drafter-invariant, because {rule.name!r} keeps the law only")


def chosen(config: PlannerConfig, target: Path) -> PlannerConfig:
    """``config`` with its drafter named: auto is the best that comes with the package for the model in ``target``.

    Where none does, it is lookup.

    Raises:
        NotShipped: what comes with the package is damaged.
    """
    if config.drafter != AUTO:
        return config
    identity = target_identity(target)
    name = next((name for name in BEST_FIRST if find_shipped(name, identity)), "lookup")
    return replace(config, drafter=name)


def drafter_checkpoint(config: PlannerConfig, target: Path) -> Path | None:
    """The directory that the drafter of ``config`` is read from, None where it is no checkpoint.

    Raises:
        NotShipped: no such drafter comes with the package for the model in ``target``.
    """
    name = chosen(config, target).drafter.removeprefix(GRAFT)
    if name in NAMED:
        return shipped_drafter(name, target_identity(target))
    if name == "draft-model":
        own = config.draft_model or config.draft_layers
        return None if own else find_shipped(DISTILLED, target_identity(target))
    return None if name in ("none", "lookup") else Path(name).expanduser()


def drafter_bytes(config: PlannerConfig, target: Path, rows: int) -> tuple[int, GraphBytes | None]:
    """Most memory that prompt lookup and a drafter's checkpoint take of their own over ``rows`` tokens, unloaded.

    Beside it what the network takes as a graph, where it will run as one (``draft_loading.py``).

    Raises:
        ValueError: (``NotShipped``, ``CheckpointError``) there is no such checkpoint, or not for this target.
    """
    name = chosen(config, target).drafter
    copies = name == "lookup" or name.startswith(GRAFT)
    index: int = drafter_class("lookup").most_bytes(rows) if copies else 0  # type: ignore[attr-defined]
    checkpoint = drafter_checkpoint(config, target)
    if checkpoint is None:
        return index, None
    from drafters.compiled.base import reach  # which need torch
    from drafters.footprint import checkpoint_bytes, compiled_bytes

    # What an exported target lends is what it stores.
    precision = config.precision if config.engine_name == "torch" else stored_precision(config.precision)
    if config.engine_name in GRAPHS_BESIDE and find_spec("onnxruntime"):
        graph = compiled_bytes(checkpoint, target, precision, rows, reach(rows))
        if graph is not None:
            return index + graph.own, graph
    return index + checkpoint_bytes(checkpoint, target, precision, rows), None


def lent_to_drafter(config: PlannerConfig, target: Path) -> tuple[str, ...]:
    """Which of the target's embedding and head the drafter's checkpoint asks for; none where it is no checkpoint.

    Raises:
        ValueError: as ``drafter_bytes``.
    """
    checkpoint = drafter_checkpoint(config, target)
    if checkpoint is None:
        return ()
    from drafters.footprint import lent_names  # which needs torch

    return lent_names(checkpoint)


def drafter_files(config: PlannerConfig, target: Path) -> tuple[str, list[Path]] | None:
    """The kind of the drafter that ``config`` names and the files that decide what it guesses; None if it has none.

    Raises:
        ValueError: they cannot be found or read.
    """
    checkpoint = drafter_checkpoint(config, target)
    if checkpoint is not None:
        from drafters.checkpoint import detect, weight_files

        return detect(checkpoint), [*weight_files(checkpoint), *sorted(checkpoint.glob("config.json"))]
    if config.drafter.removeprefix(GRAFT) != "draft-model" or not config.draft_model:
        return None
    directory = model_directory(config.draft_model)
    return "draft-model", [*sorted(directory.glob("*.safetensors")), *sorted(directory.glob("config.json"))]


def drafters_for(target: Path) -> list[str]:
    """Names that ``drafter`` may take with the model in ``target``; EAGLE-2 is left out, as a tree of EAGLE-1."""
    identity = target_identity(target)
    return ["none", *DRAFTERS, *(name for name in NAMED if name not in TREES_OF and find_shipped(name, identity))]
