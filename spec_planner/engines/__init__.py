"""Targets: what implements ``decoding.contracts.Target``. Each module imports its own heavy library."""
