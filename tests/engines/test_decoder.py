"""The decoder against Hugging Face's own, on tiny checkpoints of every family and RoPE variant."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file, save_file

from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.engines.decoder_config import ModelError, read_decoder_config
from spec_planner.engines.torch_target import TorchTarget
from tests.models import make_tiny_model

ROPE = {
    "default": {},
    "linear": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
}
CASES = [
    ("llama", {}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tied": False}),
]
CASES += [
    ("llama", {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **extra}})
    for kind, extra in ROPE.items()
    if extra
]


@pytest.mark.parametrize(
    ("family", "config"), CASES, ids=lambda value: json.dumps(value) if isinstance(value, dict) else value
)
def test_logits_and_hidden_states_are_hugging_faces(family, config, tmp_path):
    import torch
    import transformers

    directory = make_tiny_model(tmp_path / "model", family, **config)
    ids = torch.randint(0, 320, (90,), generator=torch.Generator().manual_seed(1))
    reference = transformers.AutoModelForCausalLM.from_pretrained(directory, local_files_only=True)
    with torch.no_grad():
        expected = reference(ids[None], output_hidden_states=True)
    target = TorchTarget.load(directory, context_length=128, device="cpu")
    target.tap(range(target.info.num_layers + 1))
    output = target.extend(PromptInput(tuple(ids[:80].tolist())))
    features = output.features(range(80))
    for layer, state in enumerate(expected.hidden_states):
        torch.testing.assert_close(features[:, layer], state[0, :80], atol=1e-4, rtol=1e-4)
    output = target.verify(DraftTree.chain(ids[80:].tolist()))
    for node in range(10):
        torch.testing.assert_close(
            torch.from_numpy(output.logits_row(node)), expected.logits[0, 80 + node], atol=1e-4, rtol=1e-4
        )


@pytest.fixture
def model(tmp_path):
    return make_tiny_model(tmp_path / "model")


def edit_config(model, **changes):
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def load(model, **options):
    return TorchTarget.load(model, **{"context_length": 128, "device": "cpu", **options})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; use one of llama, qwen2, qwen3"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "RoPE type 'longrope'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"use_sliding_window": True, "sliding_window": 8}, "sliding-window"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
        ({"vocab_size": None}, "lacks or mistypes a field"),
        ({"hidden_size": 96}, "do not match its config.json"),
        ({"hidden_size": -8}, "hidden_size is -8, which no model has"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
    ],
)
def test_configs_we_cannot_run_are_refused(model, changes, message):
    edit_config(model, **changes)
    with pytest.raises(ModelError, match=message) as error:
        load(model)
    assert "\n" not in str(error.value)


def test_old_style_rope_fields_are_read(model):
    config = json.loads((model / "config.json").read_text())
    del config["rope_parameters"]
    (model / "config.json").write_text(
        json.dumps({**config, "rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2}})
    )
    read = read_decoder_config(model)
    assert (read.rope_theta, read.rope_type, read.rope_parameters["factor"]) == (5000.0, "linear", 2)


def test_damaged_directories_are_refused_with_what_to_do(model, tmp_path):
    with pytest.raises(ModelError, match="no config.json"):
        load(tmp_path)
    weights = model / "model.safetensors"
    tensors = load_file(weights)
    save_file({name: tensor for name, tensor in tensors.items() if "q_proj" not in name}, weights)
    with pytest.raises(ModelError, match=r"missing model.layers.0.self_attn.q_proj.weight \[64, 64\]"):
        load(model)
    save_file({**tensors, "extra.weight": tensors["model.norm.weight"].clone()}, weights)
    with pytest.raises(ModelError, match="unexpected extra.weight"):
        load(model)
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelError, match="copy the file again"):
        load(model)
    weights.rename(model / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickled weights"):
        load(model)
    (model / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        load(model)


def test_sharded_checkpoints_load_and_a_lost_shard_is_named(model):
    tensors = load_file(model / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, model / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    (model / "model.safetensors").unlink()
    load(model)
    (model / "b.safetensors").unlink()
    with pytest.raises(ModelError, match="lacks b.safetensors"):
        load(model)
    for broken in ("[]", '{"weight_map": {"a": 3}}', '{"weight_map": 3}'):
        (model / "model.safetensors.index.json").write_text(broken)
        with pytest.raises(ModelError, match="index"):
            load(model)


def test_weights_that_are_no_floats_are_refused(model):
    import torch

    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(ModelError, match="model.norm.weight .* is of type torch.int8"):
        load(model)


def test_a_context_beyond_the_model_is_refused(model):
    with pytest.raises(ModelError, match="exceeds the 4096 positions"):
        load(model, context_length=5000)


def test_first_layers_weigh_nothing_of_their_own(model):
    target = load(model)
    smaller = target.first_layers(1, 64)
    assert smaller.info.num_layers == 1 and smaller.info.weight_bytes == 0 < smaller.info.kv_bytes
    assert target.info.weight_bytes > 0
