from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spec_planner.decoding.sampling import Law, NumericError, SamplingParams

logits = st.lists(st.one_of(st.floats(-30, 30, width=32), st.just(-np.inf)), min_size=1, max_size=20).filter(
    lambda row: any(np.isfinite(row))
)


@st.composite
def params(draw) -> SamplingParams:
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 1e-3, 0.7, 1.0, 5.0])),
        top_k=draw(st.integers(0, 25)),
        top_p=draw(st.sampled_from([1e-6, 0.3, 0.9, 1.0])),
    )


@given(logits, params())
@example([-1.1754943508222875e-38, 0.0], SamplingParams(0.001, top_p=1e-6))  # different logits, equal weights
def test_a_law_is_a_law(row, sampling):
    row = np.array(row, dtype=np.float32)
    law = Law.from_logits(row, sampling)
    assert np.all(np.diff(law.ids) > 0)
    assert np.all(law.probabilities > 0)
    assert law.probabilities.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.all(np.isfinite(row[law.ids]))  # an impossible token stays impossible
    assert law.probability(int(row.argmax())) == law.probabilities.max()  # the best token always survives
    if sampling.top_k:
        assert len(law.ids) <= sampling.top_k


@given(logits)
def test_plain_temperature_one_is_softmax(row):
    row = np.array(row, dtype=np.float32)
    exact = np.exp(row.astype(np.float64) - row.max())
    assert np.allclose(Law.from_logits(row, SamplingParams(1.0)).dense(len(row)), exact / exact.sum(), atol=1e-15)


def test_order_and_ties_are_fixed():
    row = np.array([1.0, 3.0, 3.0, 3.0, 0.0], dtype=np.float32)
    assert Law.from_logits(row, SamplingParams(0.0)).ids.tolist() == [1]
    assert Law.from_logits(row, SamplingParams(1.0, top_k=2)).ids.tolist() == [1, 2]
    even = np.zeros(4, dtype=np.float32)
    assert Law.from_logits(even, SamplingParams(1.0, top_p=0.5)).ids.tolist() == [0, 1]
    assert Law.from_logits(even, SamplingParams(1.0, top_p=0.51)).ids.tolist() == [0, 1, 2]


def test_a_mask_is_part_of_the_law():
    row = np.array([5.0, 1.0, 2.0], dtype=np.float32)
    allowed = np.array([False, True, True])
    assert Law.from_logits(row, SamplingParams(0.0), allowed).ids.tolist() == [2]
    assert Law.from_logits(row, SamplingParams(1.0), allowed).probability(0) == 0.0
    with pytest.raises(NumericError, match="no token is allowed"):
        Law.from_logits(row, SamplingParams(1.0), np.zeros(3, dtype=bool))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_define_no_law_are_refused(bad):
    with pytest.raises(NumericError, match="NaN or \\+inf"):
        Law.from_logits(np.array([0.0, bad], dtype=np.float32), SamplingParams(1.0))


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}, {"seed": -1}],
)
def test_params_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SamplingParams(**wrong)


weights = st.lists(st.sampled_from([0.0, 0.1, 0.5, 2.0]), min_size=4, max_size=4).filter(any)


@given(weights, weights)
def test_excess_and_overlap_split_a_law(a, b):
    p, q = Law.of(a), Law.of(b)
    overlap = np.minimum(p.dense(4), q.dense(4)).sum()
    assert p.excess(q).sum() == pytest.approx(1 - overlap, abs=1e-12)
    rest = p.without(int(p.ids[0]))
    assert rest is None if len(p.ids) == 1 else rest.probability(int(p.ids[0])) == 0.0


def by_definition(row, sampling, allowed):
    """p as docs and docstrings say it, over the whole vocabulary in float64, with no short cut."""
    values = np.where(allowed, row.astype(np.float64), -np.inf)
    if sampling.greedy:
        return [int(values.argmax())], np.ones(1)
    order = np.argsort(-values, kind="stable")  # ties to the lowest ids
    kept = np.sort(order[: sampling.top_k or len(values)])
    weights = np.exp((values[kept] - values.max()) / sampling.temperature)
    if sampling.top_p < 1:
        order = np.argsort(-values[kept], kind="stable")
        shares = np.cumsum(weights[order])
        best = np.sort(order[: int(np.searchsorted(shares, sampling.top_p * shares[-1])) + 1])
        kept, weights = kept[best], weights[best]
    kept, weights = kept[weights > 0], weights[weights > 0]
    return kept.tolist(), weights / weights.sum()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 9999), params(), st.sampled_from([1, 7, 64, 129, 3000]), st.sampled_from([0.0, 0.02, 0.6, 1.0]),
    st.booleans(),
)  # fmt: skip
def test_short_cuts_change_no_bit(seed, sampling, size, share, rounded):
    generator = np.random.default_rng(seed)
    row = (3 * generator.standard_normal(size)).astype(np.float32)
    row = np.round(row) if rounded else row  # many ties
    row[generator.random(size) < 0.1] = -np.inf
    allowed = generator.random(size) < share
    allowed[seed % size], row[seed % size] = True, 0.5
    for mask in (None, allowed):
        law = Law.from_logits(row, sampling, mask)
        ids, probabilities = by_definition(row, sampling, np.ones(size, bool) if mask is None else mask)
        assert law.ids.tolist() == ids and law.probabilities.tobytes() == probabilities.tobytes()
    row[(seed + 1) % size] = np.nan  # matters only where it is allowed
    if size > 1 and not allowed[(seed + 1) % size]:
        assert Law.from_logits(row, sampling, allowed).ids.tolist() == ids
    with pytest.raises(NumericError, match="NaN"):
        Law.from_logits(row, sampling)
    with pytest.raises(NumericError, match="no token is allowed"):
        Law.from_logits(row, sampling, np.zeros(size, bool))
