"""Every drafter by name. Literal tables: nothing registers itself, nothing is discovered."""

from __future__ import annotations

import importlib
from pathlib import Path

from spec_planner.decoding.contracts import Drafter, Target

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


def drafter_class(name: str) -> type:
    """The class behind ``name``, imported on demand so that one drafter never pays for another's libraries.

    Raises:
        KeyError: no such drafter.
    """
    return _class(DRAFTERS[name])


def load_drafter(directory: Path, target: Target, branches: int) -> Drafter:
    """The published drafter checkpoint in ``directory``, whatever its kind, for ``target``.

    Args:
        branches: 1 drafts chains; more draft trees: that many candidates per node (EAGLE, MTP, draft model) or beams
            (DFlash 2), and best-first over the positions' laws where the kind has no such number (Medusa unless its
            config says otherwise, parallel MTP, DFlash).

    Raises:
        ValueError: (``CheckpointError``, ``Incompatible``) it cannot be used, or not with this target; one sentence.
    """
    from .checkpoint import detect

    kind = detect(directory)
    loaded = _class(CHECKPOINTS[kind])
    trees: dict[str, object] = {}
    if kind in ("eagle1", "eagle3"):
        trees = {"top_k": branches}
    elif kind in ("mtp", "draft-model"):
        trees = {"siblings": branches}
    elif kind == "medusa" and branches > 1:
        trees = {"shape": "stored"}
    elif branches > 1:
        trees = {"shape": "beam", "beam_width": branches} if kind == "dflash2" else {"shape": "best-first"}
    drafter: Drafter = loaded.load(directory, target, **trees)  # type: ignore[attr-defined]
    return drafter


def graft(model: Drafter, branches: int) -> Drafter:
    """``model`` with one branch of prompt lookup beside it; ``branches`` above 1 drafts trees."""
    grafted: Drafter = _class("graft:GraftedDrafter")(drafter_class("lookup")(), model, branches > 1)
    return grafted


def _class(place: str) -> type:
    module, _, attribute = place.partition(":")
    loaded: type = getattr(importlib.import_module(f".{module}", __package__), attribute)
    return loaded
