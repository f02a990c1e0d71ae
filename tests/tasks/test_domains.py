"""What tasks are drawn from: sizes, and that nothing held out can be met in training. Needs no planner."""

from __future__ import annotations

import re

import pytest

from spec_planner.language.scene import name_problem
from spec_planner.tasks.domain import DOMAINS, load_domain, read_data
from spec_planner.tasks.wording import SENTENCES

LEAST_OBJECTS, LEAST_PLACES, LEAST_ACTIVITIES, LEAST_WORDINGS = 60, 25, 30, 8


def structure(activity):
    """The clauses, which things they share, how many of each, and which places begin as which."""
    order = {}

    def number(role):
        return order.setdefault(role, len(order))

    def several(role):
        wanted = activity.roles.get(role)
        return wanted[-1] if isinstance(wanted, list) and isinstance(wanted[-1], int) else 1

    clauses = tuple(
        (clause.name, tuple(map(number, roles)), tuple(map(several, roles))) for clause, roles in activity.clauses
    )
    starts = {(number(role), number(where) if where in order else where) for role, where in activity.at.items()}
    return clauses, frozenset(starts)


@pytest.mark.parametrize("name", DOMAINS)
def test_a_domain_is_large_enough(name):
    domain = load_domain(name)
    assert len({thing for things in domain.things.values() for thing in things}) >= LEAST_OBJECTS
    assert len({place for sort in domain.places.values() for place in sort.names}) >= LEAST_PLACES
    assert len(domain.activities) >= LEAST_ACTIVITIES
    held_out = sum(activity.held_out for activity in domain.activities.values())
    assert 0.1 <= held_out / len(domain.activities) <= 0.2


@pytest.mark.parametrize("name", DOMAINS)
def test_every_activity_can_be_said_in_many_ways(name):
    frames = read_data(SENTENCES)["say"]
    for activity in load_domain(name).activities.values():
        wordings = len(frames.get(len(activity.clauses), [""]))
        for clause, _ in activity.clauses:
            wordings *= len(clause.phrases.say)
        assert wordings >= LEAST_WORDINGS, activity.name


@pytest.mark.parametrize("name", DOMAINS)
def test_held_out_phrases_and_structures_are_in_no_other_split(name):
    domain = load_domain(name)
    for clause in domain.clauses.values():
        used = {*clause.phrases.say, *clause.phrases.state}
        kept = {*clause.held_out.say, *clause.held_out.state}
        assert kept and not used & kept, clause.name
    activities = domain.activities.values()
    trained = {structure(activity) for activity in activities if not activity.held_out}
    for activity in activities:
        assert not activity.held_out or structure(activity) not in trained, activity.name


def test_held_out_frames_are_in_no_other_split():
    data = read_data(SENTENCES)
    for count, frames in data["held_out"]["say"].items():
        assert not set(frames) & set(data["say"][count])
    for frames in (data["say"], data["held_out"]["say"]):
        for count, texts in frames.items():
            for text in texts:
                assert sorted(re.findall(r"\{(\d)\}", text)) == [str(i) for i in range(1, count + 1)], text


@pytest.mark.parametrize("name", DOMAINS)
def test_names_conditions_and_roles_are_known(name):
    domain = load_domain(name)
    predicates = {
        condition.fact.predicate for skill in domain.skills for condition in (*skill.preconditions, *skill.effects)
    }
    for place in domain.places.values():
        assert domain.skills.knows(place.kind), place
        assert not any(map(name_problem, place.names))
    for sort, things in domain.things.items():
        assert not any(map(name_problem, things))
        assert domain.spots[sort] and domain.homes[sort]
        assert {*domain.spots[sort], *domain.homes[sort]} <= set(domain.places)
    for clause in domain.clauses.values():
        conditions = (*clause.start, *clause.by, *clause.goal)
        assert {condition.fact.predicate for condition in conditions} <= predicates, clause.name
        roles = {*clause.roles, "s", *([clause.each.role] if clause.each else [])}
        assert {argument for condition in conditions for argument in condition.fact.arguments} <= roles, clause.name
        for phrase in (*clause.phrases.say, *clause.phrases.state, *clause.held_out.say, *clause.held_out.state):
            assert set(re.findall(r"\{(?:in |a )?([a-z]+)", phrase)) <= roles, phrase


def test_an_unknown_domain_is_named():
    with pytest.raises(ValueError, match="kitchen"):
        load_domain("kitchen")


def test_ranges_of_names_are_written_out():
    names = load_domain("warehouse").places["shelf"].names
    assert {"shelf A1", "shelf F6"} <= set(names) and len(names) == 38
