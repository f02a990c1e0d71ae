"""Before anything imports torch: tests share this machine's CPU with the nodes they start, and with each other."""

import sys

import hypothesis
import pytest

from spec_planner.engines.threads import share_the_cpu

share_the_cpu()
# A busy machine is no failure: no example of a property is timed.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def torchs_threads_stay_as_they_were():
    """A target told how many threads to use tells the whole process, and sums come out in another order."""
    before = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None
    yield
    if before is not None and sys.modules["torch"].get_num_threads() != before:
        sys.modules["torch"].set_num_threads(before)
