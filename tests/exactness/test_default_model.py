"""The default model and every drafter that ships for it, for real: all say the same. ``certify`` does it at length."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spec_planner.certify.certificate import Settings, Subject, certify
from spec_planner.certify.planner import question_for
from spec_planner.config import PlannerConfig
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.drafter_choice import chosen, drafters_for
from spec_planner.factory import build_drafter, build_pipeline, model_directory
from spec_planner.pipeline.types import PlanRequest
from spec_planner.shipped_drafters import BEST_FIRST, DISTILLED, NAMED, TREES_OF

INSTRUCTIONS = ("Put the cup in the sink.", "Bring the red box to the shelf and close the door.")


SHIPPED = {DISTILLED, *NAMED} - set(TREES_OF)


@pytest.fixture(scope="module", params=["tokens", "bitwise"])
def loaded(request):
    config = PlannerConfig(engine="torch", drafter="none", exactness=request.param, context_length=1024)
    made = build_pipeline(config)
    yield config, made
    made.close()


def test_drafters_come_with_the_default_model_and_the_fastest_is_used():
    directory = model_directory("default")
    assert set(drafters_for(directory)) == {"none", "lookup", *SHIPPED}
    assert chosen(PlannerConfig(), directory).drafter == BEST_FIRST[0]


def test_speculative_tokens_are_plain_tokens(loaded):
    config, made = loaded
    bitwise, matching = config.exactness == "bitwise", RULES["drafter-invariant"]

    def subject(name, branches):
        drafter = build_drafter(replace(config, drafter=name, draft_branches=branches), made.target)
        return Subject(f"{name}, {branches}", drafter, matching, 7)

    subjects = [subject(name, branches) for name in ("lookup", *sorted(SHIPPED)) for branches in (1, 3)[: 2 - bitwise]]
    requests = [PlanRequest(instruction, SamplingParams(), 64) for instruction in INSTRUCTIONS]
    prompts = [question_for(made, request) for request in requests]
    settings = Settings(tokens=24 * len(subjects), tokens_per_run=12, bitwise=bitwise, seed=7)
    certificate = certify(made.target, subjects, prompts, made.stop_ids, settings)
    for each in subjects:
        each.drafter.close()
    assert certificate.passed, certificate.problems
    assert certificate.mismatches == 0
    assert all(
        cell.verify_passes < cell.new_tokens for cell in certificate.cells
    )  # drafts were accepted, so it was tested
