from __future__ import annotations

import numpy as np
import pytest

from spec_planner.decoding.random_stream import Purpose, RandomStream
from spec_planner.decoding.sampling import Law


def test_the_stream_is_a_function_of_its_key_alone():
    law = Law.of(np.random.default_rng(0).random(50))
    ask = [(Purpose.TARGET, position, slot) for position in range(40) for slot in range(2)]
    once = [RandomStream(7).draw(law, *key) for key in ask]
    stream = RandomStream(7)
    assert [stream.draw(law, *key) for key in reversed(ask)][::-1] == once
    assert once != [RandomStream(8).draw(law, *key) for key in ask]


def test_noise_is_per_token_id_whatever_the_support():
    stream, ids = RandomStream(3), np.arange(1000)
    some = ids[::7]
    assert np.array_equal(stream.uniforms(ids, Purpose.TARGET, 5)[::7], stream.uniforms(some, Purpose.TARGET, 5))


def test_numbers_known_for_ever():
    """An incident is replayed from its seed, so these may never change."""
    got = RandomStream(42).uniforms(np.array([0, 1, 49_151]), Purpose.TARGET, 17)
    assert got.tolist() == pytest.approx([0.11579494387339956, 0.24575144573162017, 0.3726824720740231], abs=0)


def test_uniforms_are_uniform_and_unrelated_across_keys():
    stream, n = RandomStream(0), 200_000
    a = stream.uniforms(np.arange(n), Purpose.TARGET, 0)
    assert a.min() > 0 and a.max() < 1
    counts = np.histogram(a, bins=64, range=(0, 1))[0]
    chi2 = ((counts - n / 64) ** 2 / (n / 64)).sum()
    assert chi2 < 63 + 5 * np.sqrt(2 * 63)
    for other in (
        stream.uniforms(np.arange(n), Purpose.TARGET, 1),
        stream.uniforms(np.arange(n), Purpose.TARGET, 0, slot=1),
        stream.uniforms(np.arange(n), Purpose.DRAFT, 0),
        RandomStream(1).uniforms(np.arange(n), Purpose.TARGET, 0),
    ):
        assert abs(np.corrcoef(a, other)[0, 1]) < 5 / np.sqrt(n)


def test_draws_follow_the_law():
    weights = np.array([0.5, 0.25, 0.15, 0.07, 0.03])
    law, n = Law.of(weights), 20_000
    for key in ("seed", "position"):
        draws = [
            RandomStream(i if key == "seed" else 1).draw(law, Purpose.TARGET, 9 if key == "seed" else i)
            for i in range(n)
        ]
        counts = np.bincount(draws, minlength=5)
        chi2 = ((counts - n * weights) ** 2 / (n * weights)).sum()
        assert chi2 < 4 + 5 * np.sqrt(2 * 4)


def test_coins_follow_their_probability():
    stream, n = RandomStream(5), 20_000
    heads = sum(stream.accepts(0.3, Purpose.ACCEPT, position) for position in range(n))
    assert abs(heads - 0.3 * n) < 5 * np.sqrt(n * 0.3 * 0.7)
    assert stream.accepts(1.0, Purpose.ACCEPT, 0) and not stream.accepts(0.0, Purpose.ACCEPT, 0)
