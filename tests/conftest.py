"""Before anything imports torch: tests share this machine's CPU with the nodes they start, and with each other."""

from spec_planner.engines.threads import share_the_cpu

share_the_cpu()
