"""The default model for real: plain and speculative decoding say the same. ``certify`` does it at length."""

from __future__ import annotations

import pytest

from drafters.draft_model import ModelDrafter
from drafters.lookup import LookupDrafter
from spec_planner.certify.certificate import Settings, Subject, certify
from spec_planner.certify.planner import question_for
from spec_planner.config import PlannerConfig
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.factory import build_pipeline
from spec_planner.pipeline.types import PlanRequest

INSTRUCTIONS = ("Put the cup in the sink.", "Bring the red box to the shelf and close the door.")


@pytest.fixture(scope="module", params=["tokens", "bitwise"])
def pipeline(request):
    made = build_pipeline(PlannerConfig(drafter="none", exactness=request.param, context_length=1024))
    yield request.param, made
    made.close()


def test_speculative_tokens_are_plain_tokens(pipeline):
    exactness, made = pipeline
    net = made.target.first_layers(25, 1024)
    matching = RULES["drafter-invariant"]
    subjects = [
        Subject("lookup, chain", LookupDrafter(), matching, 7),
        Subject("draft model, chain", ModelDrafter(net), matching, 3),
    ]
    if exactness == "tokens":
        subjects.append(Subject("lookup, tree", LookupDrafter(branches=3), matching, 7))
        subjects.append(Subject("draft model, tree", ModelDrafter(net, siblings=2), matching, 4))
    requests = [PlanRequest(instruction, SamplingParams(), 64) for instruction in INSTRUCTIONS]
    prompts = [question_for(made, request) for request in requests]
    settings = Settings(tokens=30 * len(subjects), tokens_per_run=20, bitwise=exactness == "bitwise", seed=7)
    certificate = certify(made.target, subjects, prompts, made.stop_ids, settings)
    assert certificate.passed, certificate.problems
    assert certificate.mismatches == 0
    assert all(
        cell.verify_passes < cell.new_tokens for cell in certificate.cells
    )  # drafts were accepted, so it was tested
