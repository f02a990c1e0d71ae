"""The demo: a managed planner node in its own process, one instruction over DDS, plain and speculative compared."""
