"""A measured budget is close to the best fixed one, stops where drafting loses, and changes no token and no law."""

from __future__ import annotations

import itertools

import pytest

from drafters.draft_model import ModelDrafter
from spec_planner.certify.enumeration import outcome_law, target_law, total_variation
from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_budget import Cycle, FixedBudget
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.measured_budget import MeasuredBudget
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.decoding.stopping import Stopping
from spec_planner.engines.table_target import TableTarget

from .simulated import Simulation
from .toys import VOCABULARY, logits_of

MOST = 7
PASSES = {  # rows → seconds
    "cpu": lambda rows: 0.94 + 0.06 * rows,
    "proportional": lambda rows: 0.7 + 0.3 * rows,
    "stairs": lambda rows: 1.0 + 0.5 * ((rows - 1) // 4),
}
DRAFTS = {"free": lambda count: 0.0, "by token": lambda count: 0.15 * count, "at once": lambda count: 0.4}


def warm(budget: MeasuredBudget, pass_cost) -> MeasuredBudget:
    """After a warm-up."""
    width = 1
    while width <= budget.most:
        budget.time_pass(width, pass_cost(width))
        width *= 2
    budget.time_pass(budget.most + 1, pass_cost(budget.most + 1))
    return budget


@pytest.mark.parametrize(("passes", "drafts"), list(itertools.product(PASSES, DRAFTS)))
def test_it_is_within_two_percent_of_the_best_fixed_budget(passes, drafts):
    """Over levels of acceptance from hopeless to easy, learning included; at none alone is it far off."""
    losses = []
    for right in (0.05, 0.7, 0.95):
        simulation = Simulation(right, PASSES[passes], DRAFTS[drafts])
        best = min(simulation.fixed(count, 1500) for count in range(MOST + 1))
        losses.append(simulation.run(warm(MeasuredBudget(MOST), PASSES[passes]), 1500)[-1] / best - 1)
    assert sum(losses) / len(losses) <= 0.02 and max(losses) <= 0.04, losses


def test_the_simulation_is_decoding():
    simulation = Simulation(0.7, PASSES["cpu"], DRAFTS["at once"])
    assert simulation.fixed(3, 300) == pytest.approx(simulation.run(FixedBudget(3), 300)[-1])
    assert simulation.fixed(0, 300) == pytest.approx(simulation.run(None, 300)[-1])


@pytest.mark.parametrize("siblings", [1, 3])
@pytest.mark.parametrize("right", [0.02, 0.2])
def test_where_drafting_loses_it_ends_up_as_fast_as_plain(right, siblings):
    """Each drafted token costs nearly a pass. Starting with hope, it gives up, and looks again ever more rarely."""
    costs = (lambda rows: 0.9 + 0.1 * rows), (lambda count: 0.8 * count)
    simulation = Simulation(right, *costs, siblings=siblings)
    times = simulation.run(warm(budget := MeasuredBudget(MOST, siblings > 1), costs[0]), 1000)
    assert budget.describe() == "off"
    assert times[-1] - times[500] <= 1.03 * 499
    assert times[500] <= 1.15 * 501  # what hope costs, once


def test_it_finds_out_when_drafts_become_good_and_when_they_become_bad():
    costs = PASSES["cpu"], DRAFTS["by token"]
    budget = warm(MeasuredBudget(MOST), costs[0])
    simulation = Simulation(lambda position: 0.95 if 300 < position < 1200 else 0.02, *costs)
    times = simulation.run(budget, 1800)
    assert times[1199] - times[799] <= 1.06 * Simulation(0.95, *costs).fixed(MOST, 400)
    assert times[1799] - times[1399] <= 1.03 * 400


def test_it_drafts_behind_a_stem_and_counts_the_stem_apart():
    """The grammar's tokens are always kept and the drafter's never: the stem stays, the drafter is turned off."""
    costs = PASSES["cpu"], DRAFTS["by token"]
    budget = warm(MeasuredBudget(MOST), costs[0])
    simulation = Simulation(0.001, *costs, forced=3)
    times = simulation.run(budget, 600)
    assert budget.describe() == "off" and times[-1] < 0.75 * 600
    assert budget.choose(3, 63) == 3 and budget.choose(3, 2) == 2 and budget.choose(9, 63) == MOST


@pytest.mark.parametrize("right", [0.5, 0.9])
def test_trees_are_sized_too(right):
    costs = PASSES["cpu"], DRAFTS["at once"]
    simulation = Simulation(right, *costs, siblings=2)
    best = min(simulation.run(FixedBudget(count), 500)[-1] for count in (1, 3, 7, 15))
    times = simulation.run(warm(MeasuredBudget(15, branching=True), costs[0]), 1000)
    assert times[-1] - times[499] <= 1.15 * min(best, 500)  # each size learns for itself, so slowly


def test_the_same_measurements_give_the_same_choices():
    def chosen() -> list[int]:
        budget = warm(MeasuredBudget(MOST), PASSES["stairs"])
        choices = []
        for index in range(300):
            asked = budget.choose(0, 63)
            choices.append(asked)
            kept = min(asked, index * 7 % 5)
            budget.learn(Cycle(0, asked, asked, kept, kept == asked, 0.1 * asked, PASSES["stairs"](1 + asked)))
        return choices

    assert chosen() == chosen() and len(set(chosen())) > 1


def test_it_first_learns_what_plain_decoding_costs():
    budget = MeasuredBudget(5)
    assert budget.choose(0, 63) == 0 and budget.choose(2, 63) == 2
    budget.time_pass(1, 1.0)
    assert budget.choose(0, 63) == 5  # nothing speaks against drafting
    assert budget.choose(0, 2) == 2 and budget.choose(0, 0) == 0
    with pytest.raises(ValueError, match="at least 1, got 0"):
        MeasuredBudget(0)


class Ticks:
    """A clock on which every reading takes a tick, and every token drafted or row verified is paid for in ticks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


class Wavering:
    """A budget that follows the past as wildly as it may: what was accepted, refused and said to be whole."""

    most = 3

    def __init__(self) -> None:
        self._next = 3

    def choose(self, forced: int, limit: int) -> int:
        return min(self._next, limit)

    def learn(self, cycle: Cycle) -> None:
        self._next = (cycle.accepted + 2 * cycle.whole + cycle.asked) % 4

    def time_pass(self, rows: int, seconds: float) -> None:
        raise AssertionError("no warm-up here")

    def describe(self) -> str:
        return "wavering"


def tokens_of(drafter_seed, temperature, budget, rule="drafter-invariant", source=None, length=60, vocabulary=17):
    sharpness = 2.0 if length > 10 else 1.0
    drafter = ModelDrafter(TableTarget(logits_of(drafter_seed, sharpness, vocabulary), vocabulary))
    steps = decode(
        TableTarget(logits_of(1, sharpness, vocabulary), vocabulary), drafter, PromptInput((0,)),
        SamplingParams(temperature, seed=5), Stopping(length), RULES[rule], budget, clock=Ticks(), random=source,
    )  # fmt: skip
    return tuple(token for step in steps for token in step.tokens)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter_seed", [1, 2])
def test_tokens_are_the_same_whatever_the_budget_does(drafter_seed, temperature):
    plain = tokens_of(drafter_seed, temperature, None)
    for budget in (FixedBudget(5), Wavering(), MeasuredBudget(6), warm(MeasuredBudget(6), float)):
        assert tokens_of(drafter_seed, temperature, budget) == plain


@pytest.mark.parametrize("rule", ["rejection", "block", "recursive-rejection", "traversal", "point-mass"])
@pytest.mark.parametrize("make", [Wavering, lambda: warm(MeasuredBudget(3), lambda rows: 0.03 + 0.01 * rows)])
def test_a_budget_that_follows_the_past_keeps_the_law(rule, make):
    """Every outcome of every random decision, enumerated; a new budget for each, which lives through the whole run."""

    def run(source):
        return tokens_of(2, 1.0, make(), rule, source, length=4, vocabulary=VOCABULARY)

    expected = target_law(logits_of(1, 1.0), SamplingParams(1.0), 4)
    assert total_variation(outcome_law(run), expected) <= 1e-12


def test_a_length_chosen_from_the_draft_itself_would_break_the_law():
    """So the enumeration above can fail: this drafter takes back what begins with token 0."""

    class Peeping(ModelDrafter):
        def draft(self, stem, budget, sampler):
            tree = super().draft(stem, budget, sampler)
            return DraftTree.root(stem[0]) if tree.tokens[1] == 0 else tree

    def run(source):
        steps = decode(
            TableTarget(logits_of(1, 1.0), VOCABULARY), Peeping(TableTarget(logits_of(2, 1.0), VOCABULARY)),
            PromptInput((0,)), SamplingParams(1.0), Stopping(4), RULES["rejection"], FixedBudget(2), random=source,
        )  # fmt: skip
        return tuple(token for step in steps for token in step.tokens)

    assert total_variation(outcome_law(run), target_law(logits_of(1, 1.0), SamplingParams(1.0), 4)) > 0.01
