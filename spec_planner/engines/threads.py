"""Thread manners of a planner that shares its CPU with a robot."""

from __future__ import annotations

import os


def share_the_cpu() -> None:
    """Make OpenMP workers sleep soon, not spin long, while they wait. Call before torch is first imported.

    By default libgomp's workers spin for milliseconds between layers. Beside another busy process the spinners hold
    the core from the thread they wait for: on two cores with two busy loops a pass of 8 rows took 2.5 s, and 0.28 s
    with a short spin, which costs nothing on a quiet machine (60 ms against 59 ms). A user's own setting stands.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
