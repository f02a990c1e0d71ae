"""What is said of a drafter's memory before it is loaded, against what it says itself."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafters.checkpoint import CheckpointError
from drafters.compiled.base import reach
from drafters.footprint import checkpoint_bytes, compiled_bytes, lent_names
from drafters.lookup import LookupDrafter
from drafters.registry import graft, load_drafter
from drafters.training.trainee import TRAINEES, make_trainee
from spec_planner.engines.onnx_runner import OnnxRunner
from spec_planner.engines.torch_target import TorchTarget
from spec_planner.train.learner import read_target_weights
from tests.drafters.test_checkpoint import make_eagle
from tests.models import make_tiny_model

ROWS = 150


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target") / "tiny", "qwen3", num_layers=12, tied=False)


@pytest.fixture(scope="module")
def target(model):
    target = TorchTarget.load(model, context_length=256, device="cpu")
    yield target
    target.close()


def follow(drafter, rows: int = ROWS) -> None:
    """Let ``drafter`` observe a context of ``rows`` tokens, a few at a time."""
    features = torch.zeros(rows, len(drafter.requirements.feature_layers), 64)
    for start in range(0, rows, 40):
        part = range(start, min(start + 40, rows))
        drafter.observe(list(part), features[part.start : part.stop])


@pytest.mark.parametrize("tokens", ["0", "50"])
@pytest.mark.parametrize("kind", TRAINEES)
def test_a_trained_drafter_takes_what_was_said(kind, tokens, model, target, tmp_path):
    weights = read_target_weights(model, torch.device("cpu"), torch.float32)
    make_trainee(kind, weights, {"draft_vocabulary": tokens}).save(tmp_path, {})
    drafter = load_drafter(tmp_path, target, 1)
    assert drafter.own_bytes == checkpoint_bytes(tmp_path, model, "float32", 0)
    assert drafter.own_bytes == 2 * checkpoint_bytes(tmp_path, model, "bfloat16", 0)
    before = drafter.own_bytes
    follow(drafter)
    most = checkpoint_bytes(tmp_path, model, "float32", ROWS)
    grown = drafter.own_bytes - before
    assert grown <= most - before <= 2.5 * grown


@pytest.mark.parametrize("tokens", ["0", "50"])
@pytest.mark.parametrize("kind", TRAINEES)
def test_a_graph_takes_what_was_said(kind, tokens, model, target, tmp_path):
    weights = read_target_weights(model, torch.device("cpu"), torch.float32)
    make_trainee(kind, weights, {"draft_vocabulary": tokens}).save(tmp_path, {})
    made = []

    def compiler(graphs):
        directory = tmp_path / f"graph{len(made)}"
        directory.mkdir()
        graphs.write(directory, 8)
        made.append(OnnxRunner(directory, graphs.lent, 1))
        return made[-1]

    positions = reach(target.info.context_length + target.info.max_nodes)
    drafter = load_drafter(tmp_path, target, 1, compiler)
    said = compiled_bytes(tmp_path, model, "float32", 0, positions)
    assert drafter.own_bytes == said.own
    assert said.copies > 0 and said.num_heads == (4 if kind in ("eagle1", "eagle3", "mtp", "draft-model") else 0)
    before = drafter.own_bytes
    follow(drafter)
    most = compiled_bytes(tmp_path, model, "float32", ROWS, positions).own
    assert before < drafter.own_bytes <= most


def test_what_has_no_graph_is_left_to_torch(model, target, tmp_path):
    weights = read_target_weights(model, torch.device("cpu"), torch.float32)
    make_trainee("mtp", weights, {}).save(tmp_path, {})
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    assert compiled_bytes(tmp_path, model, "float32", ROWS, 1024) is not None
    query = next(name for name in tensors if name.endswith("q_proj.weight"))
    save_file({**tensors, query: tensors[query].repeat(2, 1)}, file)  # a gate beside each query
    assert compiled_bytes(tmp_path, model, "float32", ROWS, 1024) is None


@pytest.mark.parametrize("layout", ["eagle1", "eagle3", "speculators", "speculators-3.1"])
def test_a_published_drafter_takes_what_was_said(layout, model, target, tmp_path):
    make_eagle(tmp_path, layout, vocabulary=320, hidden=64, target_layers=12, draft_vocabulary=100)
    assert load_drafter(tmp_path, target, 1).own_bytes == checkpoint_bytes(tmp_path, model, "float32", 0)


@pytest.mark.parametrize("kind", TRAINEES)
def test_what_a_drafter_asks_of_the_target_is_known(kind, model, target, tmp_path, monkeypatch):
    weights = read_target_weights(model, torch.device("cpu"), torch.float32)
    make_trainee(kind, weights, {}).save(tmp_path, {})
    asked, lend = set(), type(target).lend
    monkeypatch.setattr(type(target), "lend", lambda self, name: asked.add(name) or lend(self, name))
    load_drafter(tmp_path, target, 1)
    assert asked - {"final_norm"} <= set(lent_names(tmp_path)) <= {"embedding", "head"}
    assert asked


def test_a_copy_of_the_targets_embedding_is_not_counted(model, target, tmp_path):
    make_eagle(tmp_path, "speculators", vocabulary=320, hidden=64, target_layers=12, draft_vocabulary=100)
    own, file = checkpoint_bytes(tmp_path, model, "float32", 0), tmp_path / "model.safetensors"
    lent = torch.as_tensor(target.lend("embedding")).clone()
    assert "embed_tokens.weight" in load_file(file)
    save_file({**load_file(file), "embed_tokens.weight": lent}, file)
    assert load_drafter(tmp_path, target, 1).own_bytes == own - lent.nbytes
    assert checkpoint_bytes(tmp_path, model, "float32", 0) == own - lent.nbytes
    assert checkpoint_bytes(tmp_path, model, "int8", 0) == own  # rounded, the target's is no longer the same


def test_of_a_whole_target_only_the_drafter_counts(model, target, tmp_path):
    """Medusa heads inside a Medusa-2 model."""
    shutil.copytree(model, tmp_path, dirs_exist_ok=True)
    heads = {f"medusa_head.{k}.0.linear.weight": torch.ones(64, 64) for k in range(2)}
    heads |= {f"medusa_head.{k}.0.linear.bias": torch.ones(64) for k in range(2)}
    save_file({**load_file(tmp_path / "model.safetensors"), **heads}, tmp_path / "model.safetensors")
    own = sum(tensor.nbytes for tensor in heads.values())
    assert load_drafter(tmp_path, target, 1).own_bytes == own == checkpoint_bytes(tmp_path, model, "float32", 0)


def test_what_is_no_checkpoint_is_refused(model, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 64}))
    with pytest.raises(CheckpointError, match="holds no weights"):
        checkpoint_bytes(tmp_path, model, "float32", 0)


def test_lookups_index_is_counted_alone_and_beside_a_model(model, target, tmp_path):
    index = LookupDrafter()
    empty = index.own_bytes
    index.observe(range(3000), None)
    assert index.own_bytes == LookupDrafter.most_bytes(3000) > 100 * empty and LookupDrafter.most_bytes(0) == 0
    longer = LookupDrafter()
    longer.observe(range(20_000), None)
    assert longer.own_bytes == pytest.approx(LookupDrafter.most_bytes(20_000), rel=0.35)
    assert longer.own_bytes > sys.getsizeof(list(range(20_000)))
    weights = read_target_weights(model, torch.device("cpu"), torch.float32)
    make_trainee("medusa", weights, {}).save(tmp_path, {})
    alone, both = load_drafter(tmp_path, target, 1), graft(load_drafter(tmp_path, target, 1), 1)
    beside = LookupDrafter()
    for drafter in (alone, both, beside):
        follow(drafter)
    assert both.own_bytes == alone.own_bytes + beside.own_bytes and both.borrowed_bytes == alone.borrowed_bytes
