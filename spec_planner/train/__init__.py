"""Drafters trained for one target on its own answers; see ``spec-planner train``."""
