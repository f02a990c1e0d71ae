"""Stop sequences are found wherever token borders fall in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers")

from spec_planner.language.stop_text import StopText
from spec_planner.language.tokenizer import Tokenizer
from tests.models import make_tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer(make_tiny_model(tmp_path_factory.mktemp("tiny")))


def scanned(tokenizer, sequences, text, sizes):
    """Tokens kept when ``text`` arrives in pieces of ``sizes`` tokens."""
    ids, stop, kept = tokenizer.encode(text), StopText(tokenizer, sequences), 0
    for size in sizes:
        found = stop.scan(ids[kept : kept + size])
        if found is not None:
            return ids[: kept + found]
        kept += size
    return ids


@pytest.mark.parametrize("sizes", [[1] * 99, [99], [2, 5] * 20])
def test_the_answer_ends_with_the_first_sequence(tokenizer, sizes):
    text = "1. go_to(kitchen)\nEND OF PLAN. More END"
    for sequences in (("END OF PLAN",), ("nowhere", "END OF")):
        kept = tokenizer.decode(scanned(tokenizer, sequences, text, sizes))
        assert sequences[-1] in kept and "More" not in kept
        assert StopText(tokenizer, sequences).cut(kept) == "1. go_to(kitchen)\n"
    assert tokenizer.decode(scanned(tokenizer, (), text, sizes)) == text


def test_a_sequence_across_characters_of_several_tokens(tokenizer):
    text = "a café → b"
    assert tokenizer.decode(scanned(tokenizer, ("é →",), text, [1] * 99)).startswith("a café →")


@given(text=st.text("abEND ", max_size=30), sizes=st.lists(st.integers(1, 4), min_size=30, max_size=30))
def test_pieces_do_not_matter(tokenizer, text, sizes):
    kept = tokenizer.decode(scanned(tokenizer, ("END",), text, sizes))
    assert kept == tokenizer.decode(scanned(tokenizer, ("END",), text, [99]))
    assert ("END" in kept) == ("END" in text)


@given(text=st.text("abEND ", max_size=12))
def test_what_may_become_a_sequence_is_held_back(tokenizer, text):
    stop = StopText(tokenizer, ("END", "DEAD"))
    shown = text[: len(text) - stop.held_back(text)]
    for more in ("END", "ND", "D", "EAD", "AD"):
        if "END" in text + more and "END" not in text:
            assert (text + more).index("END") >= len(shown)
