"""``export``: the same bytes each time, whole or not at all, a manifest that is true, drafters of every kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("onnx")
import onnx

from engine_trt.bindings import LAYOUT, MANIFEST_FILE, NATIVE, SCATTER, read_manifest
from engine_trt.export import export_drafter, export_target
from spec_planner.engines.decoder_config import ModelError
from spec_planner.engines.default_model import default_model_directory
from spec_planner.engines.identity import target_identity
from spec_planner.shipped_drafters import find_shipped
from tests.models import make_tiny_model

KINDS = ("medusa", "eagle1", "eagle3", "mtp", "mtp-parallel", "dflash", "dflash2", "draft-model")
SETTINGS = {"precision": "float16", "context_length": 100}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("export") / "tiny")


def test_the_manifest_says_what_the_graph_has(model, tmp_path):
    manifest = export_target(model, tmp_path / "out", **SETTINGS)
    assert manifest == read_manifest(tmp_path / "out")
    network, graph = manifest.networks["decoder"], onnx.load(tmp_path / "out" / "decoder.onnx")
    assert [tensor.name for tensor in network.inputs] == [value.name for value in graph.graph.input]
    assert [tensor.name for tensor in network.outputs] == [value.name for value in graph.graph.output]
    shapes = {tensor.name: (tensor.dtype, tensor.shape) for tensor in network.tensors}
    assert shapes["mask"] == ("bool", ("n", "S")) and shapes["logits"] == ("float32", ("r", 320))
    assert shapes["past.1.value"] == shapes["present.1.value"] == ("float16", (1, 2, 192, 16))
    parts = ("0.key", "0.value", "1.key", "1.value")
    assert network.aliases == {f"present.{part}": f"past.{part}" for part in parts}
    assert manifest.kv_bytes == 4 * 2 * 192 * 16 * 2
    # n = 100 rows at most, r = 64, S = 192: ids, positions and rows, mask, logits, three hidden states
    assert network.io_bytes == 8 * (100 + 100 + 64) + 100 * 192 + 4 * 64 * 320 + 3 * 4 * 100 * 64
    assert (manifest.kind, manifest.target, manifest.capacity) == ("target", target_identity(model), 192)
    letters = {extent for tensor in network.tensors for extent in tensor.shape if isinstance(extent, str)}
    decode, prefill = network.profiles
    assert letters == set(decode) == set(prefill)
    assert decode["n"][2] == 64 and prefill["n"][2] == 100 and prefill["r"] == (1, 1, 1) and decode["S"][2] == 192


@pytest.mark.parametrize("dialect", [NATIVE, SCATTER])
def test_the_same_checkpoint_gives_the_same_bytes(model, tmp_path, dialect):
    one = export_target(model, tmp_path / "one", dialect=dialect, **SETTINGS)
    other = export_target(model, tmp_path / "other", dialect=dialect, **SETTINGS)
    assert one == other
    longer = export_target(model, tmp_path / "longer", precision="float16", context_length=200, dialect=dialect)
    assert longer.graph_hash != one.graph_hash


def test_an_earlier_export_is_replaced_and_nothing_else(model, tmp_path):
    first = export_target(model, tmp_path / "out", **SETTINGS)
    second = export_target(model, tmp_path / "out", precision="int8", context_length=100)
    assert read_manifest(tmp_path / "out") == second != first
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("do not lose me")
    with pytest.raises(ModelError, match="holds something else: give another --out"):
        export_target(model, mine, **SETTINGS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]


def test_a_failed_export_leaves_what_was_there(model, tmp_path, monkeypatch):
    before = export_target(model, tmp_path / "out", **SETTINGS)

    def full(*arguments, **options):
        raise OSError("no space left")

    monkeypatch.setattr("engine_trt.export.add_decoder", full)
    with pytest.raises(ModelError, match="no space left.*free space"):
        export_target(model, tmp_path / "out", precision="int8", context_length=100)
    assert read_manifest(tmp_path / "out") == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_interruption_between_old_and_new_leaves_the_old(model, tmp_path, monkeypatch):
    before = export_target(model, tmp_path / "out", **SETTINGS)
    rename = Path.rename

    def interrupted(path, target):
        if path.name == "new":
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", interrupted)
        export_target(model, tmp_path / "out", precision="int8", context_length=100)
    assert read_manifest(tmp_path / "out") == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_settings_that_cannot_be_are_refused(model, tmp_path):
    for settings, words in (
        ({"precision": "int3"}, "no precision 'int3'.*float16"),
        ({"dialect": "9.0"}, "no graphs for TensorRT '9.0': use 10.15 or 10.3"),
        ({"precision": "nvfp4", "dialect": SCATTER}, "nvfp4 needs graphs for TensorRT 10.15"),
        ({"context_length": 9999}, "context_length 9999 exceeds"),
        ({"taps": [0, 7]}, "hidden states 0 to 2, not 7"),
    ):
        with pytest.raises(ModelError, match=words):
            export_target(model, tmp_path / "out", **{**SETTINGS, **settings})
    assert not (tmp_path / "out").exists()


def test_a_manifest_that_cannot_be_used_is_refused(model, tmp_path):
    with pytest.raises(ModelError, match="manifest.json cannot be read.*spec-planner export"):
        read_manifest(tmp_path)
    export_target(model, tmp_path / "out", **SETTINGS)
    path = tmp_path / "out" / MANIFEST_FILE
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "layout": LAYOUT + 1}))
    with pytest.raises(ModelError, match=f"has layout {LAYOUT + 1} and this spec_planner reads {LAYOUT}"):
        read_manifest(tmp_path / "out")
    path.write_text(json.dumps({**content, "networks": {"decoder": {}}}))
    with pytest.raises(ModelError, match="cannot be read"):
        read_manifest(tmp_path / "out")


def test_what_is_lent_is_an_input_and_not_in_the_weights(model, tmp_path):
    manifest = export_target(model, tmp_path / "out", precision="int8", context_length=100, lend=("embedding", "head"))
    assert manifest.lent == ("embedding",) and manifest.tied_head
    assert manifest.lent_bytes == 320 * 64 * 2
    tensor = next(tensor for tensor in manifest.networks["decoder"].inputs if tensor.name == "embedding")
    assert (tensor.dtype, tensor.shape) == ("float16", (320, 64))
    graph = onnx.load(tmp_path / "out" / "decoder.onnx", load_external_data=False)
    assert not any(value.name.startswith(("embedding", "head")) for value in graph.graph.initializer)


@pytest.mark.parametrize("dialect", [NATIVE, SCATTER])
@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_of_every_kind(tmp_path, kind, dialect):
    """Those that come with the package, in the steps that its graphs have."""
    target = default_model_directory()
    if not target.is_dir():
        pytest.skip("the default model is not converted yet: `make test` does so")
    checkpoint = find_shipped(kind, target_identity(target))
    assert checkpoint is not None
    manifest = export_drafter(
        target, checkpoint, tmp_path / "out", precision="float16", context_length=512, dialect=dialect
    )
    assert manifest.kind == kind and manifest.target == target_identity(target)
    for name, network in manifest.networks.items():
        onnx.checker.check_model(str(tmp_path / "out" / f"{name}.onnx"))
        assert len(network.profiles) == 1
        assert bool(network.aliases) == (dialect == NATIVE and bool(network.cache))
        new = {tensor.name for tensor in network.outputs if tensor.name.startswith("new.")}
        past = {tensor.name for tensor in network.cache}
        assert {name.replace("new.", "past.") for name in new} >= past if dialect == SCATTER else not new
        if any(tensor.name == "mask" for tensor in network.inputs):  # its rows look at the cache
            assert past
