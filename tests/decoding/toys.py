"""Small targets whose laws are known in full."""

from __future__ import annotations

import functools
import zlib

import numpy as np

from spec_planner.engines.table_target import TableTarget

VOCABULARY = 3
SHAPES = {  # parents of every node
    "chain": (-1, 0, 1),
    "binary": (-1, 0, 0, 1, 1, 2, 2),
    "uneven": (-1, 0, 0, 1, 2, 2, 3),
}


def logits_of(seed: int, sharpness: float, vocabulary_size: int = VOCABULARY):
    """A random but fixed row of logits per context."""

    @functools.cache
    def of(context: tuple[int, ...]):
        generator = np.random.default_rng([seed, zlib.crc32(np.asarray(context, dtype=np.int64).tobytes())])
        return (sharpness * generator.standard_normal(vocabulary_size)).astype(np.float32)

    return of


def disjoint(of, allowed: tuple[int, ...]):
    """The same rows with every token but ``allowed`` impossible."""

    def masked(context: tuple[int, ...]):
        row = np.full_like(of(context), -np.inf)
        row[list(allowed)] = of(context)[list(allowed)]
        return row

    return masked


def table_target(of, vocabulary_size: int = VOCABULARY) -> TableTarget:
    return TableTarget(of, vocabulary_size)
