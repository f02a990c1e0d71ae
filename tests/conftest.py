"""Before anything imports torch: tests share this machine's CPU with the nodes they start, and with each other."""

import sys

import hypothesis
import pytest

from spec_planner.engines.threads import share_the_cpu

share_the_cpu()
# A busy machine is no failure: no example of a property is timed.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


_threads: list[int] = []  # torch's own choice, once it was imported


def pytest_collection_finish() -> None:
    if "torch" in sys.modules:
        _threads.append(sys.modules["torch"].get_num_threads())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """A target told how many threads to use tells the whole process, and sums come out in another order. So every test,
    and every fixture with it, begins with as many as torch took by itself.
    """
    if _threads and sys.modules["torch"].get_num_threads() != _threads[0]:
        sys.modules["torch"].set_num_threads(_threads[0])
