"""The graphs written for TensorRT, run by ONNX Runtime, against Hugging Face: all families, both dialects, quantised.

Quantised graphs are compared with the model whose weights are what the codes stand for, so that a wrong scale, axis or
packing shows, and what rounding costs does not.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("onnxruntime")
import onnx
import torch
from onnx.reference import ReferenceEvaluator

from engine_trt.bindings import NATIVE, SCATTER
from engine_trt.export import export_target
from engine_trt.precisions import PRECISIONS
from engine_trt.weights import BLOCKS, quantise
from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.engines.decoder_config import ModelError
from tests.models import make_tiny_model

from .support import make_target

FAMILIES = {
    "llama": {"tied": True},
    "qwen2": {"tied": False},
    "qwen3": {"tied": True, "head_dim": 32},
}
IDS = np.random.default_rng(1).integers(0, 320, 90).tolist()


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    """Wide enough for blocks of 64."""
    directory = tmp_path_factory.mktemp("graphs") / request.param
    return make_tiny_model(directory, request.param, intermediate_size=128, **FAMILIES[request.param])


def expected(model, precision: str):
    """Logits after tokens 79 … 89 and the hidden states of the first 80, the model's matrices rounded as exported."""
    import transformers

    reference = transformers.AutoModelForCausalLM.from_pretrained(model).float().eval()
    kept = PRECISIONS[precision]
    head = reference.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())  # no longer the rows that are looked up
    with torch.no_grad():
        if kept.head:
            head.weight.copy_(torch.from_numpy(restored(head.weight.numpy(), kept.head)))
        for layer in reference.model.layers if kept.layers else ():
            attention, mlp = layer.self_attn, layer.mlp
            for parts in (
                (attention.q_proj, attention.k_proj, attention.v_proj), (attention.o_proj,),
                (mlp.gate_proj, mlp.up_proj), (mlp.down_proj,),
            ):  # fmt: skip
                joined = restored(torch.cat([part.weight for part in parts]).numpy(), kept.layers)
                for part, rows in zip(
                    parts, torch.from_numpy(joined).split([len(p.weight) for p in parts]), strict=True
                ):
                    part.weight.copy_(rows)
        output = reference(torch.tensor(IDS)[None], output_hidden_states=True)
    states = torch.stack([state[0, :80] for state in output.hidden_states], dim=1)
    return output.logits[0, 79:].numpy(), states.numpy()


def restored(weight: np.ndarray, kind: str) -> np.ndarray:
    """What the codes of ``weight`` stand for, worked out number by number."""
    codes, scales, scale = quantise(weight, kind, np.float16)
    scales = scales.astype(np.float32) * (1 if scale is None else scale.astype(np.float32))
    width = weight.shape[1] // (scales.shape[1] if scales.ndim == 2 else 1)
    return codes.astype(np.float32) * np.repeat(scales.reshape(len(weight), -1), width, axis=1)


@pytest.mark.parametrize("dialect", [NATIVE, SCATTER])
@pytest.mark.parametrize(
    ("precision", "tolerance"),  # as a share of the largest number
    [("float32", 1e-5), ("float16", 0.01), ("int8", 0.01), ("int4", 0.01), ("fp8", 0.01)],
)
def test_logits_and_hidden_states_are_those_of_hugging_face(model, tmp_path, precision, tolerance, dialect):
    logits, states = expected(model, precision)
    target = make_target(model, tmp_path / "graphs", precision, dialect)
    target.tap(range(target.info.num_layers + 1))
    output = target.extend(PromptInput(tuple(IDS[:80])))
    hidden = np.asarray(output.features(range(80)))
    verified = target.verify(DraftTree.chain(IDS[80:]))
    rows = np.stack([output.logits_row(0), *(verified.logits_row(node) for node in range(10))])
    assert np.abs(rows - logits).max() < tolerance * np.abs(logits).max()
    assert np.abs(hidden - states).max() < tolerance * np.abs(states).max()


@pytest.mark.parametrize(
    ("precision", "dialect", "tolerance"),
    [("bfloat16", NATIVE, 0.1), ("bfloat16", SCATTER, 0.1), ("nvfp4", NATIVE, 0.01)],
)
def test_types_that_onnx_runtime_lacks(model, tmp_path, precision, dialect, tolerance):
    """By ONNX's own reference, in one pass over the empty cache."""
    logits, _ = expected(model, precision)
    manifest = export_target(model, tmp_path / "out", precision=precision, context_length=128, dialect=dialect)
    graph, network = ReferenceEvaluator(onnx.load(tmp_path / "out" / "decoder.onnx")), manifest.networks["decoder"]
    places = np.arange(90)
    inputs = {"ids": np.array(IDS), "positions": places, "slots": places, "start": np.array([0]), "rows": places[79:]}
    inputs["mask"] = np.tril(np.ones((90, 128), dtype=bool))
    inputs |= {tensor.name: np.zeros(tensor.shape, _dtype(tensor.dtype)) for tensor in network.cache}
    names = {tensor.name for tensor in network.inputs}
    (rows,) = graph.run(["logits"], {name: array for name, array in inputs.items() if name in names})
    assert np.abs(rows - logits).max() < tolerance * np.abs(logits).max()


def _dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8", "nvfp4"])
def test_codes_are_the_nearest(kind):
    weight = np.random.default_rng(2).standard_normal((6, 128)).astype(np.float32)
    weight[2] = 0  # no scale to divide by
    weight[3] *= 1e-5  # a scale that half precision barely has
    codes, scales, scale = quantise(weight, kind, np.float16)
    assert codes.shape == weight.shape
    assert scales.shape == ((6,) if kind in ("int8", "fp8") else (6, 128 // BLOCKS[codes.dtype.name]))
    assert (scale is not None) == (kind == "nvfp4")
    error = np.abs(restored(weight, kind) - weight)
    assert not error[2].any()
    largest = np.abs(weight).max(axis=1)
    share = {"int8": 0.5 / 127, "int4": 0.5 / 7, "fp8": 1 / 16, "nvfp4": 1 / 4}[kind]  # half the widest step
    ordinary = [0, 1, 4, 5]
    assert (error[ordinary].max(axis=1) <= 1.1 * share * largest[ordinary]).all()


def test_the_older_dialect_keeps_to_older_operators(tmp_path):
    model = make_tiny_model(tmp_path / "tiny", "qwen3", head_dim=32, intermediate_size=128)
    for precision, opset in (("float16", 20), ("int4", 21)):
        make_target(model, tmp_path / precision, precision, SCATTER)
        graph = onnx.load(tmp_path / precision / "decoder.onnx", load_external_data=False)
        assert [entry.version for entry in graph.opset_import] == [opset]
        newer = {"RMSNormalization", "RotaryEmbedding", "TensorScatter", "Attention"}
        assert not newer & {node.op_type for node in graph.graph.node}
        scattered = [node for node in graph.graph.node if node.op_type == "ScatterND"]  # TensorRT 10.3: no reduction
        assert scattered and not any(
            attribute.name == "reduction" for node in scattered for attribute in node.attribute
        )
        onnx.checker.check_model(str(tmp_path / precision / "decoder.onnx"))


def test_blocks_that_do_not_divide_the_columns_are_refused(tmp_path):
    model = make_tiny_model(tmp_path / "tiny", intermediate_size=96)
    with pytest.raises(ModelError, match="0.down is 96 wide.*blocks of 64.*use precision int8"):
        make_target(model, tmp_path / "graphs", "int4", NATIVE)
    assert not (tmp_path / "graphs").exists()


def test_four_bit_codes_are_packed_low_half_first(tmp_path):
    model = make_tiny_model(tmp_path / "tiny", intermediate_size=128)
    target = make_target(model, tmp_path / "graphs", "int4", NATIVE)
    graph = onnx.load(tmp_path / "graphs" / "decoder.onnx")
    stored = next(tensor for tensor in graph.graph.initializer if tensor.name == "0.down.codes")
    assert stored.data_type == onnx.TensorProto.INT4
    codes = onnx.numpy_helper.to_array(stored).astype(np.int8)
    import transformers

    weight = transformers.AutoModelForCausalLM.from_pretrained(model).model.layers[0].mlp.down_proj.weight
    wanted, _, _ = quantise(weight.detach().float().numpy(), "int4", np.float16)
    assert wanted.dtype == ml_dtypes.int4 and np.array_equal(codes, wanted.astype(np.int8))
    assert target.info.precision == "int4"
