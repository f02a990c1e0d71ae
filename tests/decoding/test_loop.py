"""The loop on a table target: same tokens as plain decoding, stops where it should, reports what happened."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_planner.certify.enumeration import TableDrafter
from spec_planner.decoding.contracts import ContextOverflow, DrafterRequirements, Incompatible, PromptInput
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.metrics import summarize
from spec_planner.decoding.prefix_cache import CHUNK as PREFILL_CHUNK
from spec_planner.decoding.sampling import NumericError, SamplingParams
from spec_planner.decoding.stopping import Stopping
from spec_planner.engines.table_target import TableTarget

from .toys import SHAPES, logits_of, table_target

VOCABULARY = 40


def run(target, drafter, sampling, stopping, rule="drafter-invariant", prompt=(1, 2, 3), budget=63):
    return list(
        decode(target, drafter, PromptInput(tuple(prompt)), sampling, stopping, RULES[rule], FixedBudget(budget))
    )


def tokens_of(steps):
    return [token for step in steps for token in step.tokens]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    shape=st.sampled_from(sorted(SHAPES)),
    closeness=st.sampled_from([0, 1]),
    length=st.integers(1, 30),
    budget=st.integers(1, 6),
)
def test_same_tokens_with_any_drafter(seed, temperature, shape, closeness, length, budget):
    of = logits_of(seed, 2.0, VOCABULARY)
    sampling = SamplingParams(temperature, seed=seed)
    plain = run(table_target(of, VOCABULARY), None, sampling, Stopping(length))
    drafter = TableDrafter(logits_of(seed + closeness, 2.0, VOCABULARY), SHAPES[shape][: budget + 1])
    drafted = run(table_target(of, VOCABULARY), drafter, sampling, Stopping(length))
    assert tokens_of(drafted) == tokens_of(plain)
    assert len(tokens_of(plain)) == length and plain[-1].finish == drafted[-1].finish == "max_tokens"
    assert len(drafted) <= len(plain)


@pytest.mark.parametrize("rule", RULES)
def test_greedy_tokens_are_the_same_under_every_rule(rule):
    of = logits_of(5, 2.0, VOCABULARY)
    plain = tokens_of(run(table_target(of, VOCABULARY), None, SamplingParams(), Stopping(25)))
    drafter = TableDrafter(of, SHAPES["binary"])
    assert tokens_of(run(table_target(of, VOCABULARY), drafter, SamplingParams(), Stopping(25), rule)) == plain


def test_context_and_drafter_follow_the_emitted_tokens():
    of = logits_of(3, 1.0, VOCABULARY)
    target, drafter = table_target(of, VOCABULARY), TableDrafter(of, SHAPES["uneven"])
    for step in decode(
        target,
        drafter,
        PromptInput((1, 2)),
        SamplingParams(1.0, seed=4),
        Stopping(50),
        RULES["drafter-invariant"],
        FixedBudget(9),
    ):
        emitted = list(step.tokens)
    assert target._ids == drafter._ids  # what the drafter observed is what was committed
    assert emitted


def test_stop_ids_cut_an_accepted_run_and_are_emitted_last():
    sequence = [7, 8, 9, 10, 11, 12]

    def of(context):
        row = np.zeros(VOCABULARY, dtype=np.float32)
        row[sequence[min(len(context) - 3, 5)]] = 5.0
        return row

    for drafter in (None, TableDrafter(of, (-1, 0, 1, 2, 3, 4))):
        steps = run(table_target(of, VOCABULARY), drafter, SamplingParams(), Stopping(99, frozenset({10})))
        assert tokens_of(steps) == [7, 8, 9, 10] and steps[-1].finish == "eos"
        assert all(step.finish is None for step in steps[:-1])


def test_a_stop_in_the_first_token_ends_the_run():
    of = logits_of(0, 1.0, VOCABULARY)
    first = tokens_of(run(table_target(of, VOCABULARY), None, SamplingParams(), Stopping(1)))
    steps = run(table_target(of, VOCABULARY), None, SamplingParams(), Stopping(9, frozenset(first)))
    assert tokens_of(steps) == first and steps[-1].finish == "eos"


def test_a_full_context_ends_the_run_with_every_slot_used():
    of = logits_of(1, 1.0, VOCABULARY)
    for drafter in (None, TableDrafter(of, SHAPES["chain"])):
        target = TableTarget(of, VOCABULARY, context_length=12)
        steps = run(target, drafter, SamplingParams(1.0), Stopping(99))
        assert steps[-1].finish == "context_full"
        assert (
            target.committed_length == 12 and len(tokens_of(steps)) == 10
        )  # 3 prompt tokens; the last token needs no slot


def test_prompts_that_do_not_fit_are_refused_before_decoding():
    target = TableTarget(logits_of(1, 1.0), 3, context_length=4)
    with pytest.raises(ContextOverflow, match="4 tokens but the context holds 4"):
        decode(target, None, PromptInput((0, 1, 2, 0)), SamplingParams(), Stopping(1), RULES["drafter-invariant"])
    with pytest.raises(ContextOverflow, match="empty"):
        decode(target, None, PromptInput(()), SamplingParams(), Stopping(1), RULES["drafter-invariant"])


def test_cancel_and_deadline_are_seen_before_every_pass():
    of = logits_of(1, 1.0, VOCABULARY)
    passes = []

    def counted(context):
        passes.append(len(context))
        return of(context)

    stop = Stopping(99, cancelled=lambda: len(passes) >= 4)
    steps = run(table_target(counted, VOCABULARY), None, SamplingParams(), stop)
    assert steps[-1].finish == "cancelled" and steps[-1].tokens == () and len(passes) == 4
    now = [0.0]
    late = Stopping(99, deadline=1.0, clock=lambda: now[0])
    stepper = decode(
        table_target(of, VOCABULARY), None, PromptInput((1,)), SamplingParams(), late, RULES["drafter-invariant"]
    )
    next(stepper)
    now[0] = 1.0
    assert [step.finish for step in stepper] == ["deadline"]


def test_an_interrupt_between_prompt_chunks_ends_the_prefill():
    target = table_target(logits_of(1, 1.0, VOCABULARY), VOCABULARY)
    stop = Stopping(99, cancelled=lambda: target.committed_length >= PREFILL_CHUNK)
    steps = run(target, None, SamplingParams(), stop, prompt=[1] * (3 * PREFILL_CHUNK))
    assert [step.finish for step in steps] == ["cancelled"] and steps[0].tokens == ()
    assert target.committed_length == PREFILL_CHUNK


def test_metrics_add_up():
    of = logits_of(9, 2.0, VOCABULARY)
    ticks = iter(range(10**6))
    steps = list(
        decode(
            table_target(of, VOCABULARY),
            TableDrafter(of, SHAPES["chain"]),
            PromptInput((1, 2)),
            SamplingParams(),
            Stopping(20),
            RULES["drafter-invariant"],
            FixedBudget(2),
            clock=lambda: next(ticks) / 1e3,
        )
    )
    cycles = [step for step in steps if step.acceptance]
    run_metrics = summarize([step.metrics for step in steps], 2, len(tokens_of(steps)))
    assert run_metrics.new_tokens == 20 and run_metrics.verify_passes == len(cycles)
    assert run_metrics.num_accepted == sum(step.acceptance.num_accepted for step in cycles)
    assert run_metrics.acceptance_length == pytest.approx(run_metrics.num_accepted / len(cycles) + 1)
    assert run_metrics.acceptance_rate == 1.0 and run_metrics.exact  # the draft law is the target's own
    for metrics in (step.metrics for step in cycles):
        assert (metrics.verify_ms, metrics.accept_ms, metrics.commit_ms) == pytest.approx((1.0, 1.0, 1.0))
        assert metrics.overhead_ms == pytest.approx(metrics.step_ms - 5.0)
    assert [step.metrics.position for step in cycles] == sorted({step.metrics.position for step in cycles})


def test_a_drafter_that_does_not_fit_is_refused():
    target = table_target(logits_of(1, 1.0))
    cases = {
        "vocabulary of 9": DrafterRequirements(vocabulary_size=9),
        "hidden size of 8": DrafterRequirements(hidden_size=8),
        "hidden state 4": DrafterRequirements(feature_layers=(4,)),
        "does not lend head": DrafterRequirements(borrows=("head",)),
    }
    for message, requirements in cases.items():
        drafter = TableDrafter(logits_of(1, 1.0), SHAPES["chain"])
        drafter.requirements = requirements
        with pytest.raises(Incompatible, match=message):
            decode(target, drafter, PromptInput((0,)), SamplingParams(), Stopping(1), RULES["drafter-invariant"])


def test_broken_logits_stop_the_run():
    def of(context):
        return np.full(3, np.nan if len(context) > 4 else 0.0, dtype=np.float32)

    for temperature in (0.0, 1.0):
        with pytest.raises(NumericError):
            run(table_target(of), None, SamplingParams(temperature), Stopping(9))


def test_a_passing_interrupt_in_the_prefill_still_ends_the_run():
    answers = iter([True, False, False])
    stop = Stopping(9, cancelled=lambda: next(answers))
    steps = run(table_target(logits_of(1, 1.0)), None, SamplingParams(), stop)
    assert [step.finish for step in steps] == ["cancelled"]


def test_a_run_that_breaks_off_anywhere_leaves_no_trace():
    of, sampling = logits_of(6, 2.0, VOCABULARY), SamplingParams(1.0, seed=2)
    plain = tokens_of(run(table_target(of, VOCABULARY), None, sampling, Stopping(20)))
    target, drafter = table_target(of, VOCABULARY), TableDrafter(of, SHAPES["binary"])
    calls = []

    def break_off(tree, laws, random, position):
        calls.append(position)
        if len(calls) == 3:
            raise RuntimeError("planted")
        return RULES["drafter-invariant"].judge(tree, laws, random, position)

    rule = dataclasses.replace(RULES["drafter-invariant"], name="breaks off", judge=break_off)
    with pytest.raises(RuntimeError, match="planted"):  # verified, and never committed
        list(decode(target, drafter, PromptInput((1, 2, 3)), sampling, Stopping(20), rule, FixedBudget(9)))
    steps = decode(target, drafter, PromptInput((1, 2, 3)), sampling, Stopping(20), rule, FixedBudget(9))
    next(steps)
    next(steps)
    steps.close()  # a cancelled goal
    assert tokens_of(run(target, drafter, sampling, Stopping(20))) == plain
