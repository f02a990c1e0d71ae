"""What is said of weights and cache before loading, against what real targets say of themselves."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file

from spec_planner.config import PRECISIONS_OF, PlannerConfig
from spec_planner.engines.decoder_config import ModelError, read_decoder_config
from spec_planner.memory.engine_needs import engine_needs
from spec_planner.memory.sizes import read_weights
from tests.models import load_onnx, load_openvino, make_tiny_model


def load(directory, config: PlannerConfig):
    options = {
        "context_length": config.context_length,
        "precision": config.precision,
        "pass_width": config.pass_width,
    }
    if config.engine == "torch":
        from spec_planner.engines.torch_target import TorchTarget

        return TorchTarget.load(directory, device="cpu", **options)
    return (load_onnx if config.engine == "onnx" else load_openvino)(directory, **options)


@pytest.fixture(scope="module", params=["llama-tied", "qwen3", "qwen2-biased"])
def model(request, tmp_path_factory):
    family = request.param.split("-")[0]
    return make_tiny_model(tmp_path_factory.mktemp(request.param) / "tiny", family, tied=request.param == "llama-tied")


@pytest.mark.parametrize(
    ("engine", "precision"), [(e, p) for e in ("torch", "onnx", "openvino") for p in PRECISIONS_OF[e]]
)
def test_weights_and_cache_are_what_the_target_says(model, engine, precision):
    config = PlannerConfig(engine=engine, precision=precision, context_length=200, num_draft_tokens=9)
    for setting in (config, replace(config, exactness="bitwise")):
        needs, target = engine_needs(setting, model), load(model, setting)
        assert (needs.stored, needs.kv) == (target.info.weight_bytes, target.info.kv_bytes)
        target.close()


@pytest.mark.parametrize(("engine", "precision"), [("torch", "bfloat16"), ("onnx", "int4"), ("openvino", "float32")])
def test_of_the_first_layers_too(model, engine, precision):
    config = PlannerConfig(engine=engine, precision=precision, context_length=256)
    target = load(model, config)
    smaller = target.first_layers(1, 256)
    assert engine_needs(config, model, 1).kv == smaller.info.kv_bytes == target.info.kv_bytes // 2
    smaller.close()
    target.close()


def test_what_is_packed_is_not_counted_twice(model):
    """Embedding and vectors are read where they lie, matrices in their copies; of a tied head that is one more."""
    config = read_decoder_config(model)
    onnx = engine_needs(PlannerConfig(engine="onnx"), model)
    head = 4 * config.vocabulary_size * config.hidden_size
    assert onnx.weights + onnx.copies == onnx.stored + (head if config.tied_head else 0)
    int8 = engine_needs(PlannerConfig(engine="onnx", precision="int8"), model)
    assert int8.copies == pytest.approx(onnx.copies * 40 / 128, rel=0.02)  # of 32 weights: codes, scale, sum
    torch = engine_needs(PlannerConfig(engine="torch"), model)
    assert (torch.weights, torch.copies) == (torch.stored, 0)


def test_openvino_holds_eight_bits_twice_and_bfloat16_once(model):
    plain, half, eight = (
        engine_needs(PlannerConfig(engine="openvino", precision=p), model) for p in PRECISIONS_OF["openvino"]
    )
    assert plain.copies == 2 * half.copies
    assert eight.copies == pytest.approx(2 * plain.copies * 36 / 128)  # codes and scale
    assert plain.workspace - half.workspace == plain.kv // 2  # of the cache's copy


def test_a_prompts_pass_is_a_chunk_whatever_the_context(model):
    short, long = (engine_needs(PlannerConfig(context_length=length), model) for length in (512, 4096))
    assert 7 < long.kv / short.kv < 8
    assert 1 < long.activations / short.activations < 8  # a pass over all of it would take 64 times as much


def test_on_a_gpu_the_results_of_recorded_passes_are_kept(model, monkeypatch):
    config = PlannerConfig(engine="torch", context_length=1000, num_draft_tokens=9)
    on_cpu = engine_needs(config, model)
    monkeypatch.setattr("spec_planner.memory.engine_needs.torch_sees_a_gpu", lambda: True)
    rows = 16 + 1  # a draft of 9 beside its anchor, padded, and a chunk's one row
    logits = 3 * rows * read_decoder_config(model).vocabulary_size * 4  # of extents 512, 1024 and what is left
    assert engine_needs(config, model) == replace(on_cpu, workspace=on_cpu.workspace + logits)
    assert engine_needs(replace(config, device="cpu"), model) == on_cpu


def test_a_head_stored_a_second_time_counts_once(tmp_path):
    model = make_tiny_model(tmp_path / "tiny")
    once = engine_needs(PlannerConfig(engine="torch"), model)
    tensors = load_file(model / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, model / "model.safetensors")
    assert engine_needs(PlannerConfig(engine="torch"), model) == once


def test_shards_are_found_by_their_index(tmp_path):
    model = make_tiny_model(tmp_path / "tiny")
    config = read_decoder_config(model)
    whole, tensors = read_weights(model, config), load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    parts = {"a.safetensors": dict(list(tensors.items())[::2]), "b.safetensors": dict(list(tensors.items())[1::2])}
    for name, part in parts.items():
        save_file(part, model / name)
    index = {name: file for file, part in parts.items() for name in part}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert read_weights(model, config).in_torch("float32") == whole.in_torch("float32")
    (model / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks b\.safetensors: give a complete"):
        read_weights(model, config)


def test_a_missing_embedding_is_named(tmp_path):
    model = make_tiny_model(tmp_path / "tiny")
    tensors = load_file(model / "model.safetensors")
    tensors.pop("model.embed_tokens.weight")
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(ModelError, match=r"lacks model\.embed_tokens\.weight: copy"):
        engine_needs(PlannerConfig(), model)
