"""The run time, with ONNX Runtime in TensorRT's place: conformance in both dialects, prompts in parts, lending.

On a machine with a GPU and TensorRT the same suite runs on the real thing, at the end of this file.
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
from engine_trt.trt_module import load_tensorrt
from engine_trt.trt_session import TrtSession
from engine_trt.trt_target import TrtTarget
from spec_planner.decoding.contracts import Incompatible, PromptInput
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.engines.decoder_config import EngineUnavailable, ModelError
from spec_planner.engines.torch_target import TorchTarget
from tests.conformance.target_suite import BitwiseSuite, ModelTargetSuite
from tests.models import make_tiny_model

from .onnx_stand_in import stand_in
from .support import CONTEXT, make_target, open_target, rerun

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
    target.verify(DraftTree.chain(IDS[34:38]))
    assert len(recorded) == 3


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
    network = manifest.networks["decoder"]
    shorter = dataclasses.replace(network, profiles=network.profiles[:1])
    wider = dataclasses.replace(
        network, tensors=tuple(dataclasses.replace(tensor, shape=(3, *tensor.shape[1:])) for tensor in network.tensors)
    )
    trt = stand_in(tmp_path / "graphs", manifest)
    engine = trt.api.Runtime(trt.make_log().listener).deserialize_cuda_engine(b"decoder")
    check_engine(trt, engine, network, tmp_path)
    for other, words in ((shorter, "2 profiles, expected 1"), (wider, r"ids is int64 \(-1,\), expected int64 \(3,\)")):
        with pytest.raises(ModelError, match=words):
            check_engine(trt, engine, other, tmp_path)


def _on_gpu() -> str:
    """Why the real engine cannot run here; "" where it can."""
    try:
        load_tensorrt()
    except EngineUnavailable as error:
        return str(error)
    return "" if torch.cuda.is_available() else "torch sees no GPU"


@pytest.mark.skipif(bool(_on_gpu()), reason=_on_gpu())
@pytest.mark.parametrize("precision", ["float32", "float16"], scope="class")
class TestTensorRt(ModelTargetSuite):
    """On the GPU that is here, with the TensorRT that is here."""

    @pytest.fixture(scope="class")
    def target(self, precision, tmp_path_factory):
        directory = tmp_path_factory.mktemp("trt")
        model = make_tiny_model(directory / "tiny")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPEC_PLANNER_CACHE", str(directory / "cache"))
            return TrtTarget.load(model, context_length=CONTEXT, precision=precision)


def test_a_target_that_cannot_run_here_says_why(model):
    if not _on_gpu():
        pytest.skip("it can run here")
    with pytest.raises(EngineUnavailable, match="needs TensorRT|needs an NVIDIA GPU"):
        TrtTarget.load(model, context_length=CONTEXT)


def test_open_target_reads_what_was_exported(model, tmp_path):
    target = make_target(model, tmp_path / "graphs", "float32", NATIVE)
    again = open_target(model, tmp_path / "graphs", bindings.read_manifest(tmp_path / "graphs"))
    assert again.info == target.info
