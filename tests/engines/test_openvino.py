"""The exported decoder on OpenVINO: right, the same to the last bit at one width, and no more than asked for."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("openvino")

from drafters.draft_model import ModelDrafter
from spec_planner.certify.certificate import Settings, Subject, certify
from spec_planner.certify.recording import Question
from spec_planner.config import PlannerConfig
from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.exact_rules import RULES
from spec_planner.engines import openvino_session, openvino_target
from spec_planner.engines.decoder_config import ModelError
from spec_planner.engines.torch_target import TorchTarget
from spec_planner.factory import build_pipeline
from tests.models import load_onnx, load_openvino, make_tiny_model

from .test_decoder import CASES
from .test_onnx import IDS, scores, store_quantised

PRECISIONS = ["float32", "bfloat16", "int8"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


# --- right ---


@pytest.mark.parametrize(
    ("family", "config"), CASES[:5], ids=lambda value: json.dumps(value) if isinstance(value, dict) else value
)
def test_logits_and_hidden_states_are_torchs(family, config, tmp_path):
    directory = make_tiny_model(tmp_path / "model", family, **config)
    expected = scores(TorchTarget.load(directory, context_length=128, device="cpu"))
    for got, want in zip(scores(load_openvino(directory, context_length=128)), expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("config", [{}, {"attention_bias": True, "mlp_bias": True, "tied": False}], ids=["", "biases"])
def test_int8_is_the_decoder_on_the_weights_it_stores(config, tmp_path, monkeypatch):
    """With activations left in float32 it must agree with torch on the restored weights, to rounding."""
    monkeypatch.setattr(openvino_session, "_ACTIVATION_GROUP", 0)
    directory = make_tiny_model(tmp_path / "model", "llama", **config)
    got = scores(load_openvino(directory, context_length=128, precision="int8"))
    restored = make_tiny_model(tmp_path / "restored", "llama", **config)
    store_quantised(restored, 8)
    for ours, want in zip(got, scores(TorchTarget.load(restored, context_length=128, device="cpu")), strict=True):
        np.testing.assert_allclose(ours, want, atol=5e-4, rtol=5e-4)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_rounding_moves_logits_by_little(precision, model):
    expected, _ = scores(TorchTarget.load(model, context_length=128, device="cpu"))
    got, _ = scores(load_openvino(model, context_length=128, precision=precision))
    assert 0 < np.abs(got - expected).mean() < 0.15 * np.abs(expected).mean()  # weights of a wide random law


def test_first_layers_are_torchs_first_layers(model):
    expected = scores(TorchTarget.load(model, context_length=128, device="cpu").first_layers(1, 128))
    target = load_openvino(model, context_length=128).first_layers(1, 128)
    assert (target.info.num_layers, target.info.engine) == (1, "openvino")
    for got, want in zip(scores(target), expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4)


# --- the same to the last bit ---


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_certify_passes_to_the_bit_at_one_width(precision, threads, model):
    target = load_openvino(model, context_length=256, precision=precision, pass_width=8, threads=threads)
    matching = RULES["drafter-invariant"]
    subject = Subject("draft model", ModelDrafter(target.first_layers(1, 256)), matching, 7)
    settings = Settings(tokens=200, tokens_per_run=40, bitwise=True)
    questions = [Question(tuple(range(1, 40))), Question((4, 4, 2, 4, 4, 2, 4))]
    certificate = certify(target, [subject], questions, frozenset(), settings)
    assert certificate.passed, certificate.problems
    assert all(cell.rows_equal_in_bits == cell.tokens > 0 for cell in certificate.cells)
    assert any(cell.acceptance_length > 1 for cell in certificate.cells)


def test_the_planner_gives_plain_and_speculative_passes_one_width(model, monkeypatch):
    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(model.parent / "cache"))
    config = PlannerConfig(
        model=str(model), engine="openvino", precision="bfloat16", num_draft_tokens=5, context_length=1024
    )
    pipeline = build_pipeline(config)
    try:
        assert (pipeline.info.engine, pipeline.info.precision) == ("openvino", "bfloat16")
        widths, run = [], pipeline.target._session.run
        monkeypatch.setattr(
            pipeline.target._session, "run", lambda rows, *rest: widths.append(len(rows.ids)) or run(rows, *rest)
        )
        pipeline.target.truncate(0)
        pipeline.target.verify(DraftTree.root(3))
        pipeline.target.verify(DraftTree.chain((3, 4, 5)))
        assert widths == [6, 6] and pipeline.info.max_nodes == 6
    finally:
        pipeline.close()


# --- the cache ---


def test_a_verify_writes_nothing_and_a_commit_its_branch_only(model):
    target = load_openvino(model, context_length=128, pass_width=8)
    target.extend(PromptInput(IDS[:5]))
    cache = target._session.cache

    def used():
        return np.flatnonzero(np.abs(cache.view()).max(axis=(0, 1, 3))).tolist()

    before = cache.view().copy()
    assert used() == [0, 1, 2, 3, 4]
    target.verify(DraftTree(np.array([7, 8, 9, 10]), np.array([-1, 0, 0, 2])))
    np.testing.assert_array_equal(cache.view(), before)
    target.commit((0, 2, 3))
    assert used() == list(range(8))
    branch = cache.view()[:, :, :8].copy()
    target.truncate(5)
    target.verify(DraftTree.chain((7, 9, 10)))
    target.commit((0, 1, 2))
    np.testing.assert_allclose(cache.view()[:, :, :8], branch, atol=1e-5)


def test_what_is_committed_survives_a_longer_extent_and_back(model):
    """The prompt's last chunk needs a second block of 512 slots; after it is forgotten one is enough again."""
    target, rows = load_openvino(model, context_length=640, pass_width=8), []
    prompt = tuple(np.random.default_rng(0).integers(0, 320, 500).tolist())
    for _ in range(2):
        target.truncate(min(target.committed_length, 440))
        if not target.committed_length:
            target.extend(PromptInput(prompt[:440]))
        rows.append(target.verify(DraftTree.chain((1, 2))).logits_row(1))
        target.extend(PromptInput(prompt[440:]))
        assert target._session.cache.extent == 512
        target.extend(PromptInput((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)))
        assert target._session.cache.extent == 704
    np.testing.assert_array_equal(rows[0], rows[1])


# --- loaded ---


@pytest.mark.parametrize(("precision", "hint"), [("float32", "f32"), ("bfloat16", "bf16"), ("int8", "f32")])
def test_openvino_is_told_what_it_would_otherwise_choose(precision, hint, model):
    compiled = load_openvino(model, context_length=128, precision=precision, threads=1)._session._compiled
    assert compiled.get_property("INFERENCE_PRECISION_HINT").to_string() == hint
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 1
    assert compiled.get_property("ENABLE_CPU_PINNING") is False


def test_it_runs_the_export_of_onnx_runtime(tmp_path):
    directory, said = make_tiny_model(tmp_path / "model"), []
    load_onnx(directory, context_length=128, report=said.append)
    assert len(said) == 2
    for precision in ("float32", "bfloat16"):
        load_openvino(directory, context_length=128, precision=precision, report=said.append)
    assert len(said) == 2


def test_what_cannot_be_run_is_refused(tmp_path, monkeypatch):
    directory = make_tiny_model(tmp_path / "model")
    load_openvino(directory, context_length=128).close()
    [path] = (tmp_path / "cache").glob("onnx/*/decoder-2.onnx")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match="OpenVINO cannot load .* delete .*, and it will be exported again") as error:
        load_openvino(directory, context_length=128)
    assert "\n" not in str(error.value)
    monkeypatch.setattr(openvino_target.openvino, "__version__", "2025.3.0-1-abc")
    with pytest.raises(ModelError, match="needs openvino 2026.4 or newer and found 2025.3.0"):
        load_openvino(directory, context_length=128)
