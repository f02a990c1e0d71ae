"""The run time, with ONNX Runtime in TensorRT's place: conformance in both dialects, prompts in parts, lending.

On a machine with a GPU and TensorRT the same suites run on the real thing: ``test_on_gpu.py``.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
import torch

from engine_trt import bindings
from engine_trt.bindings import NATIVE, SCATTER
from engine_trt.inspect_engine import check_engine
from engine_trt.trt_session import TrtSession
from engine_trt.trt_target import TrtTarget
from spec_planner.decoding.contracts import Incompatible, PromptInput
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.engines.decoder_config import EngineUnavailable, ModelError
from spec_planner.engines.torch_target import TorchTarget
from tests.conformance.target_suite import BitwiseSuite, ModelTargetSuite
from tests.models import make_tiny_model

from .onnx_stand_in import Context, Engine, stand_in
from .support import CONTEXT, make_target, open_target, rerun
from .test_on_gpu import why_not_on_gpu

IDS = tuple(np.random.default_rng(3).integers(0, 320, CONTEXT).tolist())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("trt") / "tiny")


@pytest.mark.parametrize("dialect", [NATIVE, SCATTER], scope="class")
@pytest.mark.parametrize("family", ["llama", "qwen3"], scope="class")
class TestConformance(ModelTargetSuite):
    @pytest.fixture(scope="class")
    def target(self, family, dialect, tmp_path_factory):
        directory = tmp_path_factory.mktemp("trt")
        model = make_tiny_model(directory / family, family)
        return make_target(model, directory / "graphs", "float32", dialect)


@pytest.mark.parametrize("dialect", [NATIVE, SCATTER], scope="class")
class TestBitwise(BitwiseSuite):
    @pytest.fixture(scope="class")
    def target(self, model, dialect, tmp_path_factory):
        graphs = tmp_path_factory.mktemp("trt") / "graphs"
        return make_target(model, graphs, "float32", dialect, widths=(8,), context_length=640)


@pytest.mark.parametrize("dialect", [NATIVE, SCATTER])
def test_a_prompt_in_parts_is_the_prompt(model, tmp_path, monkeypatch, dialect):
    whole = make_target(model, tmp_path / "whole", "float32", dialect)
    monkeypatch.setattr(bindings, "PREFILL_ROWS", 70)  # decoding passes take up to 64 rows
    parted = make_target(model, tmp_path / "parted", "float32", dialect)
    results = []
    for target in (whole, parted):
        target.tap([1, 2])
        output = target.extend(PromptInput(IDS[:100]))
        after = target.verify(DraftTree.chain(IDS[100:104]))
        results.append((output.logits_row(0), np.asarray(output.features(range(100))), after.logits_row(3)))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("dialect", [NATIVE, SCATTER])
def test_target_and_drafters_share_one_buffer(model, tmp_path, dialect):
    lending = make_target(model, tmp_path / "lending", "float32", dialect, lend=("embedding", "head"))
    plain = make_target(model, tmp_path / "plain", "float32", dialect)
    assert lending._session._manifest.lent == ("embedding",)  # which is the tied head
    bound = lending._session._buffers.addresses()["embedding"]
    assert lending.lend("embedding").data_ptr() == bound
    assert plain.lend("embedding") is plain.lend("embedding")  # copied once
    for target in (lending, plain):
        target.extend(PromptInput(IDS[:20]))
    tree = DraftTree.chain(IDS[20:25])
    assert np.array_equal(lending.verify(tree).logits_row(4), plain.verify(tree).logits_row(4))


@pytest.mark.parametrize("lend", [(), ("embedding", "head")])
def test_a_tied_head_is_lent_as_the_embedding(model, tmp_path, lend):
    """One buffer in half precision too, where every call of the lender makes a copy."""
    target = make_target(model, tmp_path / "graphs", "float16", NATIVE, lend=lend)
    head = target.lend("head")
    assert head.dtype == torch.float16 and head.data_ptr() == target.lend("embedding").data_ptr()
    untied = make_tiny_model(tmp_path / "untied", tied=False)
    other = make_target(untied, tmp_path / "other", "float16", NATIVE, lend=lend)
    assert other.lend("head").data_ptr() != other.lend("embedding").data_ptr()
    assert other.info.weight_bytes >= 2 * 320 * 64 * 2  # what is lent counts as well


def test_half_precision_stays_close_to_the_reference(model, tmp_path):
    reference = TorchTarget.load(model, context_length=CONTEXT, device="cpu")
    half = make_target(model, tmp_path / "graphs", "float16", NATIVE)
    rows = []
    for target in (reference, half):
        target.extend(PromptInput(IDS[:60]))
        output = target.verify(DraftTree.chain(IDS[60:68]))
        rows.append(np.stack([output.logits_row(node) for node in range(8)]))
    assert np.abs(rows[0] - rows[1]).max() < 0.2  # of logits around 10
    assert half.info.kv_bytes * 2 == reference.info.kv_bytes


def test_only_tapped_states_are_put_out(model, tmp_path):
    target = make_target(model, tmp_path / "graphs", "float32", NATIVE, taps=[1])
    target.tap([1])
    assert np.asarray(target.extend(PromptInput(IDS[:9])).features(range(9))).shape == (9, 1, 64)
    with pytest.raises(Incompatible, match="hidden state 2.*--taps"):
        target.tap([1, 2])


def test_verify_passes_are_recorded_once_per_shape_and_prompts_never(model, tmp_path):
    target, recorded = make_target(model, tmp_path / "graphs", "float32", NATIVE), []

    def capture(compute):
        recorded.append(compute())
        return rerun(compute)

    target._session._capture = capture
    target.extend(PromptInput(IDS[:30]))
    target.extend(PromptInput(IDS[30:34]))  # as many rows as a verify pass, but one scored
    assert not recorded
    for tokens in (IDS[34:37], IDS[34:38], IDS[34:35], IDS[35:38]):
        target.verify(DraftTree.chain(tokens))
    assert [len(logits) for logits, *_ in recorded] == [4, 1]
    target.tap([1])
    assert not target._session._recorded  # contexts that put out other states are of no use now
    target.verify(DraftTree.chain(IDS[34:38]))
    target.tap([1])
    target.verify(DraftTree.chain(IDS[35:38]))
    assert len(recorded) == 3


def test_what_cannot_be_recorded_is_run_each_time(model, tmp_path, monkeypatch):
    recorded, plain = (make_target(model, tmp_path / name, "float32", NATIVE) for name in ("recorded", "plain"))
    for target in (recorded, plain):
        target.extend(PromptInput(IDS[:30]))
    monkeypatch.setattr(Context, "is_stream_capturable", lambda self, stream: False, raising=False)
    plain._session._capture = None
    for tokens in (IDS[30:34], IDS[31:35]):  # the second one replays
        with monkeypatch.context() as patch:
            patch.delattr(Context, "is_stream_capturable")
            expected = recorded.verify(DraftTree.chain(tokens)).logits_row(3)
        assert np.array_equal(plain.verify(DraftTree.chain(tokens)).logits_row(3), expected)


def test_first_layers_are_no_engine(model, tmp_path):
    with pytest.raises(Incompatible, match="cannot draft with the first layers.*draft_model"):
        make_target(model, tmp_path / "graphs", "float32", NATIVE).first_layers(1, 64)


def test_refusals(model, tmp_path):
    target = make_target(model, tmp_path / "graphs", "float32", NATIVE)
    manifest = target._session._manifest
    (tmp_path / "graphs" / "decoder.plan").write_bytes(b"")
    with pytest.raises(ModelError, match="cannot open .*decoder.plan.*build it again"):
        empty = stand_in(tmp_path / "graphs", manifest)
        TrtSession(empty, tmp_path / "graphs" / "decoder.plan", manifest, torch.empty, (8,), torch.device("cpu"), rerun)
    (tmp_path / "graphs" / "decoder.plan").unlink()
    with pytest.raises(ModelError, match="decoder.plan cannot be read .*No such file.*build it again"):
        TrtSession(empty, tmp_path / "graphs" / "decoder.plan", manifest, torch.empty, (8,), torch.device("cpu"), rerun)


def test_an_engine_that_is_not_what_its_manifest_says_is_refused(model, tmp_path, monkeypatch):
    manifest = make_target(model, tmp_path, "float32", NATIVE)._session._manifest
    network, trt = manifest.networks["decoder"], stand_in(tmp_path, manifest)
    engine = trt.api.Runtime(trt.make_log().listener).deserialize_cuda_engine(b"decoder")
    check_engine(trt, engine, network, tmp_path)

    def changed(**values):
        tensors = tuple(dataclasses.replace(t, **values) if t.name == "ids" else t for t in network.tensors)
        return dataclasses.replace(network, tensors=tensors)

    decode, prefill = network.profiles
    for other, words in (
        (dataclasses.replace(network, profiles=(decode,)), "2 profiles, expected 1"),
        (dataclasses.replace(network, profiles=(decode, {**prefill, "n": (1, 5, 90)})),
         r"ids goes from \(1,\) to \(128,\) in profile 1"),
        (changed(shape=(3,)), r"ids is int64 \(-1,\), expected int64 \(3,\)"),
        (changed(dtype="int32"), r"ids is int64 \(-1,\), expected int32 \(-1,\)"),
        (changed(name="tokens"), "unexpected ids; missing tokens"),
    ):  # fmt: skip
        with pytest.raises(ModelError, match=words):
            check_engine(trt, engine, other, tmp_path)
    monkeypatch.setattr(Engine, "get_aliased_input_tensor", lambda self, name: name.replace("present.1", "past.0"))
    with pytest.raises(ModelError, match="present.0.key does not lie where past.0.key does"):
        check_engine(trt, engine, network, tmp_path)


def test_a_target_that_cannot_run_here_says_why(model):
    if not why_not_on_gpu():
        pytest.skip("it can run here")
    with pytest.raises(EngineUnavailable, match="needs TensorRT|needs an NVIDIA GPU, and torch sees no GPU here"):
        TrtTarget.load(model, context_length=CONTEXT)


def test_open_target_reads_what_was_exported(model, tmp_path):
    target = make_target(model, tmp_path / "graphs", "float32", NATIVE)
    again = open_target(model, tmp_path / "graphs", bindings.read_manifest(tmp_path / "graphs"))
    assert again.info == target.info
