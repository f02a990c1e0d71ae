"""What every ``Drafter`` must do. Subclass, provide ``make_drafter``, and pytest runs the suite on a table target."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spec_planner.decoding.contracts import Drafter, PromptInput
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.draft_sampler import RunDraftSampler
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.random_stream import RandomStream
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.decoding.stopping import Stopping
from spec_planner.engines.table_target import TableTarget
from tests.decoding.toys import logits_of

VOCABULARY = 12
FIXTURES_ARE_SAFE = [HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
ids = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40)


def sampler_at(position: int, temperature: float, seed: int) -> RunDraftSampler:
    sampler = RunDraftSampler(RULES["drafter-invariant"], SamplingParams(temperature, seed=seed), RandomStream(seed))
    sampler.anchor_position = position
    return sampler


class DrafterSuite:
    """Drafts for a target of ``VOCABULARY`` tokens; features are None."""

    @pytest.fixture
    def make_drafter(self) -> Callable[[], Drafter]:
        raise NotImplementedError("a conformance test class provides its drafter")

    def test_meets_the_protocol(self, make_drafter):
        drafter = make_drafter()
        assert isinstance(drafter, Drafter) and drafter.name
        drafter.close()

    @settings(max_examples=40, deadline=None, suppress_health_check=FIXTURES_ARE_SAFE)
    @given(
        context=ids,
        anchor=st.integers(0, VOCABULARY - 1),
        budget=st.integers(1, 9),
        temperature=st.sampled_from([0.0, 1.0]),
    )
    def test_a_draft_starts_at_the_anchor_and_keeps_to_the_budget(
        self, make_drafter, context, anchor, budget, temperature
    ):
        drafter = make_drafter()
        drafter.observe(context, None)
        tree = drafter.draft((anchor,), budget, sampler_at(len(context), temperature, 3))
        assert tree.tokens[0] == anchor and tree.num_draft_tokens <= budget
        assert tree.tokens.min() >= 0 and tree.tokens.max() < VOCABULARY
        assert tree.is_chain or drafter.requirements.draws_trees

    @settings(max_examples=30, deadline=None, suppress_health_check=FIXTURES_ARE_SAFE)
    @given(context=ids, stem=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5), budget=st.integers(1, 6))
    def test_a_draft_goes_on_from_the_stem(self, make_drafter, context, stem, budget):
        """What follows the stem is what would follow it if it were committed up to its last token."""
        drafter, ahead = make_drafter(), make_drafter()
        drafter.observe(context, None)
        ahead.observe([*context, *stem[:-1]], None)
        tree = drafter.draft(stem, budget, sampler_at(len(context), 0.0, 3))
        expected = ahead.draft(stem[-1:], budget, sampler_at(len(context) + len(stem) - 1, 0.0, 3))
        ahead_of = len(stem) - 1
        assert tree.tokens[: len(stem)].tolist() == stem and tree.parents[: len(stem)].tolist() == [
            *range(-1, ahead_of)
        ]
        assert tree.num_draft_tokens <= ahead_of + budget
        if "lookup" not in drafter.name:  # which indexes what is committed, so a stem is no source for its copies
            assert tree.tokens[ahead_of:].tolist() == expected.tokens.tolist()
            assert (tree.parents[len(stem) :] - ahead_of).tolist() == expected.parents[1:].tolist()

    @settings(max_examples=40, deadline=None, suppress_health_check=FIXTURES_ARE_SAFE)
    @given(
        context=ids, stray=ids, cuts=st.lists(st.integers(1, 39), max_size=4), temperature=st.sampled_from([0.0, 1.0])
    )
    def test_a_draft_depends_on_the_committed_context_alone(self, make_drafter, context, stray, cuts, temperature):
        """Not on how it was observed, nor on what was drafted, rejected or forgotten before."""
        fresh, used = make_drafter(), make_drafter()
        fresh.observe(context, None)
        used.observe(stray, None)
        used.draft((1,), 5, sampler_at(len(stray), temperature, 9))
        used.truncate(0)
        bounds = [0, *sorted({cut for cut in cuts if cut < len(context)}), len(context)]
        for start, end in zip(bounds, bounds[1:], strict=False):
            used.observe(context[start:end], None)
            used.draft((2,), 4, sampler_at(end, temperature, 9))
        used.observe(stray, None)
        used.truncate(len(context))
        expected = fresh.draft((5,), 6, sampler_at(len(context), temperature, 3))
        again = used.draft((5,), 6, sampler_at(len(context), temperature, 3))
        assert again.tokens.tolist() == expected.tokens.tolist() and again.parents.tolist() == expected.parents.tolist()
        assert again.proposal is expected.proposal

    @settings(max_examples=25, deadline=None, suppress_health_check=FIXTURES_ARE_SAFE)
    @given(
        prompt=ids, seed=st.integers(0, 99), temperature=st.sampled_from([0.0, 0.7, 1.0]), budget=st.integers(1, 8),
        sharpness=st.sampled_from([0.5, 3.0]),
    )  # fmt: skip
    def test_the_targets_tokens_stay_the_same(self, make_drafter, prompt, seed, temperature, budget, sharpness):
        def run(drafter):
            target = TableTarget(logits_of(1, sharpness, VOCABULARY), VOCABULARY)
            steps = decode(
                target, drafter, PromptInput(tuple(prompt)), SamplingParams(temperature, seed=seed), Stopping(30),
                RULES["drafter-invariant"], FixedBudget(budget),
            )  # fmt: skip
            return [token for step in steps for token in step.tokens]

        assert run(make_drafter()) == run(None)
