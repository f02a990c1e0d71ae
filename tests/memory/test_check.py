"""The refusal of what does not fit, and what it says would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spec_planner.config import PRECISIONS_OF, PlannerConfig
from spec_planner.engines.decoder_config import ModelError
from spec_planner.factory import build_pipeline
from spec_planner.memory import check
from spec_planner.memory.available import Memory, resident_bytes
from spec_planner.memory.budget import memory_budget
from spec_planner.memory.check import check_budget, measure, remedy
from tests.models import make_tiny_model

CONFIG = PlannerConfig(engine="onnx", precision="float32", context_length=4096, drafter="lookup", device="cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Large enough for settings to matter."""
    directory = tmp_path_factory.mktemp("target") / "tiny"
    return make_tiny_model(directory, num_layers=2, hidden_size=256, intermediate_size=1024)


@pytest.fixture
def room(monkeypatch):
    """Set what the machine has."""

    def set_room(available: int | None) -> None:
        monkeypatch.setattr(check, "main_memory", lambda: Memory("cpu", available, 2 * (available or 0)))

    return set_room


def needed(config, model) -> int:
    return measure(config, model, Memory("cpu", 1, 1), resident_bytes()).needed


def test_what_fits_passes_and_is_reported(model, room):
    room(needed(CONFIG, model) + 50_000_000)
    lines = []
    check_budget(CONFIG, model, lines.append)
    assert len(lines) == 1 and " are needed on cpu, " in lines[0]


def test_what_does_not_fit_is_refused_in_one_sentence(model, room):
    fewer = replace(CONFIG, precision="int8")
    room((needed(CONFIG, model) + needed(fewer, model)) // 2)
    with pytest.raises(ModelError) as refused:
        check_budget(CONFIG, model)
    said = str(refused.value)
    assert said.startswith("the planner needs ") and "\n" not in said and ". " not in said.replace("0. ", "")
    assert "set precision to int8 (" in said
    assert "context_length to 2048 (" in said and "use a smaller model" in said


def test_of_each_setting_the_mildest_change_that_fits_is_named(model):
    short = measure(CONFIG, model, Memory("cpu", 1, 1))
    quarter = measure(replace(CONFIG, context_length=1024), model, Memory("cpu", 1, 1)).needed
    memory = Memory("cpu", quarter, quarter)
    said = remedy(CONFIG, model, replace(short, memory=memory))
    assert "context_length to 1024 (" in said and "2048" not in said
    both = Memory("cpu", short.needed - 1, short.needed)
    assert "context_length to 2048 (" in remedy(CONFIG, model, replace(short, memory=both))
    assert "precision to int8 (" in remedy(CONFIG, model, replace(short, memory=both))


def test_where_nothing_helps_it_says_so(model):
    short = measure(CONFIG, model, Memory("cpu", 1000, 1000))
    assert remedy(CONFIG, model, short) == "use a smaller model, or end what else holds memory"


def test_where_nothing_milder_helps_another_engine_may(model):
    bfloat16 = replace(CONFIG, engine="openvino", precision="bfloat16", context_length=512, drafter="none")
    lighter = min(
        measure(replace(bfloat16, precision=precision), model, Memory("cpu", 1, 1)).needed
        for precision in PRECISIONS_OF["openvino"]
    )
    other = replace(bfloat16, engine="onnx", precision="int8")
    needed = measure(other, model, Memory("cpu", 1, 1)).needed
    assert needed < lighter
    said = remedy(bfloat16, model, measure(bfloat16, model, Memory("cpu", needed, lighter)))
    assert said.startswith("set engine to ") and " (" in said and "set precision" not in said
    on_gpu = replace(bfloat16, engine="torch", device="cuda")
    assert "engine" not in remedy(on_gpu, model, measure(on_gpu, model, Memory("cuda:0", 1000, 1000)))


def test_a_network_may_give_way_to_lookup(model):
    config = replace(CONFIG, engine="torch", drafter="draft-model", draft_layers=2)
    short = measure(config, model, Memory("cpu", 1, 1))
    with_lookup = measure(replace(config, drafter="lookup"), model, Memory("cpu", 1, 1)).needed
    assert with_lookup < short.needed
    said = remedy(config, model, replace(short, memory=Memory("cpu", with_lookup, with_lookup)))
    assert "drafter to lookup (" in said


def test_a_precision_that_the_model_cannot_have_is_not_named(tmp_path):
    odd = make_tiny_model(tmp_path / "odd", hidden_size=72, num_attention_heads=4, head_dim=18)
    short = measure(CONFIG, odd, Memory("cpu", 1, 1))
    plenty = Memory("cpu", short.needed - 1, short.needed)
    assert "precision" not in remedy(CONFIG, odd, replace(short, memory=plenty))


def test_the_unknown_refuses_nothing(model, room):
    room(None)
    lines = []
    check_budget(CONFIG, model, lines.append)
    assert lines[0].endswith("unknown")


def test_nothing_left_is_not_unknown(model, room):
    room(0)
    with pytest.raises(ModelError, match=r"and 0\.0 MB are available"):
        check_budget(CONFIG, model)


def test_what_the_process_holds_already_is_not_asked_for_again(model):
    memory, budget = Memory("cpu", 1, 1), memory_budget(CONFIG, model)
    assert measure(CONFIG, model, memory).needed == budget.total
    assert measure(CONFIG, model, memory, held=1000).needed == budget.total - 1000
    assert measure(CONFIG, model, memory, held=budget.process + 1).needed == budget.network
    assert measure(CONFIG, model, Memory("cuda:0", 1, 1)).needed == budget.network


def test_a_pipeline_is_refused_before_anything_is_loaded(model, room, monkeypatch):
    room(1_000_000)
    monkeypatch.setattr("spec_planner.factory.load_target", lambda *arguments: pytest.fail("it was loaded"))
    with pytest.raises(
        ModelError, match="the planner needs .* of memory on cpu and 1.0 MB are available: use a smaller"
    ):
        build_pipeline(replace(CONFIG, model=str(model), engine="torch"))
