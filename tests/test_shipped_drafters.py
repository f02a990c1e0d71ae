"""Drafters by name: found for the model they were trained for, refused for others."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from spec_planner.cli.main import main
from spec_planner.config import ConfigError, PlannerConfig
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.measured_budget import MeasuredBudget
from spec_planner.drafter_choice import check_fits, chosen, drafter_files
from spec_planner.engines.decoder_config import ModelError
from spec_planner.engines.identity import target_identity
from spec_planner.factory import build_budget, build_drafter, build_pipeline, find_rule
from spec_planner.pipeline.types import PlanRequest
from spec_planner.shipped_drafters import DISTILLED, NAMED, NotShipped, find_shipped
from tests.drafters.test_checkpoint import make_eagle
from tests.models import make_tiny_model

LAYERS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target") / "tiny", "qwen3", num_layers=LAYERS, tied=False)


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Puts a drafter where an installed package has its own; the name's real directories, if any, are set aside."""
    root = tmp_path / "share" / "spec_planner"
    root.mkdir(parents=True)
    monkeypatch.setattr("spec_planner.shipped_drafters.shared_files", lambda pattern: sorted(root.glob(pattern)))

    def ship(source: Path, name: str, target: str) -> Path:
        directory = root / "config" / "drafters" / "tiny-planner" / name
        shutil.copytree(source, directory)
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | {"spec_planner": {"target": target}}))
        return directory

    return ship


@pytest.fixture
def eagle(tmp_path) -> Path:
    return make_eagle(
        tmp_path / "eagle", "eagle1", vocabulary=320, hidden=64, target_layers=LAYERS, draft_vocabulary=320
    )


def settings(model: Path, **changes) -> PlannerConfig:
    usual = {"model": str(model), "engine": "torch", "context_length": 1024, "num_draft_tokens": 5}
    return PlannerConfig(**{**usual, **changes})


@pytest.mark.parametrize("name", ["eagle1", "eagle2", "lookup+eagle1"])
def test_a_name_is_a_drafter_that_changes_no_token(shipped, eagle, model, name):
    shipped(eagle, "eagle1", target_identity(model))
    pipeline = build_pipeline(settings(model, drafter=name, draft_budget="fixed"))
    try:
        assert pipeline.drafter.requirements.draws_trees is (name == "eagle2")
        assert pipeline.drafter_name == ("lookup+eagle1" if "+" in name else "eagle1")
        asked = {"sampling": settings(model, temperature=1.0).sampling, "max_tokens": 20, "free_text": True}
        plain = pipeline.run(PlanRequest("Fetch the cup.", plain=True, **asked))
        drafted = pipeline.run(PlanRequest("Fetch the cup.", **asked))
        assert drafted.tokens == plain.tokens and drafted.metrics.num_drafted > 0
    finally:
        pipeline.close()


def test_auto_is_the_fastest_that_ships_for_the_model_and_else_lookup(shipped, eagle, model, monkeypatch):
    monkeypatch.setattr("spec_planner.drafter_choice.BEST_FIRST", ("eagle3", "eagle1"))
    shipped(eagle, "eagle3", "another model")
    assert chosen(settings(model), model).drafter == "lookup"
    shipped(eagle, "eagle1", target_identity(model))
    assert chosen(settings(model), model).drafter == "eagle1"
    assert chosen(settings(model, drafter="none"), model).drafter == "none"
    pipeline = build_pipeline(settings(model))
    try:
        assert pipeline.drafter_name == "eagle1"
    finally:
        pipeline.close()


def test_what_is_chosen_must_fit_the_rule_too(shipped, model, monkeypatch):
    monkeypatch.setattr("spec_planner.factory.load_target", lambda *args: pytest.fail("loaded"))
    with pytest.raises(ConfigError, match="'traversal' needs a drafter that draws from a law of its own"):
        build_pipeline(settings(model, rule="traversal"))


def test_a_drafter_for_another_model_is_refused_before_anything_is_loaded(shipped, eagle, model, monkeypatch):
    shipped(eagle, "eagle1", "adapter-0123")
    monkeypatch.setattr("spec_planner.factory.load_target", lambda *args: pytest.fail("loaded"))
    with pytest.raises(NotShipped, match="'eagle1' was trained for tiny-planner and the target in use is another"):
        build_pipeline(settings(model, drafter="eagle1"))


def test_names_that_are_not_shipped_and_combinations_that_cannot_be_are_refused(shipped, eagle, model):
    with pytest.raises(NotShipped, match="no drafter 'medusa' comes with this package, nor any other: use lookup"):
        build_pipeline(settings(model, drafter="medusa"))
    shipped(eagle, "eagle1", target_identity(model))
    with pytest.raises(NotShipped, match="'dflash' comes with this package, only eagle1, eagle2: use one of them"):
        build_pipeline(settings(model, drafter="dflash"))
    for drafter, rule, message in (
        ("lookup+eagle1", "rejection", "'rejection' reads the law that a draft was drawn from"),
        ("lookup+eagle1", "traversal", "'traversal' reads the law"),
        ("lookup+none", "drafter-invariant", "nothing to put prompt lookup beside"),
        ("lookup+lookup", "drafter-invariant", "nothing to put prompt lookup beside"),
        ("lookup+auto", "drafter-invariant", "nothing to put prompt lookup beside"),
        ("lookup+nowhere", "drafter-invariant", "no drafter is called 'lookup\\+nowhere'; choose auto, none, lookup"),
        ("eagle2", "block", "'eagle2' draws trees and chains are wanted here: use eagle1"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_fits(settings(model, drafter=drafter), find_rule(rule))
    with pytest.raises(ConfigError, match="eagle2' draws trees"):
        check_fits(settings(model, drafter="eagle2", exactness="bitwise"), find_rule("drafter-invariant"))


def test_a_shipped_drafter_that_does_not_say_its_target_is_refused(shipped, eagle, model):
    directory = shipped(eagle, "eagle1", "")
    (directory / "config.json").write_text("{}")
    with pytest.raises(NotShipped, match="does not say which target it was trained for"):
        build_pipeline(settings(model, drafter="eagle1"))


def test_the_distilled_draft_model_is_taken_where_there_is_one(shipped, eagle, model, monkeypatch):
    loaded = []
    monkeypatch.setattr("spec_planner.draft_loading.load_drafter", lambda directory, *rest: loaded.append(directory))
    monkeypatch.setattr("spec_planner.factory.check_compatible", lambda *args: None)
    monkeypatch.setattr("spec_planner.factory._draft_net", lambda *args: loaded.append("own layers"))
    monkeypatch.setattr("spec_planner.factory.drafter_class", lambda name: lambda net, siblings: net)

    class Target:
        class info:
            engine = "torch"

    assert find_shipped(DISTILLED, target_identity(model)) is None
    directory = shipped(eagle, "draft-model", target_identity(model))
    for changes in ({}, {"draft_layers": 2}, {"draft_model": "elsewhere"}):
        build_drafter(settings(model, drafter="draft-model", **changes), Target())
    assert loaded == [directory, "own layers", "own layers"]


def test_the_certificate_says_which_files_the_drafter_came_from(shipped, eagle, model, capsys):
    directory = shipped(eagle, "eagle1", target_identity(model))
    given = [
        "--drafter",
        "lookup+eagle1",
        "--exactness",
        "bitwise",
        "--draft-budget",
        "fixed",
        "--num-draft-tokens",
        "2",
    ]
    asked = ["--tokens", "4", "--temperature", "0", "--free-text", "--json"]
    assert main(["certify", "--model", str(model), "--engine", "torch", *given, *asked]) == 0
    content = json.loads(capsys.readouterr().out)
    (drafter,) = content["drafters"]
    assert drafter["name"] == content["rows"][0]["drafter"].split(",")[0] == "lookup+eagle1"
    files = {path.name: path for path in directory.iterdir()}
    assert drafter["kind"] == "eagle1" and set(drafter["hashes"]) == set(files)
    assert drafter["hashes"] == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


def test_a_drafters_files_are_those_that_decide_what_it_guesses(shipped, eagle, model):
    directory = shipped(eagle, "eagle1", target_identity(model))
    (directory / "README.md").write_text("A card.")
    weights = next(path.name for path in eagle.iterdir() if path.name != "config.json")
    for changes, kind, place in (
        ({"drafter": "eagle2"}, "eagle1", directory),
        ({"drafter": str(eagle)}, "eagle1", eagle),
        ({"drafter": f"lookup+{eagle}"}, "eagle1", eagle),
    ):
        assert drafter_files(settings(model, **changes), model) == (kind, [place / weights, place / "config.json"])
    whole = drafter_files(settings(model, drafter="lookup+draft-model", draft_model=str(model)), model)
    assert whole == ("draft-model", [model / "model.safetensors", model / "config.json"])


def test_files_are_named_only_where_there_are_some(shipped, eagle, model):
    for changes in ({"drafter": "lookup"}, {"drafter": "draft-model"}, {"drafter": "lookup+draft-model"}):
        assert drafter_files(settings(model, **changes), model) is None
    with pytest.raises(NotShipped):
        drafter_files(settings(model, drafter="dflash"), model)


def test_every_name_is_known_to_the_settings():
    described = PlannerConfig.__dataclass_fields__["drafter"].metadata["doc"]
    assert all(name in described for name in NAMED)


def test_a_model_is_known_by_its_adapter_or_its_weights(model, tmp_path):
    copy = tmp_path / "another name"
    shutil.copytree(model, copy)
    assert target_identity(copy) == target_identity(model) and target_identity(model).startswith("weights-")
    other = make_tiny_model(tmp_path / "other", "qwen3", num_layers=2)
    assert target_identity(other) != target_identity(model)
    (copy / "spec_planner.json").write_text(json.dumps({"prompt_examples": False, "adapter": "abc"}))
    assert target_identity(copy) == "adapter-abc"
    (copy / "spec_planner.json").write_text("[")
    with pytest.raises(ModelError, match="cannot be read"):
        target_identity(copy)


def test_the_budget_is_measured_unless_it_must_or_shall_be_fixed(model):
    assert isinstance(build_budget(settings(model), None), MeasuredBudget)
    for changes in ({"draft_budget": "fixed"}, {"exactness": "bitwise"}):
        assert build_budget(settings(model, **changes), None) == FixedBudget(5)
    with pytest.raises(ConfigError, match="draft_budget must be one of fixed, measured"):
        settings(model, draft_budget="free")
