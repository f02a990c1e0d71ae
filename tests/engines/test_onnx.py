"""The exported decoder on ONNX Runtime: right against torch, right where quantised, exported once, nothing copied."""

from __future__ import annotations

import json
import os
import platform

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from drafters.draft_model import ModelDrafter
from spec_planner.certify.certificate import Settings, Subject, certify
from spec_planner.certify.recording import Question
from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.sampling import NumericError
from spec_planner.engines import onnx_graphs
from spec_planner.engines.decoder_config import ModelError, unloadable
from spec_planner.engines.host_cache import HostCache
from spec_planner.engines.host_output import HostOutput
from spec_planner.engines.onnx_target import OnnxTarget
from spec_planner.engines.torch_target import TorchTarget
from spec_planner.graphs import block_quant
from spec_planner.graphs.block_quant import dequantise, quantise
from tests.models import load_onnx, make_tiny_model

from .test_decoder import CASES

IDS = tuple(np.random.default_rng(1).integers(0, 320, 90).tolist())


def scores(target):
    """Logits of 10 verified rows after a prompt of 80 tokens, and the prompt's hidden states."""
    target.tap(range(target.info.num_layers + 1))
    target.truncate(0)
    hidden = np.asarray(target.extend(PromptInput(IDS[:80])).features(range(80)))
    output = target.verify(DraftTree.chain(IDS[80:]))
    return np.stack([output.logits_row(node) for node in range(10)]), hidden


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


# --- right ---


@pytest.mark.parametrize(
    ("family", "config"), CASES, ids=lambda value: json.dumps(value) if isinstance(value, dict) else value
)
def test_logits_and_hidden_states_are_torchs(family, config, tmp_path):
    directory = make_tiny_model(tmp_path / "model", family, **config)
    expected = scores(TorchTarget.load(directory, context_length=128, device="cpu"))
    for got, want in zip(scores(load_onnx(directory, context_length=128)), expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("config", [{}, {"attention_bias": True, "mlp_bias": True, "tied": False}], ids=["", "biases"])
def test_a_quantised_graph_is_the_decoder_on_the_weights_it_stores(precision, config, tmp_path):
    """With activations left in float32 it must agree with torch on the restored weights, to rounding."""
    directory = make_tiny_model(tmp_path / "model", "llama", **config)
    load_onnx(directory, context_length=128, precision=precision).close()
    [path] = (tmp_path / "cache").glob("onnx/*/decoder-2.onnx")
    graph = onnx.load(path, load_external_data=False)
    levels = [a for node in graph.graph.node for a in node.attribute if a.name == "accuracy_level"]
    assert len(levels) == 4 * 2 + 1 and all(level.i == 4 for level in levels)
    for level in levels:
        level.i = 1
    path.write_bytes(graph.SerializeToString())
    restored = make_tiny_model(tmp_path / "restored", "llama", **config)
    store_quantised(restored, 4 if precision == "int4" else 8)
    expected = scores(TorchTarget.load(restored, context_length=128, device="cpu"))
    for got, want in zip(scores(load_onnx(directory, context_length=128, precision=precision)), expected, strict=True):
        np.testing.assert_allclose(got, want, atol=5e-4, rtol=5e-4)


def store_quantised(directory, layer_bits):
    """Replace every matrix of the checkpoint by what its blocks stand for."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            bits = layer_bits if ".layers." in name else 8
            tensors[name] = dequantise(quantise(tensor, bits), tensor.shape[1])
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("bits", [8, 4])
def test_a_large_matrix_is_quantised_in_parts_with_the_same_codes(bits, monkeypatch):
    weight = np.random.default_rng(0).normal(size=(10, 70)).astype(np.float32)
    whole = quantise(weight, bits)
    monkeypatch.setattr(block_quant, "_ROWS_AT_ONCE", 4)
    for part, once in zip(vars(quantise(weight, bits)).values(), vars(whole).values(), strict=True):
        np.testing.assert_array_equal(part, once)


@pytest.mark.parametrize("columns", [64, 80])  # 80 leaves a last block half filled
@pytest.mark.parametrize("bits", [8, 4])
def test_blocks_mean_to_onnx_runtime_what_they_mean_here(bits, columns):
    random = np.random.default_rng(0)
    weight = random.standard_normal((48, columns)).astype(np.float32)
    weight[3] = 0
    blocks = quantise(weight, bits)
    restored = dequantise(blocks, columns)
    step = np.repeat(blocks.scales, 32, axis=1)[:, :columns]
    assert (np.abs(restored - weight) <= step * (0.5 if bits == 8 else 1) + 1e-6).all()
    arrays = {"codes": blocks.codes, "scales": blocks.scales}
    if blocks.zero_points is not None:
        arrays["zero_points"] = blocks.zero_points
    node = helper.make_node(
        "MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft", N=48, K=columns, bits=bits, block_size=32
    )
    graph = helper.make_graph(
        [node], "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 48])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    built = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    session = onnxruntime.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    x = random.standard_normal((5, columns)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ restored.T, atol=1e-4)


def test_the_graph_is_well_formed_and_needs_no_more_than_standard_operators_in_float32(model):
    load_onnx(model, context_length=128).close()
    [path] = (model.parent / "cache").glob("onnx/*-float32-*/decoder-2.onnx")
    onnx.checker.check_model(str(path), full_check=True)
    assert {node.domain for node in onnx.load(path, load_external_data=False).graph.node} == {""}


def test_first_layers_are_torchs_first_layers(model):
    expected = scores(TorchTarget.load(model, context_length=128, device="cpu").first_layers(1, 128))
    target = load_onnx(model, context_length=128).first_layers(1, 128)
    assert target.info.num_layers == 1
    for got, want in zip(scores(target), expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["embedding", "head", "final_norm"])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_what_is_lent_is_torchs_or_a_step_away(name, precision, model):
    expected = TorchTarget.load(model, context_length=128, device="cpu").lend(name).numpy()
    lent = load_onnx(model, context_length=128, precision=precision).lend(name)
    tolerance = 0 if precision == "float32" else np.abs(expected).max() / 127
    np.testing.assert_allclose(lent, expected, atol=tolerance, rtol=0)


def test_logits_that_are_not_finite_are_an_error():
    values = np.ones((2, 4), dtype=np.float32)
    assert HostOutput(values, []).argmax().tolist() == [0, 0]
    values[1, 2] = np.nan
    with pytest.raises(NumericError, match="not finite"):
        HostOutput(values, []).argmax()


# --- the same to the last bit ---


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_certify_passes_to_the_bit_at_one_width(precision, threads, model):
    target = load_onnx(model, context_length=256, precision=precision, pass_width=8, threads=threads)
    matching = RULES["drafter-invariant"]
    subject = Subject("draft model", ModelDrafter(target.first_layers(1, 256)), matching, 7)
    settings = Settings(tokens=400, tokens_per_run=40, bitwise=True)
    questions = [Question(tuple(range(1, 40))), Question((4, 4, 2, 4, 4, 2, 4))]
    certificate = certify(target, [subject], questions, frozenset(), settings)
    assert certificate.passed, certificate.problems
    assert all(cell.rows_equal_in_bits == cell.tokens > 0 for cell in certificate.cells)
    assert any(cell.acceptance_length > 1 for cell in certificate.cells)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="measured for ONNX Runtime's x86 kernels only")
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_trees_logits_agree_in_bits_too_within_a_block_of_slots(precision, model):
    """Plain decoding with passes of one row against trees in which wrong siblings push a token to a later slot."""
    target = load_onnx(model, context_length=256, precision=precision)
    plain = []
    for token in IDS:
        plain.append(target.verify(DraftTree.root(token)).logits_row(0))
        target.commit((0,))
    target.truncate(0)
    for first in range(0, 90, 3):
        a, b, c = IDS[first : first + 3]
        output = target.verify(DraftTree(np.array([a, 7, b, 8, 9, c]), np.array([-1, 0, 0, 2, 2, 2])))
        for node, row in zip((0, 2, 5), plain[first : first + 3], strict=True):
            np.testing.assert_array_equal(output.logits_row(node), row)
        target.commit((0, 2, 5))


# --- the cache ---


def test_a_key_stands_in_the_slot_of_its_position_and_nothing_else_is_written(model):
    target = load_onnx(model, context_length=128)
    target.extend(PromptInput(IDS[:5]))
    cache = target._session.cache
    assert (np.abs(cache.view()).max(axis=(0, 1, 3)) > 0).tolist() == [True] * 5 + [False] * (cache.extent - 5)
    before = cache.view()[:, :, :5].copy()
    target.verify(DraftTree.chain(IDS[5:8]))  # padded to 4 rows
    np.testing.assert_array_equal(cache.view()[:, :, :5], before)
    assert (np.abs(cache.view()).max(axis=(0, 1, 3)) > 0).sum() == 9


def test_the_cache_is_laid_out_anew_without_losing_a_slot(model):
    cache = HostCache(load_onnx(model, context_length=64)._graphs.config, 2, 1024)
    random = np.random.default_rng(0)
    wanted = random.standard_normal(cache.view(64).shape).astype(np.float32)
    cache.view()[:] = wanted
    for extent in (128, 1024, 192, 64, 128, 64):
        keep = min(extent, 50)
        cache.resize(extent, keep)
        assert cache.view().shape[2] == extent
        np.testing.assert_array_equal(cache.view()[:, :, :keep], wanted[:, :, :keep])


# --- exported once ---


def test_a_graph_is_exported_once_and_again_when_the_weights_change(tmp_path):
    directory, said = make_tiny_model(tmp_path / "model"), []
    load_onnx(directory, context_length=128, report=said.append)
    assert len(said) == 2 and "exporting model to ONNX in float32" in said[0]
    load_onnx(directory, context_length=256, report=said.append)
    assert len(said) == 2
    weights = directory / "model.safetensors"
    state, content = weights.stat(), bytearray(weights.read_bytes())
    content[-1] ^= 1  # one bit, and the file's old time
    weights.write_bytes(content)
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    load_onnx(directory, context_length=128, report=said.append)
    assert len(said) == 4
    load_onnx(directory, context_length=128, precision="int4", report=said.append)
    assert len(said) == 6 and "int4" in said[4]


def test_a_damaged_graph_says_what_to_do(tmp_path):
    directory = make_tiny_model(tmp_path / "model")
    load_onnx(directory, context_length=128).close()
    [path] = (tmp_path / "cache").glob("onnx/*/decoder-2.onnx")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match="delete .*, and it will be exported again") as error:
        load_onnx(directory, context_length=128)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [None, b"{", b"\xff\x00", b'{"embedding": {"ofset": 3, "shape": []}}'])
def test_a_damaged_table_of_weights_says_what_to_do(content, tmp_path):
    model = make_tiny_model(tmp_path / "tiny")
    table = load_onnx(model, context_length=64)._graphs.directory / "weights.json"
    table.write_bytes(content) if content is not None else table.unlink()
    with pytest.raises(ValueError, match=r"weights.json cannot be used .*: delete .*, and it will be exported again"):
        load_onnx(model, context_length=64)


def test_want_of_memory_is_not_called_damage(tmp_path):
    path = tmp_path / "graphs" / "decoder-2.onnx"
    said = str(unloadable("OpenVINO", path, RuntimeError("Exception from a plugin:\nFailed to allocate 7077888 bytes")))
    assert said.startswith("OpenVINO has no memory for") and "delete" not in said
    assert "delete" in str(unloadable("ONNX Runtime", path, RuntimeError("Protobuf parsing failed.")))


def test_a_graph_of_fewer_layers_that_cannot_be_written_says_where(tmp_path, monkeypatch):
    graphs = load_onnx(make_tiny_model(tmp_path / "tiny"), context_length=64)._graphs

    def refuse(*arguments):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(onnx_graphs, "_write_graph", refuse)
    with pytest.raises(ModelError, match="cannot write .*decoder-1.onnx .*Read-only.*set SPEC_PLANNER_CACHE"):
        graphs.graph(1)


def test_what_cannot_be_run_is_refused(tmp_path, monkeypatch):
    odd = make_tiny_model(tmp_path / "odd", hidden_size=80)
    with pytest.raises(ModelError, match="hidden size of 80, which blocks of 32 do not divide"):
        load_onnx(odd, context_length=128, precision="int8")
    assert [path.name for path in (tmp_path / "cache" / "onnx").iterdir()] == [".lock"]  # nothing half made
    with pytest.raises(ModelError, match="exceeds the 4096 positions"):
        load_onnx(make_tiny_model(tmp_path / "model"), context_length=5000)
    monkeypatch.setattr("onnxruntime.__version__", "1.23.2")
    with pytest.raises(ModelError, match="needs onnxruntime 1.31 or newer and found 1.23.2"):
        OnnxTarget.load(tmp_path / "model", context_length=128)
