"""Skill lists from YAML and signatures, and where the default list is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_planner.language.plan import Skill
from spec_planner.language.skills import SkillError, load_skills, parse_signature, read_skills


def test_signature_round_trip() -> None:
    assert parse_signature(" give( object ,person ) ") == Skill("give", ("object", "person"))
    assert parse_signature("wait()") == Skill("wait", ())
    for skill in load_skills():
        assert parse_signature(skill.signature, skill.description) == skill


@pytest.mark.parametrize("signature", ["", "pick", "pick(", "pick(a,)", "pick(a b)", "2pick(a)", "pick(a) x", "a.b(c)"])
def test_bad_signature_is_refused(signature: str) -> None:
    with pytest.raises(SkillError, match="is not a skill"):
        parse_signature(signature)


def test_repeated_parameter_is_refused() -> None:
    with pytest.raises(SkillError, match="names a parameter twice"):
        parse_signature("give(object, object)")


def test_default_skills_have_the_prompt_examples_names() -> None:
    names = [skill.name for skill in load_skills("")]
    assert len(names) == len(set(names)) >= 8
    assert {"go_to", "pick"} <= set(names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a list of skills"),
        ("name: pick", "must be a list of skills"),
        ("[]", "must be a list of skills"),
        ("- name: [", "s.yaml, line 1: not valid YAML"),
        ("- name: pick\n  parameters: [object]\n- pick", "s.yaml, line 3, entry 2: a skill is a mapping"),
        ("- name: pick\n- name: pick", "s.yaml, line 2, entry 2: skill 'pick' appears twice"),
        ("- parameters: [a]", "entry 1: name must be an identifier such as go_to, got None"),
        ("- name: go to", "name must be an identifier such as go_to, got 'go to'"),
        ("- name: pick\n  parameters: object", r"\(pick\): parameters must be a list of identifiers"),
        ("- name: pick\n  parameters: [1]", r"\(pick\): parameters must be a list of identifiers"),
        ("- name: pick\n  parameters: [a, a]", "entry 1: skill 'pick.a, a.' names a parameter twice"),
        ("- name: pick\n  description: [x]", r"\(pick\): description must be text"),
        ("- name: pick\n  arguments: [x]", "unknown key arguments"),
        ("- !!python/object/apply:os.system ['true']", "s.yaml, line 1: not valid YAML"),
    ],
)
def test_bad_list_names_file_line_and_entry(text: str, message: str) -> None:
    with pytest.raises(SkillError, match=message) as caught:
        read_skills(text, "s.yaml")
    assert str(caught.value).startswith("s.yaml") and "\n" not in str(caught.value)


def test_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SkillError, match="none.yaml cannot be read .No such file.*set skills_file"):
        load_skills(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"- name: pick\n  description: caf\xe9\n")
    with pytest.raises(SkillError, match="it is not UTF-8 text"):
        load_skills(tmp_path / "latin.yaml")
