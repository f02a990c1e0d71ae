"""Every drafter by name. A literal table: nothing registers itself, nothing is discovered."""

from __future__ import annotations

import importlib

DRAFTERS = {
    "lookup": "lookup:LookupDrafter",
    "draft-model": "draft_model:ModelDrafter",
}


def drafter_class(name: str) -> type:
    """The class behind ``name``, imported on demand so that one drafter never pays for another's libraries.

    Raises:
        KeyError: no such drafter.
    """
    module, _, attribute = DRAFTERS[name].partition(":")
    loaded: type = getattr(importlib.import_module(f".{module}", __package__), attribute)
    return loaded
