"""Before anything imports torch: tests share this machine's CPU with the nodes they start, and with each other."""

import hypothesis

from spec_planner.engines.threads import share_the_cpu

share_the_cpu()
# A busy machine is no failure: no example of a property is timed.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
