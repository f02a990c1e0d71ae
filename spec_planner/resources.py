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
    prefixes = [sys.prefix, *filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep))]
    roots = [Path(__file__).resolve().parents[1], *(Path(prefix, "share", "spec_planner") for prefix in prefixes)]
    for root in roots:
        if (root / relative).is_file():
            return root / relative
    raise FileNotFoundError(f"{relative} was not found below {', '.join(map(str, roots))}: install the package again")
