"""What a draft is made of is counted rightly, and both sides of a pair are the same question."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("llguidance")

from drafters.lookup import LookupDrafter
from spec_planner.bench.drafters import (
    Cycle,
    Pair,
    Run,
    answer,
    answer_in_turns,
    fastest,
    hold_back,
    ratio_with_error,
    requests_for,
    summary,
)
from spec_planner.bench.quality import read_split
from spec_planner.decoding.contracts import DrafterRequirements
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.engines.torch_target import TorchTarget
from spec_planner.language.skills import load_skills
from spec_planner.language.tokenizer import Tokenizer
from spec_planner.pipeline.plan_pipeline import PlanPipeline
from spec_planner.pipeline.types import PlanRequest
from spec_planner.resources import shared_file
from tests.models import make_tiny_model

BUDGET = 5
TASKS = read_split(shared_file("config/tasks/held_out_prompts.jsonl"), 1000)


class NoIdea:
    """Drafts what the grammar forces and nothing else."""

    name = "no-idea"
    requirements = DrafterRequirements()

    def truncate(self, length):
        pass

    def observe(self, committed_ids, features):
        pass

    def draft(self, stem, budget, sampler):
        return sampler.tree(stem, range(-1, len(stem) - 1), [None] * len(stem))

    def close(self):
        pass


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    directory = make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
    target = TorchTarget.load(directory, context_length=2048, device="cpu")
    rule, tokenizer = RULES["drafter-invariant"], Tokenizer(directory)
    made = PlanPipeline(target, None, tokenizer, rule, FixedBudget(BUDGET), load_skills(), prompt_examples=False)
    yield made
    made.close()


def ask(text, scene, skills, task) -> PlanRequest:
    return PlanRequest(text, SamplingParams(), 30, scene, skills, task.history)


@pytest.fixture(scope="module")
def requests():
    return requests_for(TASKS[:3], ask)


def test_what_the_grammar_forces_is_not_the_drafters_merit(pipeline, requests):
    pipeline.drafter = NoIdea()
    runs = [answer(pipeline, request, BUDGET) for request in requests]
    cycles = [cycle for run in runs for cycle in run.cycles]
    assert sum(cycle.kept for cycle in cycles) > 0
    assert all(cycle.kept <= cycle.forced and cycle.guessed == 0 for cycle in cycles)
    free = answer(pipeline, replace(requests[0], free_text=True), BUDGET)
    assert free.cycles and all(cycle.forced == cycle.kept == 0 for cycle in free.cycles)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_parts_of_a_length_add_up_and_the_tokens_are_all_there(pipeline, requests, temperature):
    pipeline.drafter = LookupDrafter(branches=2)
    asked = [replace(request, sampling=SamplingParams(temperature, seed=4)) for request in requests]
    pairs = list(answer_in_turns(pipeline, asked, BUDGET))
    row = summary(pairs)
    assert row["identical"] == row["prompts"] == len(asked)
    assert row["acceptance_length"] == pytest.approx(1 + row["forced"] + row["guessed"], abs=2e-3)
    for pair in pairs:
        assert all(cycle.kept == 0 and cycle.forced == 0 for cycle in pair.plain.cycles)
        emitted = 1 + sum(cycle.kept + 1 for cycle in pair.drafted.cycles)  # the first is the prefill's
        assert emitted >= len(pair.drafted.tokens) > emitted - BUDGET - 1  # the last cycle is cut to the stop
        assert all(cycle.kept <= cycle.room <= BUDGET for cycle in pair.drafted.cycles)


def test_room_is_what_the_answers_end_leaves(pipeline, requests):
    """At max_tokens 4 the first token is the prefill's, so the first cycle may draft two and add its own."""
    pipeline.drafter = LookupDrafter()
    run = answer(pipeline, replace(requests[0], max_tokens=4, free_text=True), BUDGET)
    assert run.cycles[0].room == 2


def test_the_best_tree_is_the_one_with_the_most_tokens_per_second():
    """Not the one that took the least time: 3 branches need 4 ms a token here, 2 need 6 and 4 need 5."""

    class Timed:
        def run(self, request):
            tokens, decode_ms = {2: (11, 60.0), 3: (21, 80.0), 4: (11, 50.0)}[self.branches]
            return SimpleNamespace(tokens=(0,) * tokens, metrics=SimpleNamespace(decode_ms=decode_ms))

    timed = Timed()
    assert fastest(timed, lambda branches: setattr(timed, "branches", branches), (2, 3, 4), ["a", "b"]) == 3
    assert fastest(timed, lambda branches: pytest.fail("one tree needs no choosing"), (4,), ["a"]) == 4


def test_depths_count_only_passes_that_had_room():
    cycles = (
        Cycle(room=4, forced=1, kept=3, draft_ms=1.0, verify_ms=2.0),  # two guesses of three
        Cycle(room=4, forced=0, kept=0, draft_ms=1.0, verify_ms=2.0),
        Cycle(room=1, forced=1, kept=1, draft_ms=1.0, verify_ms=2.0),  # no room to guess
        Cycle(room=4, forced=2, kept=1, draft_ms=1.0, verify_ms=2.0),  # a forced token fell
    )
    run = Run((1, 2), 8.0, cycles)
    row = summary([Pair(Run((1, 2), 16.0, cycles[1:2]), run)])
    assert row["kept_at_depth"] == [
        {"depth": 1, "passes": 4, "share": 0.75},
        {"depth": 2, "passes": 3, "share": pytest.approx(1 / 3, abs=1e-3)},
        {"depth": 3, "passes": 3, "share": pytest.approx(1 / 3, abs=1e-3)},
        {"depth": 4, "passes": 3, "share": 0.0},
    ]
    assert [(at["passes"], at["share"]) for at in row["guessed_at_depth"]] == [(2, 0.5), (2, 0.5), (2, 0.0), (1, 0.0)]
    assert (row["forced"], row["guessed"], row["acceptance_length"]) == (0.75, 0.5, 2.25)
    assert row["speed_up"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert (row["draft_ms"], row["verify_ms"], row["plain_verify_ms"]) == (1.0, 2.0, 2.0)


def test_a_different_answer_counts_against_identity_and_has_no_speed_up():
    run = Run((1, 2, 3), 5.0, (Cycle(3, 0, 1, 1.0, 1.0),))
    row = summary([Pair(replace(run, tokens=(1, 2, 4)), run)])
    assert row["identical"] == 0 and row["prompts"] == 1 and row["speed_up"] is None


def test_the_error_of_a_ratio_is_that_of_a_mean_where_all_weigh_the_same():
    values = [1.0, 2.0, 4.0, 9.0]
    ratio, error = ratio_with_error(values, [1.0] * 4)
    assert ratio == 4.0 and error == pytest.approx(np.std(values, ddof=1) / 2)
    assert ratio_with_error([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == (2.0, 0.0)  # a constant pace has no error
    assert ratio_with_error([], []) == (0.0, 0.0)


@pytest.mark.parametrize("count, kept", [(10, 10), (60, 60), (500, 60)])
def test_nothing_is_measured_on_what_the_tree_was_chosen_on(count, kept):
    measured, calibration = hold_back(TASKS, count, 8)
    assert len(measured) == kept and len(calibration) == 8
    assert not {task.id for task in measured} & {task.id for task in calibration}
    assert len({task.id for task in measured}) == kept


def test_too_few_prompts_to_measure_on_are_refused():
    with pytest.raises(ValueError, match="8 prompts are too few"):
        hold_back(TASKS[:8], 4, 8)


def test_the_shipped_prompts_are_held_out_and_of_every_domain():
    assert {task.split for task in TASKS} == {"wording_held_out", "activity_held_out"}
    assert {task.domain for task in TASKS} == {"household", "warehouse", "lab", "field"}
    assert sum(bool(task.scene) for task in TASKS) > len(TASKS) // 2
    assert len(requests_for(TASKS, ask)) == len(TASKS) >= 60
