"""The drafter's lines of the budget, against the drafters themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drafters.compiled.base import reach
from drafters.footprint import compiled_bytes
from drafters.lookup import LookupDrafter
from spec_planner.config import PlannerConfig
from spec_planner.memory.budget import PASS_ROOM, TORCH_BUFFERS, memory_budget, target_budget
from spec_planner.memory.engine_needs import engine_needs
from tests.drafters.test_checkpoint import make_eagle
from tests.models import make_tiny_model

HEAD = 320 * 64  # values of the tiny model's embedding, and of its head


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(request, tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("target") / "tiny", tied=request.param, num_layers=12)


@pytest.fixture(scope="module")
def eagle3(tmp_path_factory):
    directory = tmp_path_factory.mktemp("drafter")
    make_eagle(directory, "eagle3", vocabulary=320, hidden=64, target_layers=12, draft_vocabulary=100)
    return directory


def test_no_drafter_costs_nothing(model):
    config = PlannerConfig(drafter="none")
    assert memory_budget(config, model) == target_budget(config, model)


def test_lookup_costs_its_index(model):
    config = PlannerConfig(drafter="lookup", context_length=256)
    assert memory_budget(config, model).drafter == LookupDrafter.most_bytes(256 + PASS_ROOM)


def test_the_first_layers_on_torch_cost_cache_and_passes(model):
    config = PlannerConfig(engine="torch", drafter="draft-model", draft_layers=3)
    need, layers = memory_budget(config, model), engine_needs(config, model, 3)
    assert need.drafter == layers.kv + layers.activations + layers.workspace
    assert need.borrowed == layers.weights


def test_the_first_layers_on_onnx_are_packed_again(model):
    config = PlannerConfig(engine="onnx", precision="int8", drafter="draft-model", draft_layers=3)
    need, layers = memory_budget(config, model), engine_needs(config, model, 3)
    assert need.drafter == layers.total - layers.weights > layers.copies > 0


def test_a_draft_model_of_its_own_is_a_second_network(model):
    config = PlannerConfig(drafter="draft-model", draft_model=str(model))
    assert memory_budget(config, model).drafter == engine_needs(config, model).total


@pytest.mark.parametrize(("engine", "precision", "size"), [("torch", "bfloat16", 2), ("onnx", "float32", 4)])
def test_a_network_in_torch_borrows_what_the_target_holds(engine, precision, size, model, eagle3, monkeypatch):
    monkeypatch.setattr("spec_planner.drafter_choice.find_spec", lambda name: None)
    config = PlannerConfig(engine=engine, precision=precision, drafter=str(eagle3))
    need = memory_budget(config, model)
    alone = target_budget(config, model)
    assert need.restored == 0 and need.drafter > 0
    assert need.borrowed == size * HEAD  # an EAGLE-3 network has its own head and reads the embedding
    buffers = 0 if engine == "torch" else TORCH_BUFFERS  # of a second library
    assert need.total == alone.total + need.drafter + buffers  # what is borrowed counts once


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_a_network_as_a_graph_is_smaller_and_packed(engine, model, eagle3, monkeypatch):
    config = PlannerConfig(engine=engine, drafter=str(eagle3), context_length=512)
    need, alone = memory_budget(config, model), target_budget(config, model)
    graph = compiled_bytes(eagle3, model, "float32", 512 + PASS_ROOM, reach(512 + PASS_ROOM))
    assert need.drafter == graph.own and need.copies == alone.copies + graph.copies
    assert need.workspace == alone.workspace + graph.inputs + TORCH_BUFFERS
    longer = memory_budget(replace(config, context_length=8192), model)
    assert longer.workspace - target_budget(replace(config, context_length=8192), model).workspace > 2 * TORCH_BUFFERS
    monkeypatch.setattr("spec_planner.drafter_choice.find_spec", lambda name: None)
    in_torch = memory_budget(config, model)
    assert in_torch.copies == alone.copies and in_torch.drafter > need.drafter


def test_what_is_quantised_is_restored_for_a_network(model, eagle3):
    config = PlannerConfig(engine="onnx", precision="int8", drafter=str(eagle3))
    need = memory_budget(config, model)
    assert (need.borrowed, need.restored) == (0, 4 * HEAD)
    assert memory_budget(replace(config, drafter="lookup"), model).restored == 0
