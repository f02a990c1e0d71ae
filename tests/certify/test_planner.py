"""A loaded planner's certificate: what is taken from its configuration, and how it can be interrupted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path

import pytest

from drafters.lookup import LookupDrafter
from spec_planner.certify.certificate import Settings, certify
from spec_planner.certify.comparison import Divergence
from spec_planner.certify.document import to_json, to_markdown
from spec_planner.certify.planner import read_instructions, settings_for, subject_for
from spec_planner.certify.recording import Question
from spec_planner.config import ConfigError, PlannerConfig
from spec_planner.decoding.exact_rules import RULES
from tests.fakes import ScriptedTarget

MATCHING = RULES["drafter-invariant"]
PROMPTS = [Question((1, 2, 3, 1, 2))]
SUBJECT = subject_for(PlannerConfig(drafter="lookup", num_draft_tokens=3), LookupDrafter(), MATCHING)


def test_what_is_not_given_takes_the_defaults() -> None:
    assert settings_for(PlannerConfig()) == Settings(tokens=2000, temperatures=(0.0, 1.0))
    given = settings_for(PlannerConfig(exactness="bitwise"), 50, [0.5, 0.0, 0.5], seed=7)
    assert given == Settings(tokens=50, temperatures=(0.5, 0.0), bitwise=True, seed=7)


@pytest.mark.parametrize(
    ("given", "said"),
    [({"tokens": 0}, "at least 1 token"), ({"temperatures": [1.0, math.nan]}, "temperature"), ({"seed": -1}, "seed")],
    ids=str,
)
def test_settings_out_of_range_are_refused_before_anything_runs(given: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        settings_for(PlannerConfig(), **given)


def test_the_subject_is_the_drafter_as_configured() -> None:
    tree = subject_for(PlannerConfig(drafter="lookup", draft_branches=3, num_draft_tokens=5), LookupDrafter(), MATCHING)
    assert (tree.name, tree.rule.name, tree.num_draft_tokens) == ("lookup, tree", "drafter-invariant", 5)
    assert SUBJECT.name == "lookup, chain"
    with pytest.raises(ConfigError, match="drafter 'none'"):
        subject_for(PlannerConfig(drafter="none"), None, MATCHING)


def test_instructions_are_the_lines_that_say_something(tmp_path: Path) -> None:
    assert len(read_instructions()) > 10 and not any(line.startswith("#") for line in read_instructions())
    file = tmp_path / "instructions.txt"
    file.write_text("# a comment\n\n  bring the cup \n")
    assert read_instructions(file) == ["bring the cup"]
    file.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="holds no instruction"):
        read_instructions(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_instructions(tmp_path / "missing.txt")


@pytest.mark.parametrize("passes", [0, 1, 3, 40, 90])
def test_no_pass_begins_after_the_certificate_was_cancelled(passes: int) -> None:
    """Wherever it is: measuring noise, decoding plainly or with drafts."""
    target = ScriptedTarget([4, 5, 6, 7, 8, 9], 10)
    with pytest.raises(InterruptedError):
        certify(target, [SUBJECT], PROMPTS, frozenset(), Settings(), cancelled=lambda: target.passes >= passes)
    assert target.passes == passes


def test_hashing_a_large_model_can_be_cancelled(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    target = ScriptedTarget([4, 5], 10)
    certificate = certify(target, [SUBJECT], PROMPTS, frozenset(), Settings(tokens=10))
    with pytest.raises(InterruptedError):
        to_json(certificate, target.info, tmp_path, {}, cancelled=lambda: True)


def test_a_drafter_is_known_by_its_name_its_kind_and_its_files(tmp_path: Path) -> None:
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    weights.write_bytes(b"one")
    config.write_text("{}")
    target = ScriptedTarget([4, 5], 10)
    certificate = certify(target, [SUBJECT], PROMPTS, frozenset(), Settings(tokens=10))
    given = {"lookup+eagle3": ("eagle3", [weights, config])}
    (drafter,) = to_json(certificate, target.info, tmp_path / "none", given)["drafters"]
    assert (drafter["name"], drafter["kind"]) == ("lookup+eagle3", "eagle3")
    assert drafter["hashes"] == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (weights, config)}
    weights.write_bytes(b"two")
    content = to_json(certificate, target.info, tmp_path / "none", given)
    assert content["drafters"] != [drafter] and content["hashes"] == {}
    digest = hashlib.sha256(b"two").hexdigest()
    assert f"- drafter lookup+eagle3 (eagle3), model.safetensors: `{digest}`" in to_markdown(content)
    assert to_json(certificate, target.info, tmp_path, {})["drafters"] == []
    with pytest.raises(InterruptedError):
        to_json(certificate, target.info, tmp_path / "none", given, cancelled=lambda: True)


def test_it_says_what_ran_a_drafters_network() -> None:
    class Networked(LookupDrafter):
        network = "onnx, int8"

    target = ScriptedTarget([4, 5], 10)
    subject = dataclasses.replace(SUBJECT, name="eagle3, chain", drafter=Networked())
    certificate = certify(target, [SUBJECT, subject], PROMPTS, frozenset(), Settings(tokens=40))
    content = to_json(certificate, target.info, Path("none"), {})
    assert [row["network"] for row in content["rows"]] == [None, "onnx, int8"] * 2
    assert to_markdown(content).count("- network of drafter") == 1
    assert "- network of drafter eagle3, chain: onnx, int8" in to_markdown(content)


def test_the_json_is_strict_where_a_number_is_infinite(tmp_path: Path) -> None:
    target = ScriptedTarget([4, 5], 10)
    certificate = certify(target, [SUBJECT], PROMPTS, frozenset(), Settings(tokens=10, temperatures=(0.0,)))
    (cell,) = certificate.cells
    cell.largest_logit_difference = math.inf
    cell.divergences.append(Divergence(0, 1, 2, math.inf, math.inf, near_tie=False))
    content = to_json(dataclasses.replace(certificate, noise=math.inf), target.info, tmp_path, {})
    read = json.loads(json.dumps(content, allow_nan=False))
    assert (
        read["engine_noise"] is read["divergences"][0]["margin"] is read["rows"][0]["largest_logit_difference"] is None
    )
    assert "| infinite |" in to_markdown(read)
