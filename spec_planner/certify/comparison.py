"""Two runs of one prompt side by side: where they part, by how thin a margin, and whether the logits agree in bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..decoding.contracts import PromptInput, Target
from ..decoding.draft_tree import DraftTree
from ..decoding.random_stream import Purpose, RandomStream
from ..decoding.sampling import Law, SamplingParams
from .recording import Run

# Two passes of different width may move a logit by the engine's noise; beyond this it is no rounding but a defect.
NOISE_CEILING = {"float32": 1e-2, "bfloat16": 4.0, "float16": 1.0, "int8": 4.0, "int4": 4.0}
# Headroom over the noise measured on one text, for the texts it was not measured on.
NOISE_HEADROOM = 4.0


@dataclass(frozen=True)
class Divergence:
    """The first position where two runs said different things; what follows is not comparable.

    ``margin`` is how much likelier the plain run's token was than the other's, seed noise included, in nats; at
    temperature 0 in logits. ``near_tie`` says that the engine's measured noise is enough to turn it.
    """

    index: int
    plain_token: int
    speculative_token: int
    margin: float
    logit_difference: float
    near_tie: bool


@dataclass(frozen=True)
class Comparison:
    """What one pair of runs showed. Tokens are counted up to and including a divergence."""

    tokens: int
    rows_equal_in_bits: int
    largest_difference: float  # of any logit at a compared position
    divergence: Divergence | None


def compare(plain: Run, other: Run, prompt_length: int, sampling: SamplingParams, noise: float) -> Comparison:
    """Compare up to the first differing token; ``noise`` is the engine's, from ``measure_noise``."""
    pairs = zip(plain.tokens, other.tokens, strict=False)
    shorter = min(len(plain.tokens), len(other.tokens))
    parted = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    compared = min(parted + 1, shorter)
    differences = [_difference(plain.rows[i], other.rows[i]) for i in range(compared)]
    equal = sum(bool(np.array_equal(plain.rows[i], other.rows[i])) for i in range(compared))
    divergence = None
    if parted < max(len(plain.tokens), len(other.tokens)):
        if parted == shorter:  # same tokens, one run longer: the same words must stop at the same place
            divergence = Divergence(parted, -1, -1, math.inf, 0.0, near_tie=False)
        else:
            margin = margin_between(
                plain.rows[parted], plain.tokens[parted], other.tokens[parted], prompt_length + parted, sampling
            )
            swing = 2 * NOISE_HEADROOM * noise / (1.0 if sampling.greedy else sampling.temperature)
            divergence = Divergence(
                parted, plain.tokens[parted], other.tokens[parted], margin, differences[-1], margin <= swing
            )
    return Comparison(compared, equal, max(differences, default=0.0), divergence)


def margin_between(row: NDArray[np.float32], chosen: int, other: int, position: int, sampling: SamplingParams) -> float:
    """How far ``chosen`` stands above ``other`` at ``position``; infinite where ``other`` is impossible."""
    if sampling.greedy:
        return float(row[chosen]) - float(row[other])
    law = Law.from_logits(row, sampling)
    scores = dict(zip(law.ids.tolist(), RandomStream(sampling.seed).scores(law, Purpose.TARGET, position), strict=True))
    if scores.get(other, 0.0) <= 0.0:
        return math.inf
    return math.log(scores[chosen] / scores[other]) if chosen in scores else math.inf


def measure_noise(target: Target, ids: tuple[int, ...], start: int, nodes: int, siblings: int) -> float:
    """Largest difference of a logit between one-token passes and a pass over a draft whose right branch is ``ids``.

    Args:
        ids: a text; its first ``start`` tokens are context, and what follows is verified one by one and as one draft.
        nodes: rows of the draft.
        siblings: candidates per position; all but the last of each are wrong, so the right branch's keys lie in other
            slots than in plain decoding, on both sides of whatever block the engine's kernels sum by.
    """
    tree = _comb(ids[start:], nodes, siblings)
    right = range(0, tree.num_nodes, siblings)
    target.truncate(0)
    target.extend(PromptInput(ids[:start]))
    drafted = target.verify(tree)
    rows = [drafted.logits_row(node).copy() for node in right]
    largest = 0.0
    for row, node in zip(rows, right, strict=True):
        plain = target.verify(DraftTree.root(int(tree.tokens[node])))
        largest = max(largest, _difference(row, plain.logits_row(0)))
        target.commit((0,))
    return largest


def _comb(ids: Sequence[int], nodes: int, siblings: int) -> DraftTree:
    """A tree of at most ``nodes``: node 0 is ids[0], then ``siblings`` children of each right node, the right one last.

    A wrong child is a token the text says elsewhere, so the model knows it.
    """
    tokens, parents = [ids[0]], [-1]
    for depth in range(1, min(len(ids), 1 + (nodes - 1) // siblings)):
        parent = (depth - 1) * siblings
        wrong = [ids[(depth + 1 + i) % len(ids)] for i in range(siblings - 1)]
        tokens += [*wrong, ids[depth]]
        parents += [parent] * siblings
    return DraftTree(np.asarray(tokens, dtype=np.int64), np.asarray(parents, dtype=np.int64))


def _difference(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite]):
        return math.inf
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0))
