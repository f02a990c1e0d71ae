"""A thought is free, bounded, and over before the plan begins."""

from __future__ import annotations

import json

import numpy as np
import pytest

from spec_planner.language.thinking import ThinkingConstraint, answer_start

CLOSE, END, SIZE = 7, 2, 10


class OnlyThree:
    def allowed(self, tokens):
        mask = np.zeros(SIZE, dtype=bool)
        mask[3 if len(tokens) < 2 else END] = True
        return mask

    def forced(self, tokens):
        return (3,) * (2 - len(tokens))


def allowed(constraint, *tokens):
    mask = constraint.allowed(tokens)
    return None if mask is None else np.flatnonzero(mask).tolist()


def test_a_thought_is_free_but_may_not_end_the_turn_and_closes_when_its_budget_is_spent():
    constraint = ThinkingConstraint(OnlyThree(), (5, 6), CLOSE, 2, frozenset({END}), SIZE)
    free = [token for token in range(SIZE) if token != END]
    assert allowed(constraint) == allowed(constraint, 4) == free
    assert allowed(constraint, 4, 4) == [CLOSE] and constraint.forced((4, 4)) == (CLOSE, 5, 6)
    assert constraint.forced((4,)) == ()


@pytest.mark.parametrize("thought", [(), (4,), (4, 4)])
def test_then_the_lead_then_the_answer(thought):
    constraint = ThinkingConstraint(OnlyThree(), (5, 6), CLOSE, 2, frozenset({END}), SIZE)
    said = [*thought, CLOSE]
    for token in (5, 6, 3, 3, END):
        assert allowed(constraint, *said) == [token]
        said.append(token)
    assert constraint.forced((*thought, CLOSE, 5)) == (6,)
    assert constraint.forced((*thought, CLOSE, 5, 6)) == (3, 3)


def test_an_answer_may_be_free():
    constraint = ThinkingConstraint(None, (5,), CLOSE, 2, frozenset({END}), SIZE)
    assert constraint.allowed((CLOSE, 5)) is None and constraint.forced((CLOSE, 5)) == ()


def test_where_the_answer_starts():
    assert answer_start((1, 2), CLOSE) is None
    assert answer_start((1, CLOSE, 3, CLOSE), CLOSE) == 2


def thinking_model(directory, opens):
    """A tiny checkpoint whose vocabulary has the two tags and whose template may open a thought by itself."""
    pytest.importorskip("transformers")
    from tests.models import make_tiny_model

    make_tiny_model(directory)
    content = json.loads((directory / "tokenizer.json").read_text())
    size = 320
    for offset, tag in enumerate(("<think>", "</think>")):
        content["added_tokens"].append(
            {"id": size + offset, "content": tag, "special": False, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        )
    (directory / "tokenizer.json").write_text(json.dumps(content))
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    settings["chat_template"] += opens
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@pytest.mark.parametrize(
    ("opens", "thinking", "ending"),
    [
        ("", False, "assistant\n1."),
        ("{{ '<think>\\n' }}", False, "assistant\n<think>\n\n</think>\n\n1."),  # as DeepSeek-R1 does
        ("{{ '<think>\\n' }}", True, "assistant\n<think>\n"),
        (
            "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}",
            False,
            "assistant\n<think>\n\n</think>\n\n1.",
        ),
        ("{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}", True, "assistant\n"),  # as Qwen3 does
    ],
)
def test_templates_open_close_or_leave_a_thought(tmp_path, opens, thinking, ending):
    from spec_planner.language.tokenizer import Tokenizer

    tokenizer = Tokenizer(thinking_model(tmp_path / "model", opens))
    ids = tokenizer.encode_chat([{"role": "user", "content": "Go."}], "" if thinking else "1.", thinking)
    assert tokenizer.decode(ids).endswith(ending) and tokenizer.think_end == 321
    assert (321 in ids) == ("</think>" in ending)
