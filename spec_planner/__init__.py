"""spec_planner: on-board language planning with exact speculative decoding."""

__version__ = "0.1.0"
