"""Instructions: grammar where names meet phrases, and phrases kept apart. Needs no planner."""

from __future__ import annotations

import random

import pytest

from spec_planner.tasks.blind import blind_plan
from spec_planner.tasks.domain import load_domain
from spec_planner.tasks.draft import Dead, Draft
from spec_planner.tasks.wording import Said, Speaker


def speaker(seed=0, held_out=False, blind=True):
    domain = load_domain("household")
    draft = Draft(domain, random.Random(seed))
    for name, sort in (("fridge", "fridge"), ("table", "table"), ("Anna", "person"), ("balcony", "room")):
        draft.keep_place(name, domain.places[sort])
    draft.objects |= {"milk": "cold food", "keys": "personal", "red cup": "dishes"}
    draft.at |= {"milk": "table", "keys": "table", "red cup": "fridge"}
    return Speaker(domain, draft, held_out, blind)


def said(name, source="table", **names):
    return Said(load_domain("household").clauses[name], {role: (value,) for role, value in names.items()}, source)


def render(phrase, **names):
    words = speaker()
    return words._render(phrase, said("move", **names), "")


@pytest.mark.parametrize(
    "phrase, names, text",
    [
        ("put {x} {in p}", {"x": "milk", "p": "fridge"}, "put the milk in the fridge"),
        ("put {x} {in p}", {"x": "keys", "p": "table"}, "put the keys on the table"),
        ("put {x} {in p}", {"x": "red cup", "p": "balcony"}, "put the red cup on the balcony"),
        ("{x} {x:belongs/belong} {in p}", {"x": "keys", "p": "table"}, "the keys belong on the table"),
        ("{x} {x:belongs/belong} {in p}", {"x": "milk", "p": "fridge"}, "the milk belongs in the fridge"),
        ("give {x} to {a}", {"x": "milk", "a": "Anna"}, "give the milk to Anna"),
        ("{a m} label", {"m": "express"}, "an express label"),
    ],
)
def test_articles_prepositions_and_number(phrase, names, text):
    assert render(phrase, **names) == text


def test_it_stands_only_for_what_was_said_before():
    clauses = [said("clean", x="red cup", source="fridge"), said("give", x="red cup", a="Anna", source="")]
    texts = {speaker(seed).say(clauses).text for seed in range(300)}
    assert any(" it " in text for text in texts)
    for text in texts:
        assert text.index("red cup") < (f"{text} it ".index(" it ") if " it " in text else len(text)), text
        assert text[0].isupper() and text[-1] in ".?" and "{" not in text and "  " not in text


def test_held_out_instructions_have_a_phrase_of_their_own():
    clauses = [said("move", x="milk", p="fridge"), said("close", c="fridge")]
    for seed in range(100):
        words = speaker(seed, held_out=True).say(clauses).wording.split()
        assert any(".h" in word for word in words)
        assert not any(".h" in word for word in speaker(seed).say(clauses).wording.split())


def test_without_a_scene_the_plan_follows_the_words():
    clauses = [said("move", x="milk", p="fridge"), said("close", c="fridge")]
    plans = set()
    for seed in range(60):
        words = speaker(seed)
        instruction = words.say(clauses)
        plan = blind_plan(words.domain, clauses, instruction, words.draft, {})
        assert (plan[0] == "go_to(table)") == ("from the table" in instruction.text)
        plans.add(plan)
    rest = ("find(milk)", "pick(milk)", "go_to(fridge)", "put(milk, fridge)", "close(fridge)")
    assert plans == {rest, ("go_to(table)", *rest)}


def test_without_a_scene_everything_means_nothing():
    clauses = [Said(load_domain("household").clauses["all_off"], {}, "")]
    words = speaker()
    with pytest.raises(Dead):
        blind_plan(words.domain, clauses, words.say(clauses), words.draft, {})
