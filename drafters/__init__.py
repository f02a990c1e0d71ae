"""Drafters: cheap guesses for the target to check. ``registry.py`` lists them by name."""
