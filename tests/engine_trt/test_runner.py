"""Drafters' engines at run time, with ONNX Runtime in TensorRT's place, against the same networks on the CPU."""

from __future__ import annotations

import json
import weakref

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
import torch

from drafters.registry import load_drafter
from engine_trt import bindings
from engine_trt.bindings import NATIVE, SCATTER
from engine_trt.checkpoint_lender import CheckpointLender
from engine_trt.export import export_drafter
from engine_trt.trt_runner import TrtRunner
from spec_planner.decoding.contracts import Incompatible
from spec_planner.engines.default_model import default_model_directory
from spec_planner.engines.identity import target_identity
from spec_planner.engines.onnx_runner import open_runner
from spec_planner.shipped_drafters import find_shipped

from .onnx_stand_in import stand_in
from .test_export import KINDS

CONTEXT = 256


@pytest.fixture(scope="module")
def target():
    directory = default_model_directory()
    if not directory.is_dir():
        pytest.skip("the default model is not converted yet: `make test` does so")
    return directory


def open_engines(target, checkpoint, directory, dialect) -> TrtRunner:
    manifest = export_drafter(
        target, checkpoint, directory, precision="float32", context_length=CONTEXT, dialect=dialect
    )
    for name in manifest.networks:
        (directory / f"{name}.plan").write_text(name)
    lender = CheckpointLender(target, CONTEXT)
    return TrtRunner(stand_in(directory, manifest), directory, manifest, lender.lend, torch.device("cpu"))


def on_the_cpu(target, checkpoint, monkeypatch, directory):
    """The same networks as ONNX Runtime has them."""
    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(directory))
    found = []

    def compiler(graphs):
        found.append(open_runner(graphs.key(), graphs.write, graphs.lent, 1))
        return found[-1]

    load_drafter(checkpoint, CheckpointLender(target, CONTEXT), 1, compiler)
    return found[0]


def numbers(network, rows: int, start: int, random) -> dict[str, np.ndarray]:
    """Inputs of a pass of ``rows`` rows that follow ``start`` others and each other."""
    sizes = {"n": rows, "r": 2, "S": 64}
    seen = np.tril(np.ones((rows, 64), dtype=bool), k=start)
    special = {
        "positions": np.arange(start, start + rows),
        "start": np.array([start]),
        "slots": None,
        "rows": np.array([0, 1]),
        "asked": np.array([rows - 1]),
    }
    inputs = {}
    for tensor in network.inputs:
        shape = tensor.at(sizes)
        if tensor.name.startswith("mask"):
            inputs[tensor.name] = seen[-shape[0] :]
        elif tensor.name in special:
            inputs[tensor.name] = special[tensor.name]
        elif not tensor.name.startswith("past.") and tensor.name != "head":
            inputs[tensor.name] = random.standard_normal(shape).astype(np.float32)
    if "slots" in inputs:  # drafters say where rows begin, whichever dialect stores them
        del inputs["slots"]
        inputs["start"] = special["start"]
    return inputs


@pytest.mark.parametrize("dialect", [NATIVE, SCATTER])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_give_what_they_give_on_the_cpu(target, tmp_path, monkeypatch, kind, dialect):
    checkpoint = find_shipped(kind, target_identity(target))
    ours = open_engines(target, checkpoint, tmp_path / "graphs", dialect)
    theirs = on_the_cpu(target, checkpoint, monkeypatch, tmp_path / "cache")
    networks, random = bindings.read_manifest(tmp_path / "graphs").networks, np.random.default_rng(5)
    layers: dict[str, tuple[int, ...]] = {}
    for network in networks.values():
        layers |= {tensor.name.split(".")[1]: tensor.shape for tensor in network.cache}
    caches: list = [None, None]
    if layers:
        _, heads, _, size = next(iter(layers.values()))
        caches = [runner.new_cache(tuple(layers), heads, size) for runner in (ours, theirs)]
        assert [cache.make_room(6) for cache in caches] == [64, 64]
    start, compared = 0, 0
    for _ in range(2):  # what is stored by a step is what the next one sees
        for step in sorted(networks, key=lambda name: name not in ("fuse", "follow")):
            network = networks[step]
            inputs = numbers(network, 6, start, random)
            wanted = [t.name for t in network.outputs if not t.name.startswith(("present.", "new."))]
            results = [
                runner.run(step, inputs, wanted, cache if any("start" in name for name in inputs) else None)
                for runner, cache in zip((ours, theirs), caches, strict=True)
            ]
            for one, other in zip(*results, strict=True):
                assert one.shape == other.shape
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
                compared += 1
            if step == "follow" or (step in ("rows", "block") and "follow" not in networks):
                start += 6
    assert compared


def test_many_rows_are_read_in_parts(target, tmp_path, monkeypatch):
    checkpoint = find_shipped("eagle3", target_identity(target))
    whole = open_engines(target, checkpoint, tmp_path / "whole", NATIVE)
    monkeypatch.setattr(bindings, "PREFILL_ROWS", 4)
    parted = open_engines(target, checkpoint, tmp_path / "parted", NATIVE)
    network = bindings.read_manifest(tmp_path / "whole").networks["rows"]
    inputs = {**numbers(network, 10, 0, np.random.default_rng(6)), "rows": np.array([3, 9])}
    results = []
    for runner in (whole, parted):
        cache = runner.new_cache(("0",), *(network.cache[0].shape[i] for i in (1, 3)))
        results.append(runner.run("rows", inputs, ["logits", "hidden.out"], cache))
        assert not runner.run("rows", {**inputs, "rows": np.zeros(0, np.int64)}, ["logits"], cache)[0].size
    for one, other in zip(*results, strict=True):
        assert len(one) == len(other) and len(one) in (2, 10)
        np.testing.assert_allclose(one, other, atol=1e-4)
    with pytest.raises(Incompatible, match="cannot be"):
        parted.run("rows", {**inputs, "rows": np.array([9, 3])}, ["logits"], cache)
    cache.advance(CONTEXT)
    with pytest.raises(Incompatible, match="longer --context-length"):
        cache.make_room(200)


def test_a_cache_that_is_dropped_takes_its_buffers_along(target, tmp_path):
    runner = open_engines(target, find_shipped("eagle3", target_identity(target)), tmp_path / "graphs", NATIVE)
    network = bindings.read_manifest(tmp_path / "graphs").networks["rows"]
    cache = runner.new_cache(("0",), *(network.cache[0].shape[i] for i in (1, 3)))
    runner.run("rows", numbers(network, 3, 0, np.random.default_rng(8)), ["logits"], cache)
    rows, buffers = weakref.ref(cache.rows), weakref.ref(cache.bound["rows"][0])
    del cache
    assert rows() is None and buffers() is None


def test_a_borrowed_head_is_bound_where_the_target_has_it(target, tmp_path):
    """Medusa heads whose checkpoint names no small head of their own."""
    source, bare = find_shipped("medusa", target_identity(target)), tmp_path / "medusa"
    bare.mkdir()
    config = json.loads((source / "config.json").read_text())
    del config["draft_tokens"]
    (bare / "config.json").write_text(json.dumps(config))
    for path in source.glob("*.safetensors"):
        (bare / path.name).symlink_to(path)
    graphs = tmp_path / "graphs"
    manifest = export_drafter(target, bare, graphs, precision="float32", context_length=CONTEXT)
    assert manifest.lent == ("head",)
    (graphs / "heads.plan").write_text("heads")
    head = CheckpointLender(target, CONTEXT).lend("head")
    runner = TrtRunner(stand_in(graphs, manifest), graphs, manifest, {"head": head}.__getitem__, torch.device("cpu"))
    hidden = np.random.default_rng(7).standard_normal((1, head.shape[1])).astype(np.float32)
    (logits,) = runner.run("heads", {"hidden": hidden, "rows": np.array([1])}, ["logits"])
    ((buffers, _),) = runner._bound.values()  # of the step that has no cache
    assert buffers.addresses()["head"] == head.data_ptr() and logits.shape == (1, len(head))
    assert manifest.weight_bytes < head.nbytes
