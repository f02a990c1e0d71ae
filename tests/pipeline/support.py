"""A pipeline over a scripted target, and requests for it."""

from __future__ import annotations

from collections.abc import Callable

from drafters.lookup import LookupDrafter
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.exact_rules import get_rule
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.language.skills import load_skills
from spec_planner.language.tokenizer import Tokenizer
from spec_planner.pipeline.plan_pipeline import PlanPipeline
from spec_planner.pipeline.types import PlanRequest
from tests.fakes import ScriptedTarget

# What the target says after the prompt's "1."; the accented cup is several tokens wide.
ANSWER = " go_to(kitchen)\n2. find(café cup)\n3. pick(café cup)\n4. fly(moon)\n5. give(café cup, Anna)"
STEPS = [("go_to", "kitchen"), ("find", "café cup"), ("pick", "café cup"), ("give", "café cup", "Anna")]


def scripted(tokenizer: Tokenizer, answer: str = ANSWER, **options: object) -> ScriptedTarget:
    tokens = [*tokenizer.encode(answer), min(tokenizer.stop_ids)]
    return ScriptedTarget(tokens, tokenizer.vocabulary_size, **options)  # type: ignore[arg-type]


def pipeline(tokenizer: Tokenizer, target: ScriptedTarget, drafter: LookupDrafter | None = None) -> PlanPipeline:
    return PlanPipeline(target, drafter, tokenizer, get_rule("drafter-invariant"), FixedBudget(7), load_skills())


def request(instruction: str = "Bring Anna the café cup.", **changes: object) -> PlanRequest:
    values = {"sampling": SamplingParams(), "max_tokens": 200, "free_text": True, **changes}
    return PlanRequest(instruction, **values)  # type: ignore[arg-type]


def after(count: int) -> Callable[[], bool]:
    """A cancel that comes true on being asked for the ``count + 1``-th time."""
    asked = iter(range(10_000))
    return lambda: next(asked) >= count
