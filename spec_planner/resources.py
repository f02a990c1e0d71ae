"""Files that come with the package: in a source checkout, or in an installed share directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def shared_file(relative: str) -> Path:
    """The file ``relative`` (such as ``config/planner.yaml``) of this package.

    Raises:
        FileNotFoundError: none of the places has it; the message lists them.
    """
    roots = _roots()
    for root in roots:
        if (root / relative).is_file():
            return root / relative
    raise FileNotFoundError(f"{relative} was not found below {', '.join(map(str, roots))}: install the package again")


def shared_files(pattern: str) -> list[Path]:
    """Every file of this package that matches ``pattern`` (such as ``config/*/README.md``), sorted; maybe none."""
    found: dict[Path, Path] = {}
    for root in _roots():
        for path in root.glob(pattern):
            found.setdefault(path.relative_to(root), path)
    return [found[relative] for relative in sorted(found)]


def _roots() -> list[Path]:
    prefixes = [sys.prefix, *filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep))]
    return [Path(__file__).resolve().parents[1], *(Path(prefix, "share", "spec_planner") for prefix in prefixes)]
