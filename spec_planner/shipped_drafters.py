"""Drafters that come with the package, by name: config/drafters/<model>/<name>/, each trained for one target."""

from __future__ import annotations

import json
from pathlib import Path

from .resources import shared_files

# Name → the directory that holds its weights: EAGLE-2 is EAGLE-1 with another tree.
NAMED = {
    **{name: name for name in ("medusa", "mtp", "mtp-parallel", "eagle1", "eagle3", "dflash", "dflash2")},
    "eagle2": "eagle1",
}
BEST_FIRST = ("eagle3",)  # most tokens per pass in docs/drafters.md, and as fast as any
TREES_OF = {"eagle2": 4}  # candidates per node of those that are trees by their name
DISTILLED = "draft-model"


class NotShipped(ValueError):
    """No drafter of this name comes with the package for the target in use."""


def check_shipped(name: str) -> None:
    """Raise ``NotShipped``, which lists those that are, unless a drafter ``name`` comes with the package."""
    if not _directories(NAMED[name]):
        raise NotShipped(f"no drafter {name!r} comes with this package, {_others()}, or give a checkpoint's directory")


def shipped_drafter(name: str, target: str) -> Path:
    """The directory of drafter ``name`` for the target of identity ``target`` (``engines.identity``).

    Raises:
        NotShipped: there is none, or none for this target.
    """
    check_shipped(name)
    directory = find_shipped(name, target)
    if directory is None:
        made_for = ", ".join(sorted(path.parent.name for path in _directories(NAMED[name])))
        raise NotShipped(
            f"drafter {name!r} was trained for {made_for} and the target in use is another ({target}): use that model, "
            f"or train a drafter for this one and give its directory"
        )
    return directory


def find_shipped(name: str, target: str) -> Path | None:
    """As ``shipped_drafter``, also for the distilled draft model; None where there is none for this target.

    Raises:
        NotShipped: what there is does not say which target it was trained for.
    """
    return next((path for path in _directories(NAMED.get(name, name)) if _trained_for(path) == target), None)


def _directories(name: str) -> list[Path]:
    return [path.parent for path in shared_files(f"config/drafters/*/{name}/config.json")]


def _others() -> str:
    there = {path.parent.name for path in shared_files("config/drafters/*/*/config.json")}
    names = sorted(name for name, directory in NAMED.items() if directory in there)
    return f"only {', '.join(names)}: use one of them" if names else "nor any other: use lookup or draft-model"


def _trained_for(directory: Path) -> str:
    """Raises NotShipped: the drafter's config.json does not say."""
    path = directory / "config.json"
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["spec_planner"]["target"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotShipped(f"{path} does not say which target it was trained for: install the package again") from error
