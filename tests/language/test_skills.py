"""Skill sets from YAML and signatures, and where the default list is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_planner.language.plan import Condition, Fact, Parameter, Skill, SkillSet
from spec_planner.language.skills import (
    MAX_SKILLS,
    SkillError,
    load_skills,
    parse_condition,
    parse_signature,
    read_skills,
)
from spec_planner.resources import shared_file

DOMAINS = ["household", "warehouse", "lab", "field"]


def kinds_of(skill: Skill) -> list[str]:
    return [parameter.kind for parameter in skill.parameters]


def test_signature_without_a_skill_set() -> None:
    give = parse_signature(" give( object ,person ) ", "  Hand   it over. ")
    assert give == Skill("give", (Parameter("object", "object"), Parameter("person", "object")), "Hand it over.")
    assert parse_signature("wait()") == Skill("wait", ())


def test_signature_takes_the_known_skill_or_the_kind_of_the_name() -> None:
    skills = load_skills()
    for skill in skills:
        assert parse_signature(skill.signature, "ignored", skills) is skill
    assert kinds_of(parse_signature("pick(object, person)", skills=skills)) == ["object", "person"]
    assert kinds_of(parse_signature("move(crate, destination, container)", skills=skills)) == [
        "object",
        "place",
        "container",
    ]
    assert kinds_of(parse_signature("say(message)", skills=skills)) == ["text"]


@pytest.mark.parametrize("signature", ["", "pick", "pick(", "pick(a,)", "pick(a b)", "2pick(a)", "pick(a) x", "a.b(c)"])
def test_bad_signature_is_refused(signature: str) -> None:
    with pytest.raises(SkillError, match="is not a skill"):
        parse_signature(signature)


def test_repeated_parameter_is_refused() -> None:
    with pytest.raises(SkillError, match="names a parameter twice"):
        parse_signature("give(object, object)")


def test_conditions() -> None:
    assert parse_condition("not at(red cup,  table)") == Condition(Fact("at", ("red cup", "table")), False)
    assert parse_condition("hand_empty()") == Condition(Fact("hand_empty"))
    assert parse_condition("nothing(x)") == Condition(Fact("nothing", ("x",)))
    for text in ["", "at", "at(a", "at(a))", "not (a)", "at(a,,b)", "at(a, )", "at(a\nb)", "not not at(a)", 'at("a")']:
        with pytest.raises(SkillError, match="is not a condition"):
            parse_condition(text)


def test_default_skills_have_the_names_that_users_have() -> None:
    skills = load_skills("")
    assert isinstance(skills, SkillSet) and skills == load_skills(None)
    expected = ["go_to(place)", "find(object)", "pick(object)", "put(object, place)", "open(container)"]
    expected += ["close(container)", "turn_on(device)", "turn_off(device)", "clean(object)", "give(object, person)"]
    assert set(expected) <= {skill.signature for skill in skills}
    assert skills.initially == (Fact("hand_empty"),)
    assert skills.is_a("appliance", "device") and skills.is_a("appliance", "place")


@pytest.mark.parametrize("domain", DOMAINS)
def test_shipped_skills_are_modelled(domain: str) -> None:
    skills = load_skills(shared_file(f"config/skills/{domain}.yaml"))
    assert 8 <= len(skills) <= 12
    assert all(skill.description.endswith(".") for skill in skills)
    assert all(skill.preconditions and skill.effects for skill in skills if skill.name != "report")


def test_domains_differ() -> None:
    names = [{skill.name for skill in load_skills(shared_file(f"config/skills/{domain}.yaml"))} for domain in DOMAINS]
    assert len(set.union(*names)) >= 0.9 * sum(map(len, names))


def test_typed_parameters_and_both_spellings_of_conditions() -> None:
    skills = read_skills(
        """
kinds: {tap: device, device: place}
initially: ["amount(0)"]
skills:
- name: pour
  parameters:
  - tap
  - {name: litres, kind: number, low: 0.5, high: 20, decimals: 1, unit: l}
  - {name: speed, kind: enum, choices: [on, no, 1.10]}
  variables: [{name: old, kind: number, low: 0, high: 20, decimals: 1}]
  preconditions: [robot_at(tap), amount(old), not poured(tap, litres)]
  effects:
  - poured(tap, litres)
  - not amount(old)
""",
        "s.yaml",
    )
    pour = skills.by_name["pour"]
    assert pour.parameters[1] == Parameter("litres", "number", 0.5, 20.0, 1, "l")
    assert pour.parameters[2].choices == ("on", "no", "1.10"), "YAML's truth values and numbers stay words"
    assert pour.preconditions[2] == Condition(Fact("poured", ("tap", "litres")), False)
    assert len(pour.effects) == 2 and skills.initially == (Fact("amount", ("0",)),)


def test_old_plain_list_is_still_a_skill_file() -> None:
    skills = read_skills("- {name: go, parameters: [location]}\n- {name: lift, parameters: [crate, place]}", "s.yaml")
    assert [kinds_of(skill) for skill in skills] == [["place"], ["object", "place"]]
    assert skills.kinds == {} and skills.initially == ()


def test_anchors_are_fine() -> None:
    text = "- {name: a, parameters: &p [object], effects: &e [done(object)]}\n- {name: b, parameters: *p, effects: *e}"
    first, second = read_skills(text, "s.yaml")
    assert (first.parameters, first.effects) == (second.parameters, second.effects)


PICK = "skills:\n- name: pick\n  parameters: [object]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a list of skills"),
        ("name: pick", "must be a list of skills"),
        ("[]", "must be a list of skills"),
        ("kinds: {box: object}", "must be a list of skills.*there is none"),
        ("- name: [", "s.yaml, line 1: not valid YAML"),
        ("- name: pick\n\tx: 1", "s.yaml, line 2: not valid YAML"),
        ("- name: pick\x00", "s.yaml: not valid YAML"),
        ("- name: a\n--- \n- name: b", "s.yaml, line 2: not valid YAML .expected a single document|but found another"),
        ("- name: pick\n  parameters: [object]\n- pick", "s.yaml, line 3, entry 2: a skill is a mapping"),
        ("- name: pick\n- name: pick", "s.yaml, line 2, entry 2: skill 'pick' appears twice"),
        ("- name: pick\n  name: put", "s.yaml, line 2: the key 'name' is given twice"),
        ("- parameters: [a]", "entry 1: name must be an identifier such as go_to, got None"),
        ("- name: go to", "name must be an identifier such as go_to, got 'go to'"),
        ("- name: 2024-05-01", "name must be an identifier such as go_to, got '2024-05-01'"),
        ("- name: pick\n  parameters: object", r"\(pick\): parameters must be a list, got 'object'"),
        ("- name: pick\n  parameters: [1]", r"\(pick\): parameters must be a list of identifiers or mappings"),
        ("- name: pick\n  parameters: [a, a]", r"\(pick\) names a parameter twice"),
        ("- name: pick\n  parameters: [a]\n  variables: [a]", "names a parameter twice"),
        ("- name: pick\n  description: [x]", r"\(pick\): description must be text"),
        ("- name: pick\n  arguments: [x]", "s.yaml, line 2: unknown key 'arguments'"),
        ("- !!python/object/apply:os.system ['true']", "s.yaml, line 1: not valid YAML"),
        ("- &a [*a]", "an anchor that contains itself"),
        ("skill: []\nskills: []", "s.yaml, line 1: unknown key 'skill'"),
        ("[" * 5000, "nested too deeply"),
        ("kinds: {a: b, b: a}\n" + PICK, "s.yaml, line 1: kinds form a cycle: a is a b is a a"),
        ("kinds: {a: a}\n" + PICK, "kinds form a cycle"),
        ("kinds:\n  a: object\n  b: thing\n" + PICK, "s.yaml, line 3: kind b has the unknown parent 'thing'"),
        ("kinds: {a: [object, place]}\n" + PICK, "an object and a place at once"),
        ("kinds: {a: []}\n" + PICK, "kind a needs one or more"),
        ("kinds: {object: place}\n" + PICK, "'object' cannot be the name of a kind"),
        ("kinds: [a]\n" + PICK, "kinds is a mapping"),
        ("initially: [not closed(x)]\n" + PICK, "initially lists what holds"),
        ("skills:\n- name: pick\n  parameters: [box]", "s.yaml, line 3, entry 1 .pick.: 'box' is no kind"),
        ("skills:\n- name: pick\n  parameters: [{name: x, kind: box}]", "unknown kind 'box'"),
        ("- {name: a, parameters: [{name: x, kind: number}]}", "parameter x needs low"),
        ("- {name: a, parameters: [{name: x, kind: number, low: 3, high: 1}]}", "low above high .3 > 1."),
        ("- {name: a, parameters: [{name: x, kind: number, low: .nan, high: 1}]}", "needs low, a number"),
        ("- {name: a, parameters: [{name: x, kind: number, low: 0, high: .inf}]}", "needs high, a number"),
        ("- {name: a, parameters: [{name: x, kind: number, low: 0, high: 1_0}]}", "needs high, a number"),
        ("- {name: a, parameters: [{name: x, kind: number, low: 0.5, high: 1}]}", "more than its 0 decimals"),
        ("- {name: a, parameters: [{name: x, kind: number, low: 0, high: 1, decimals: 9}]}", "decimals of parameter x"),
        ("- {name: a, parameters: [{name: x, kind: number, low: 0, high: 1, choices: [a]}]}", "cannot have choices"),
        ("- {name: a, parameters: [{name: x, kind: enum}]}", "parameter x needs choices"),
        ("- {name: a, parameters: [{name: x, kind: enum, choices: [b, b]}]}", "parameter x needs choices"),
        ("- {name: a, parameters: [{name: x, kind: enum, choices: ['b,c']}]}", "choice 'b,c' of parameter x cannot be"),
        ("- {name: a, parameters: [{name: x, kind: text, low: 1}]}", "cannot have low"),
        ("- {name: a, parameters: [{name: x, colour: 1}]}", "unknown key 'colour'"),
        (PICK + "  preconditions: [at(object, place)]", "speaks of 'place', which is no parameter or variable"),
        (PICK + "  effects:\n  - holding(it)", "s.yaml, line 5, entry 1 .pick.: holding.it. speaks of 'it'"),
        (PICK + "  effects: [holding object]", "'holding object' is not a condition"),
        (PICK + "  effects: [holding(object), not holding(object)]", "effects speak of one fact twice"),
        (PICK + "  variables: [place]\n  effects: [at(object, place)]", "nothing binds variable place"),
        (PICK + "  variables: [place]\n  preconditions: [not at(object, place)]", "nothing binds variable place"),
        (PICK + "  effects: [at(object)]", "at.object. has 1 names where at elsewhere has 2"),
        (PICK + "  effects: [at(object, (object))]", "is not a condition"),
    ],
)
def test_bad_list_names_file_line_and_entry(text: str, message: str) -> None:
    with pytest.raises(SkillError, match=message) as caught:
        read_skills(text, "s.yaml")
    assert str(caught.value).startswith("s.yaml") and "\n" not in str(caught.value)


def test_limits() -> None:
    with pytest.raises(SkillError, match="1001 skills are more than 1000"):
        read_skills("\n".join(f"- name: skill_{index}" for index in range(MAX_SKILLS + 1)), "s.yaml")
    bomb = "\n".join(f"- &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]" for i in range(9))
    with pytest.raises(SkillError, match="aliases counted as written out"):
        read_skills(bomb, "s.yaml")
    lattice = "kinds:\n  a0: object\n  b0: object\n" + "".join(
        f"  {name}{level}: [a{level - 1}, b{level - 1}]\n" for level in range(1, 40) for name in "ab"
    )
    with pytest.raises(SkillError, match="too many ancestors"):
        read_skills(lattice + PICK, "s.yaml")


def test_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SkillError, match="none.yaml cannot be read .No such file.*set skills_file"):
        load_skills(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"- name: pick\n  description: caf\xe9\n")
    with pytest.raises(SkillError, match="it is not UTF-8 text"):
        load_skills(tmp_path / "latin.yaml")
