"""Every drafter by name. Literal tables: nothing registers itself, nothing is discovered."""

from __future__ import annotations

import importlib
from pathlib import Path

from spec_planner.decoding.contracts import Drafter, Target

from .graphs.net_graphs import Compile, TorchOnly

__all__ = ["CHECKPOINTS", "DRAFTERS", "Compile", "TorchOnly", "drafter_class", "graft", "load_drafter"]

DRAFTERS = {
    "lookup": "lookup:LookupDrafter",
    "draft-model": "draft_model:ModelDrafter",
}
# Drafters that are networks, by the kind that ``checkpoint.detect`` finds, and what makes each draft trees.
CHECKPOINTS = {
    "medusa": "medusa:MedusaDrafter",
    "mtp": "mtp:MtpDrafter",
    "mtp-parallel": "mtp:ParallelMtpDrafter",
    "eagle1": "eagle:EagleDrafter",
    "eagle3": "eagle:EagleDrafter",
    "dflash": "dflash:DFlashDrafter",
    "dflash2": "dflash2:DFlash2Drafter",
    "draft-model": "draft_model:ModelDrafter",
}

# Those whose networks can be written as graphs; their ``load`` takes a compiler.
WITH_GRAPHS = ("medusa", "mtp", "mtp-parallel", "eagle1", "eagle3", "dflash", "dflash2", "draft-model")
GRAPHS_BESIDE = ("onnx", "openvino")  # engines of a target; beside others, torch runs the network


def drafter_class(name: str) -> type:
    """The class behind ``name``, imported on demand so that one drafter never pays for another's libraries.

    Raises:
        KeyError: no such drafter.
    """
    return _class(DRAFTERS[name])


def load_drafter(directory: Path, target: Target, branches: int, compiler: Compile | None = None) -> Drafter:
    """The published drafter checkpoint in ``directory``, whatever its kind, for ``target``.

    Args:
        branches: 1 drafts chains; more draft trees: that many candidates per node (EAGLE, MTP, draft model) or beams
            (DFlash 2), and best-first over the positions' laws where the kind has no such number (Medusa unless its
            config says otherwise, parallel MTP, DFlash).
        compiler: runs the network as a graph in torch's place (``graphs/``); None: torch does.

    Raises:
        TorchOnly: (a ``ValueError``) there is a compiler, and the network has no graph.
        ValueError: (``CheckpointError``, ``Incompatible``) it cannot be used, or not with this target; one sentence.
    """
    from .checkpoint import detect

    kind = detect(directory)
    loaded = _class(CHECKPOINTS[kind])
    options: dict[str, object] = {}
    if kind in ("eagle1", "eagle3"):
        options = {"top_k": branches}
    elif kind in ("mtp", "draft-model"):
        options = {"siblings": branches}
    elif kind == "medusa" and branches > 1:
        options = {"shape": "stored"}
    elif branches > 1:
        options = {"shape": "beam", "beam_width": branches} if kind == "dflash2" else {"shape": "best-first"}
    if compiler is not None:
        if kind not in WITH_GRAPHS:
            raise TorchOnly(f"drafters of kind {kind!r} have no graph: this draft network runs on torch only")
        options["compiler"] = compiler
    drafter: Drafter = loaded.load(directory, target, **options)  # type: ignore[attr-defined]
    return drafter


def graft(model: Drafter, branches: int) -> Drafter:
    """``model`` with one branch of prompt lookup beside it; ``branches`` above 1 drafts trees."""
    grafted: Drafter = _class("graft:GraftedDrafter")(drafter_class("lookup")(), model, branches > 1)
    return grafted


def _class(place: str) -> type:
    module, _, attribute = place.partition(":")
    loaded: type = getattr(importlib.import_module(f".{module}", __package__), attribute)
    return loaded
