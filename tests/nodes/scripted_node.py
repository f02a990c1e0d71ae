"""The planner node over a target that says a fixed plan, 0.05 s per pass; the tests run it as a process."""

from __future__ import annotations

import sys
from collections.abc import Callable

from drafters.lookup import LookupDrafter
from spec_planner.config import PlannerConfig
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.exact_rules import get_rule
from spec_planner.factory import model_directory
from spec_planner.language.skills import load_skills
from spec_planner.language.tokenizer import Tokenizer
from spec_planner.nodes.planner_node import main
from spec_planner.pipeline.plan_pipeline import PlanPipeline
from tests.fakes import ScriptedTarget

ANSWER = " go_to(kitchen)\n2. pick(red cup)\n3. go_to(table)\n4. put(red cup, table)\n"
PASS_SECONDS = 0.05


def build_scripted(config: PlannerConfig, report: Callable[[str], None]) -> PlanPipeline:
    tokenizer = Tokenizer(model_directory(config.model, report))
    script = [*tokenizer.encode(ANSWER), min(tokenizer.stop_ids)]
    target = ScriptedTarget(script, tokenizer.vocabulary_size, pass_seconds=PASS_SECONDS)
    drafter = LookupDrafter() if config.drafter == "lookup" else None
    return PlanPipeline(
        target, drafter, tokenizer, get_rule(config.rule), FixedBudget(config.num_draft_tokens), load_skills()
    )


if __name__ == "__main__":
    sys.exit(main(build=build_scripted))
