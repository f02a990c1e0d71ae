"""Answers under the grammar, prompts in a row, and the model's manners."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from drafters.lookup import LookupDrafter
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.language.plan import History, Parameter, Scene, Skill, SkillSet, Thing
from spec_planner.language.tokenizer import Tokenizer
from spec_planner.pipeline.types import PlanProgress
from tests.fakes import ScriptedTarget
from tests.language.test_thinking import thinking_model

from .support import ANSWER, after, pipeline, request, scripted

pytest.importorskip("transformers")


# --- under the grammar ---

SCENE = Scene(
    (*(Thing(place, "place") for place in ("kitchen", "Anna")), Thing("café cup"), Thing("cup")),
)


def test_under_the_grammar_nothing_but_the_scene_can_be_named(tokenizer: Tokenizer) -> None:
    """The script wants to fly to the moon; the law leaves it what the robot can do."""
    planner = pipeline(tokenizer, scripted(tokenizer), LookupDrafter())
    held = request(scene=SCENE, free_text=False, max_steps=6, sampling=SamplingParams(1.0, seed=3))
    result = planner.run(held)
    assert result.plan.complete and result.plan.rejected == () and 1 <= len(result.plan.steps) <= 6
    named = {value for step in result.plan.steps for value in step.values}
    assert named <= {"kitchen", "Anna", "café cup", "cup"}
    assert planner.run(dataclasses.replace(held, plain=True)).tokens == result.tokens


def test_what_the_grammar_forces_is_drafted_for_free(tokenizer: Tokenizer) -> None:
    """Without a usable guess of the drafter's own, forced text alone makes passes worth more than a token."""
    only = SkillSet((Skill("go_to", (Parameter("place", "place"),)),))
    target = scripted(tokenizer, " go_to(kitchen)\n2. go_to(Anna)")
    planner = pipeline(tokenizer, target, LookupDrafter(max_ngram=60, min_ngram=60))
    result = planner.run(request(scene=SCENE, skills=only, free_text=False, max_steps=2))
    assert [step.text for step in result.plan.steps] == ["1. go_to(kitchen)", "2. go_to(Anna)"]
    assert result.metrics.acceptance_length > 1.5


def test_a_scene_in_which_nothing_can_be_done_is_refused(tokenizer: Tokenizer) -> None:
    target = scripted(tokenizer)
    with pytest.raises(ValueError, match="no skill can be used in this scene"):
        pipeline(tokenizer, target).run(
            request(
                scene=Scene((Thing("Anna", "person"),)),
                skills=SkillSet(
                    (Skill("open", (Parameter("container", "box"),)),), {"person": ("place",), "box": ("place",)}
                ),
                free_text=False,
            )
        )
    assert target.context == []


def test_a_step_is_told_with_its_closing_bracket(tokenizer: Tokenizer) -> None:
    news: list[PlanProgress] = []
    target = scripted(tokenizer, " go_to(kitchen)\n2. go_to(Anna)")
    pipeline(tokenizer, target).run(request(scene=SCENE, free_text=False, plain=True), news.append)
    first = next(progress for progress in news if progress.new_steps)
    assert first.text == "1. go_to(kitchen)"


# --- one prompt after another ---


def test_the_next_prompt_starts_where_it_differs(tokenizer: Tokenizer, drafter: LookupDrafter | None) -> None:
    target = scripted(tokenizer)
    planner = pipeline(tokenizer, target, drafter)
    first = planner.run(request("Fetch the cup."))
    again = planner.run(request("Bring the box to Anna."))
    assert first.metrics.reused_tokens == 0
    shared = first.metrics.prompt_tokens - len(tokenizer.encode("Fetch the cup.")) - 20
    assert again.metrics.reused_tokens >= shared - 64 and again.metrics.reused_tokens % 64 == 0
    assert again.tokens == first.tokens  # the scripted answer, position by position
    history = History(("go_to(kitchen)",), "pick(cup)", "it fell")
    assert planner.run(request("Bring the box to Anna.", history=history)).metrics.reused_tokens > 0
    assert planner.run(request("Fetch the cup.", plain=True)).metrics.reused_tokens > 0
    _ = planner.target  # somebody else may use it
    assert planner.run(request("Fetch the cup.")).metrics.reused_tokens == 0


def test_a_cancelled_prompt_is_continued(tokenizer: Tokenizer) -> None:
    planner = pipeline(tokenizer, scripted(tokenizer))
    assert planner.run(request(), cancelled=after(2)).outcome == "cancelled"
    assert planner.run(request()).metrics.reused_tokens == 128


def test_after_a_breakdown_nothing_is_reused(tokenizer: Tokenizer) -> None:
    planner = pipeline(tokenizer, scripted(tokenizer))

    def fail(progress: PlanProgress) -> None:
        raise OSError("listener gone")

    with pytest.raises(OSError):
        planner.run(request(), fail)
    assert planner.run(request()).metrics.reused_tokens == 0


def test_runs_are_expected_to_take_as_long_as_those_before(tokenizer: Tokenizer) -> None:
    planner = pipeline(tokenizer, scripted(tokenizer, pass_seconds=0.005))
    assert planner.run(request(plain=True)).expected_ms is None
    news: list[PlanProgress] = []
    started = time.perf_counter()
    result = planner.run(request(plain=True), news.append)
    took_ms = (time.perf_counter() - started) * 1e3
    assert result.expected_ms == news[0].expected_ms == pytest.approx(took_ms, rel=0.5)


# --- the model's manners ---


def test_a_stop_sequence_ends_the_answer(tokenizer: Tokenizer, drafter: LookupDrafter | None) -> None:
    result = pipeline(tokenizer, scripted(tokenizer), drafter).run(request(stop=("\n3.",)))
    assert result.outcome == "succeeded" and [step.skill for step in result.plan.steps] == ["go_to", "find"]
    assert result.plan.text == "1. go_to(kitchen)\n2. find(café cup)" and result.plan.complete
    assert len(result.tokens) < len(tokenizer.encode(ANSWER))


def test_a_thought_is_told_apart_and_never_parsed(tmp_path: Path) -> None:
    thoughtful = Tokenizer(thinking_model(tmp_path / "model", ""))
    size, close = thoughtful.vocabulary_size, thoughtful.think_end
    thought, answer = "1. go_to(moon)\nNo, the cup.", "\n\n1. go_to(kitchen)"
    script = [*thoughtful.encode(thought), close, *thoughtful.encode(answer), min(thoughtful.stop_ids)]
    for drafter in (None, LookupDrafter()):
        planner = pipeline(thoughtful, ScriptedTarget(script, size), drafter)
        news: list[PlanProgress] = []
        result = planner.run(request(thinking_tokens=40, scene=SCENE, free_text=False), news.append)
        assert result.thinking == thought and [step.text for step in result.plan.steps] == ["1. go_to(kitchen)"]
        assert result.plan.complete and any(progress.thinking and not progress.text for progress in news)
        cut = planner.run(request(thinking_tokens=4, scene=SCENE, free_text=False, max_steps=2))
        assert len(cut.thinking) < len(thought) and cut.plan.steps  # the budget is kept, and a plan follows
        assert thoughtful.encode(cut.thinking) == list(script[:4])


def test_a_plan_that_the_limit_of_steps_ended_is_not_complete(tokenizer: Tokenizer) -> None:
    target = scripted(tokenizer, " go_to(kitchen)\n2. go_to(Anna)")
    planner = pipeline(tokenizer, target)
    assert planner.run(request(scene=SCENE, free_text=False, max_steps=3)).plan.complete
    cut = planner.run(request(scene=SCENE, free_text=False, max_steps=1))
    assert len(cut.plan.steps) == 1 and not cut.plan.complete


def test_what_was_cut_off_is_not_rejected(tokenizer: Tokenizer) -> None:
    """Under the grammar an unfinished line is nobody's mistake."""
    target = scripted(tokenizer, " go_to(kitchen)\n2. go_to(Anna)")
    planner = pipeline(tokenizer, target)
    for count in (0, 1, 4):
        cut = planner.run(request(scene=SCENE, free_text=False), cancelled=after(3 + count))
        assert cut.plan.rejected == () and not cut.plan.complete
