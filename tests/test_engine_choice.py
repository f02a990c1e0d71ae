"""``engine: auto``: which engine it is, that it stays the same one, and what is tried where."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from spec_planner import engine_choice
from spec_planner.config import ConfigError, PlannerConfig
from spec_planner.engine_choice import (
    chosen_engine,
    engines_to_try,
    fastest,
    pass_milliseconds,
    pass_seconds,
    remembered_engine,
)
from spec_planner.engines.decoder_config import EngineUnavailable, ModelError
from spec_planner.engines.table_target import TableTarget
from spec_planner.factory import build_pipeline
from spec_planner.memory.check import DoesNotFit
from spec_planner.pipeline.types import PlanRequest
from tests.models import make_tiny_model

TIMES = {"onnx": 26.0, "torch": 59.0, "openvino": 41.0}


class Measure:
    """Gives times as told, and counts what it was asked for; an engine without a time has no usable library."""

    def __init__(self, **milliseconds):
        self.milliseconds, self.asked = milliseconds, []

    def __call__(self, config, directory, report):
        self.asked.append(config.engine)
        if config.engine not in self.milliseconds:
            raise EngineUnavailable(f"engine {config.engine!r} needs a newer library: upgrade it")
        return self.milliseconds[config.engine]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("choice") / "tiny")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Where trials are remembered; with every library installed and no GPU, whatever is there."""
    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        engine_choice.importlib.util, "find_spec", lambda name: object() if name != "tensorrt" else None
    )
    monkeypatch.setattr(engine_choice, "_torch_sees_a_gpu", lambda: False)
    return tmp_path / "cache" / "trials"


def test_the_fastest_is_chosen_reported_and_remembered(model, place):
    config, said, first = PlannerConfig(), [], Measure(**TIMES)
    assert remembered_engine(config, model) is None
    assert chosen_engine(config, model, said.append, first) == replace(config, engine="onnx")
    assert first.asked == ["onnx", "torch", "openvino"]
    (path,) = place.glob("*.json")
    decision = f"engine auto: onnx (16 rows: onnx 26 ms, torch 59 ms, openvino 41 ms; remembered in trials/{path.name})"
    assert said[-1] == decision and "engine auto: torch takes 59 ms for a pass of 16 rows" in said
    again, second = [], Measure(torch=1.0)
    assert chosen_engine(config, model, again.append, second).engine == "onnx" == remembered_engine(config, model)
    assert second.asked == [] and again == [decision]


def test_an_engine_that_is_named_stays_without_a_look_at_model_or_cache(tmp_path, place):
    config, measure = PlannerConfig(engine="openvino"), Measure(**TIMES)
    assert chosen_engine(config, tmp_path / "nowhere", measure=measure) == config
    assert remembered_engine(config, tmp_path / "nowhere") == "openvino"
    assert measure.asked == [] and not place.exists()


@pytest.mark.parametrize(
    ("milliseconds", "taken"),
    [
        ({"onnx": 30.0, "torch": 28.0, "openvino": 27.1}, "onnx"),
        ({"onnx": 30.0, "torch": 26.9, "openvino": 40.0}, "torch"),
        ({"onnx": 30.0, "torch": 20.0, "openvino": 19.0}, "torch"),  # a near tie behind a clear loser keeps its order
        ({"onnx": 30.0, "torch": 28.0, "openvino": 26.0}, "openvino"),
        ({"torch": 30.0, "openvino": 28.0}, "torch"),
        ({"openvino": 28.0}, "openvino"),
    ],
)
def test_near_ties_keep_a_fixed_order(milliseconds, taken):
    assert fastest(milliseconds) == taken
    assert fastest(dict(reversed(milliseconds.items()))) == taken


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bfloat16"},
        {"num_draft_tokens": 7},
        {"threads": 1},
        {"exactness": "bitwise"},
        {"context_length": 512},
    ],
    ids=str,
)
def test_other_settings_are_another_trial(model, changes):
    config, other, measure = PlannerConfig(), PlannerConfig(**changes), Measure(**TIMES)
    chosen_engine(config, model, measure=measure)
    assert remembered_engine(other, model) is None
    measure.asked.clear()
    chosen_engine(other, model, measure=measure)
    assert measure.asked and remembered_engine(other, model) is not None
    assert remembered_engine(config, model) == "onnx"


def test_another_library_version_processor_or_model_is_another_trial(model, tmp_path, monkeypatch):
    config = PlannerConfig()
    chosen_engine(config, model, measure=Measure(**TIMES))
    assert remembered_engine(config, make_tiny_model(tmp_path / "other", seed=1)) is None
    for name, value in (("_version", lambda package: "99"), ("cpu_model", lambda: "another"), ("__version__", "99")):
        with monkeypatch.context() as patch:
            patch.setattr(engine_choice, name, value)
            assert remembered_engine(config, model) is None, name
    assert remembered_engine(replace(config, temperature=1.0), model) == "onnx"


def test_plain_decoding_runs_where_speculation_does(model):
    config = PlannerConfig()
    chosen_engine(config, model, measure=Measure(**TIMES))
    assert remembered_engine(replace(config, drafter="none"), model) == "onnx"


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"engine": "onnx", "milliseconds": {"onnx": 1}, "key": {}}', '{"engine": 3}', "\ufffd"]
)
def test_a_damaged_file_is_measured_again_and_said(model, place, content):
    chosen_engine(PlannerConfig(), model, measure=Measure(**TIMES))
    (path,) = place.glob("*.json")
    whole, said = path.read_text(), []
    path.write_bytes(content.encode("latin-1", "replace") if content != "\ufffd" else b"\xff\xfe{")
    assert remembered_engine(PlannerConfig(), model) is None
    assert chosen_engine(PlannerConfig(), model, said.append, Measure(**TIMES)).engine == "onnx"
    assert f"trials/{path.name} is damaged" in said[0] and "trying the engines again" in said[0]
    assert path.read_text() == whole


def test_an_engine_that_was_remembered_but_has_not_this_precision_is_damage(model, place):
    config = PlannerConfig(precision="bfloat16")
    chosen_engine(config, model, measure=Measure(**TIMES))
    (path,) = place.glob("*.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"engine": "onnx", "milliseconds": {"onnx": 1.0}}))
    assert chosen_engine(config, model, measure=Measure(**TIMES)).engine == "openvino"


def test_a_library_that_is_too_old_is_left_out(model):
    said = []
    assert chosen_engine(PlannerConfig(), model, said.append, Measure(torch=59.0, openvino=41.0)).engine == "openvino"
    assert "engine auto: onnx is left out: engine 'onnx' needs a newer library: upgrade it" in said
    assert said[-1].startswith("engine auto: openvino (16 rows: torch 59 ms, openvino 41 ms;")


def test_an_engine_that_would_not_fit_is_not_tried(model, monkeypatch):
    def check(config, directory):
        if config.engine != "torch":
            raise DoesNotFit(f"the planner needs too much on {config.engine}: lower something")

    monkeypatch.setattr(engine_choice, "check_budget", check)
    said, measure = [], Measure(**TIMES)
    assert chosen_engine(PlannerConfig(), model, said.append, measure).engine == "torch"
    assert measure.asked == ["torch"]
    assert "engine auto: onnx is left out: the planner needs too much on onnx: lower something" in said
    assert said[-1].endswith("not remembered)")  # there may be room at the next start
    assert remembered_engine(PlannerConfig(), model) is None
    with pytest.raises(DoesNotFit, match="too much on openvino"):
        chosen_engine(PlannerConfig(precision="int8"), model, measure=measure)


def test_times_that_are_none_are_damage(model, place):
    chosen_engine(PlannerConfig(), model, measure=Measure(**TIMES))
    (path,) = place.glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"milliseconds": {"onnx": float("nan")}}))
    assert remembered_engine(PlannerConfig(), model) is None


def test_a_winner_that_no_longer_fits_gives_way_to_the_next(model, monkeypatch):
    chosen_engine(PlannerConfig(), model, measure=Measure(**TIMES))

    def check(config, directory):
        if config.engine == "onnx":
            raise DoesNotFit("the planner needs too much on onnx: lower something")

    said = []
    with monkeypatch.context() as patch:
        patch.setattr(engine_choice, "check_budget", check)
        assert chosen_engine(PlannerConfig(), model, said.append).engine == "openvino"  # 41 ms, torch 59
    assert "engine auto: onnx does not fit now: the planner needs too much on onnx: lower something" in said
    assert chosen_engine(PlannerConfig(), model).engine == "onnx"


def test_a_short_context_is_tried_with_the_rows_it_has_room_for(model):
    said = []
    chosen_engine(PlannerConfig(context_length=64, num_draft_tokens=63), model, said.append, Measure(**TIMES))
    assert "(32 rows: " in said[-1]


def test_a_library_that_is_missing_is_not_tried(model, monkeypatch):
    installed = {"torch", "openvino"}
    monkeypatch.setattr(engine_choice.importlib.util, "find_spec", lambda name: name if name in installed else None)
    assert engines_to_try(PlannerConfig()) == ("torch", "openvino")
    installed.remove("openvino")
    measure = Measure(**TIMES)
    assert chosen_engine(PlannerConfig(), model, measure=measure).engine == "torch"  # nothing to choose from
    assert measure.asked == []


def test_where_none_can_run_one_sentence_says_what_would(model, monkeypatch):
    wanted = (
        "no engine that runs precision 'int8' on this CPU can be used: for onnx, pip install onnx onnxruntime; or for"
    )
    with pytest.raises(EngineUnavailable, match=wanted):
        chosen_engine(PlannerConfig(precision="int8"), model, measure=Measure())
    monkeypatch.setattr(engine_choice.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineUnavailable, match=wanted) as error:
        chosen_engine(PlannerConfig(precision="int8"), model)
    assert "\n" not in str(error.value)


def test_any_other_trouble_is_no_reason_to_take_another_engine(model, place):
    def broken(config, directory, report):
        raise ModelError("the disk is full")

    with pytest.raises(ModelError, match="the disk is full"):
        chosen_engine(PlannerConfig(), model, measure=broken)
    assert not list(place.glob("*.json"))


def test_a_cache_that_cannot_be_written_is_said_before_anything_is_tried(model, place):
    place.parent.write_text("a file where the cache should be")
    measure = Measure(**TIMES)
    with pytest.raises(ModelError, match="cannot remember which engine is the fastest in .*: free space, set SPEC_"):
        chosen_engine(PlannerConfig(), model, measure=measure)
    assert measure.asked == []


@pytest.mark.parametrize(
    ("settings", "has_tensorrt", "taken"),
    [
        ({}, True, ("torch",)),
        ({"precision": "float16"}, False, ("torch",)),
        ({"engine_file": "made"}, True, ("tensorrt",)),
        ({"precision": "int8"}, True, ("tensorrt",)),
        ({"precision": "int8"}, False, ("onnx", "openvino")),
        ({"precision": "int8", "device": "cuda"}, False, ("tensorrt",)),
        ({"precision": "fp8"}, False, ("tensorrt",)),  # whose loading says how to get it
        ({"device": "cpu"}, True, ("onnx", "torch", "openvino")),
    ],
    ids=str,
)
def test_on_a_gpu(settings, has_tensorrt, taken, monkeypatch):
    monkeypatch.setattr(engine_choice, "_torch_sees_a_gpu", lambda: True)
    if has_tensorrt:
        monkeypatch.setattr(engine_choice.importlib.util, "find_spec", lambda name: object())
    assert engines_to_try(PlannerConfig(**settings)) == taken


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "fp8"}, "'fp8' runs on a GPU only .engine tensorrt. and torch sees none here: set precision to"),
        ({"engine_file": "made"}, "engine_file is given and torch sees no GPU here: leave it empty, or"),
    ],
)
def test_without_a_gpu_what_needs_one_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        engines_to_try(PlannerConfig(**settings))


def test_the_time_of_a_pass_is_the_median_after_warming_up():
    target, ticks = TableTarget(lambda context: np.eye(5, dtype=np.float32)[context[-1]], 5), []
    passes = [50.0, 50.0, 50.0, 1.0, 1.0, 1.0, 1.0, 2.0, 9.0, 9.0, 9.0, 9.0]
    for seconds in passes:
        ticks += [0.0, seconds]
    assert pass_seconds(target, 4, 12, iter(ticks).__next__) == 2.0
    assert target.committed_length == 12  # verified and never committed


def test_a_plan_on_the_engine_that_real_trials_chose(model, place, monkeypatch):
    """End to end with the engines that are installed; which one wins is the machine's business."""
    monkeypatch.undo()
    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(place.parent))
    said: list[str] = []
    config = PlannerConfig(model=str(model), drafter="lookup", context_length=1024, num_draft_tokens=3, device="cpu")
    pipeline = build_pipeline(config, said.append)
    try:
        result = pipeline.run(PlanRequest("Fetch the cup.", config.sampling, 8, free_text=True))
        assert result.tokens
    finally:
        pipeline.close()
    engine = remembered_engine(config, model)
    assert pipeline.info.engine == engine in engines_to_try(config)
    if len(engines_to_try(config)) > 1:
        assert any(line.startswith(f"engine auto: {engine} (4 rows: ") for line in said)
        (path,) = place.glob("*.json")
        tried = json.loads(path.read_text())["milliseconds"]
        assert set(tried) <= set(engines_to_try(config)) and all(value > 0 for value in tried.values())
        monkeypatch.setattr(engine_choice, "pass_milliseconds", lambda *_: pytest.fail("tried again"))
        assert chosen_engine(config, model).engine == engine


def test_the_longest_drafts_in_the_shortest_context_can_be_tried(model):
    pytest.importorskip("torch")
    config = PlannerConfig(engine="torch", context_length=64, num_draft_tokens=63, device="cpu")
    assert pass_milliseconds(config, model, lambda line: None) > 0


def test_a_library_that_does_not_import_is_left_out_of_real_trials(model, monkeypatch):
    pytest.importorskip("openvino")
    for name in [name for name in sys.modules if name.startswith("spec_planner.engines.onnx_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    said: list[str] = []
    config = PlannerConfig(context_length=256, num_draft_tokens=1, precision="int8", device="cpu")
    assert chosen_engine(config, model, said.append).engine == "openvino"
    assert any("onnx is left out: engine 'onnx' needs the package onnxruntime" in line for line in said)
