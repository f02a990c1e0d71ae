"""Drafter checkpoints: every published layout is told apart, read whole, or refused with what is wrong."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drafters.checkpoint import CheckpointError, detect, load_strict, read_config, read_tensors, tensor_names

EAGLE_LAYOUTS = ("eagle1", "eagle3", "modelopt", "speculators", "speculators-3.1")
# With ``hidden`` 32; the target of an EAGLE test is as wide.
EAGLE_SIZES = {"vocabulary": 48, "draft_vocabulary": 24, "hidden": 32, "target_layers": 8}


def seeded(seed: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The same numbers on every machine; norms lie around 1."""
    values = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)
    middle, spread = (1.0, 0.2) if len(shape) == 1 and "norm" in name else (0.0, 0.5 if len(shape) == 1 else 0.25)
    return torch.from_numpy((middle + spread * values).astype(np.float32))


def _layer(prefix: str, columns: int, hidden: int, head_dim: int) -> dict[str, tuple[int, ...]]:
    """Tensors of a decoder layer with 4 heads and 2 key-value heads."""
    return {
        f"{prefix}.self_attn.q_proj.weight": (4 * head_dim, columns),
        f"{prefix}.self_attn.k_proj.weight": (2 * head_dim, columns),
        f"{prefix}.self_attn.v_proj.weight": (2 * head_dim, columns),
        f"{prefix}.self_attn.o_proj.weight": (hidden, 4 * head_dim),
        f"{prefix}.mlp.gate_proj.weight": (40, hidden),
        f"{prefix}.mlp.up_proj.weight": (40, hidden),
        f"{prefix}.mlp.down_proj.weight": (hidden, 40),
        f"{prefix}.post_attention_layernorm.weight": (hidden,),
    }


def make_eagle(directory: Path, layout: str, seed: int = 1, *, vocabulary: int, draft_vocabulary: int, hidden: int,
               target_layers: int) -> Path:  # fmt: skip
    """Write a random EAGLE drafter as SafeAILab (``eagle1``, ``eagle3``), ModelOpt or speculators publishes them.

    ``speculators`` has Qwen3 layers, two of them, and the norms of gpt-oss; ``speculators-3.1`` those of EAGLE-3.1.
    """
    qwen, new = layout == "speculators", layout == "speculators-3.1"
    head_dim, layers = 12 if qwen else hidden // 4, 2 if qwen else 1
    decoder = {
        "model_type": "qwen3" if qwen else "llama",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 40,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
    }
    first = "midlayer" if layout == "eagle3" else "layers.0"
    inputs = (1 if layout == "eagle1" else 2) * hidden
    shapes = {
        "fc.weight": (hidden, (2 if layout == "eagle1" else 3) * hidden),
        **_layer(first, inputs, hidden, head_dim),
    }
    tensors: dict[str, torch.Tensor] = {}
    config: dict = {**decoder, "architectures": ["LlamaForCausalLM"]}
    if layout == "eagle1" or qwen or new:  # a copy of the target's
        tensors["embed_tokens.weight"] = seeded(seed, "embedding", (vocabulary, hidden))
    if layout == "eagle1":
        shapes["fc.bias"] = (hidden,)
    else:
        for name in (f"{first}.hidden_norm", f"{first}.input_layernorm", "norm"):
            shapes[f"{name}.weight"] = (hidden,)
        shapes["lm_head.weight"] = (draft_vocabulary, hidden)
        chosen = np.sort(np.random.default_rng(seed).choice(vocabulary, draft_vocabulary, replace=False))
        tensors["d2t"] = torch.from_numpy(chosen - np.arange(draft_vocabulary))
        tensors["t2d"] = torch.zeros(vocabulary, dtype=torch.bool)
        tensors["t2d"][chosen] = True
        config |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": draft_vocabulary}
    if layout == "modelopt":
        del tensors["t2d"]
        outputs = [1, target_layers // 2 - 1, target_layers - 4]
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": outputs, "use_aux_hidden_state": True}
        config["rope_scaling"] = {"rope_type": "linear", "factor": 2.0}
    if qwen or new:
        decoder |= {"head_dim": head_dim, "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}}
        config = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "transformer_layer_config": decoder,
            "draft_vocab_size": draft_vocabulary,
            "eagle_aux_hidden_state_layer_ids": [2, target_layers // 2, target_layers - 3],
            "norm_before_residual": qwen,
            "norm_before_fc": qwen,
            "fc_norm": new,
            "norm_output": new,
        }
        shapes |= {f"fc_norm.{i}.weight": (hidden,) for i in range(3)} if new else {"input_norm.weight": (3 * hidden,)}
    if qwen:
        shapes |= {**_layer("layers.1", hidden, hidden, head_dim), "layers.1.input_layernorm.weight": (hidden,)}
        shapes |= {f"layers.{i}.self_attn.{x}_norm.weight": (head_dim,) for i in range(2) for x in "qk"}
    tensors |= {name: seeded(seed, name, shape) for name, shape in shapes.items()}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    return directory


def write(directory: Path, config: dict | None, *names: str, file: str = "model.safetensors") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    tensors = {name: torch.ones(2) for name in names}
    save_file(tensors, directory / file) if file.endswith("safetensors") else torch.save(tensors, directory / file)
    return directory


@pytest.mark.parametrize("layout", EAGLE_LAYOUTS)
def test_eagle_layouts_are_told_apart(layout, tmp_path):
    assert detect(make_eagle(tmp_path, layout, **EAGLE_SIZES)) == ("eagle1" if layout == "eagle1" else "eagle3")


@pytest.mark.parametrize(
    ("kind", "config", "names"),
    [
        ("medusa", {"medusa_num_heads": 3}, ("0.0.linear.weight", "0.1.weight")),
        ("medusa", None, ("0.0.linear.weight", "0.0.linear.bias")),
        ("eagle1", {"architectures": ["LlamaForCausalLM"]}, ("fc.weight", "layers.0.mlp.up_proj.weight")),
        ("eagle1", {"speculators_model_type": "eagle"}, ("fusion_fc.weight", "transformer.mlp.up_proj.weight")),
        ("eagle3", {}, ("model.midlayer.hidden_norm.weight", "model.fc.weight")),
        ("dflash", {"architectures": ["DFlashDraftModel"]}, ("fc.weight", "hidden_norm.weight", "norm.weight")),
        ("dflash2", {"architectures": ["DFlash2DraftModel"]}, ("fc.weight", "candidate_selector.predecessor_codebook")),
        ("mtp", {"model_type": "qwen3_next"}, ("mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight")),
        ("mtp", {"num_nextn_predict_layers": 1}, ("model.layers.61.eh_proj.weight", "model.layers.61.enorm.weight")),
        ("mtp", {"architectures": ["MiMoForCausalLM"]}, ("model.mtp_layers.0.input_proj.weight",)),
        ("mtp", {"speculators_model_type": "mtp"}, ("anything",)),
        ("mtp-parallel", {"model_type": "llama"}, ("extra_heads.0.attention.wq.weight", "norm.weight")),
        ("draft-model", {"model_type": "llama"}, ("model.layers.0.self_attn.q_proj.weight", "model.norm.weight")),
    ],
)  # fmt: skip
def test_kinds_are_told_apart(kind, config, names, tmp_path):
    assert detect(write(tmp_path, config, *names)) == kind


def test_unknown_and_unsupported_kinds_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no drafter kind known here.*GPT2"):
        detect(write(tmp_path / "a", {"architectures": ["GPT2"]}, "wte.weight"))
    with pytest.raises(CheckpointError, match="no drafter kind known here.*LlamaForCausalLM"):  # a whole model
        names = ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.norm.weight")
        detect(write(tmp_path / "whole", {"architectures": ["LlamaForCausalLM"]}, *names))
    with pytest.raises(CheckpointError, match="DSpark"):
        detect(write(tmp_path / "b", {}, "markov_head.markov_w1.weight", "fc.weight", "hidden_norm.weight"))


def test_tensors_are_read_from_every_kind_of_file(tmp_path):
    for file in ("model.safetensors", "pytorch_model.bin", "medusa_lm_head.pt", "odd.safetensors"):
        source = write(tmp_path / file, {}, "a", "b", file=file)
        assert sorted(read_tensors(source)) == sorted(tensor_names(source)) == ["a", "b"]
        assert list(read_tensors(source / file, keep=lambda name: name == "b")) == ["b"]
    shards = write(tmp_path / "shards", {}, "a", file="one.safetensors")
    write(shards, None, "b", file="two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    assert sorted(read_tensors(shards)) == ["a", "b"]
    (shards / "two.safetensors").unlink()
    with pytest.raises(CheckpointError, match="lacks two.safetensors"):
        read_tensors(shards)


def test_what_cannot_be_read_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(CheckpointError, match="no weights"):
        read_tensors(tmp_path)
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="JSON object"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        read_config(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(CheckpointError, match="copy the file again"):
        read_tensors(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"net": torch.nn.Linear(2, 2)}, tmp_path / "pytorch_model.bin")  # would run code
    with pytest.raises(CheckpointError, match="safetensors"):
        read_tensors(tmp_path)
    torch.save({"epoch": 3}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="more than named tensors"):
        read_tensors(tmp_path)
    write(tmp_path / "two", {}, "a", file="one.safetensors")
    write(tmp_path / "two", None, "b", file="two.safetensors")
    with pytest.raises(CheckpointError, match="no index"):
        read_tensors(tmp_path / "two")


def test_loading_is_strict_and_says_everything_at_once():
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    tensors = {
        "x.0.weight": torch.ones(3, 2),
        "x.0.bias": torch.ones(4),
        "x.1.bias": torch.ones(1, dtype=torch.int64),
        "x.2.weight": torch.ones(1),
        "skipped.inv_freq": torch.ones(1),
    }
    with pytest.raises(CheckpointError) as caught:
        load_strict(module, tensors, lambda name: name[2:], Path("here"), ignore=["*.inv_freq"])
    for part in (
        "here",
        "missing 1.weight [1, 3]",
        "x.0.bias is [4], expected [3]",
        "unexpected x.2.weight [1]",
        "torch.int64",
    ):
        assert part in str(caught.value)
    tensors |= {
        "x.0.bias": torch.ones(3),
        "x.1.bias": torch.ones(1),
        "x.1.weight": torch.ones(1, 3, dtype=torch.float16),
    }
    del tensors["x.2.weight"]
    load_strict(module, tensors, lambda name: name[2:], Path("here"), ignore=["*.inv_freq"])
    assert module(torch.ones(1, 2)).tolist() == [[10.0]]
    assert module[0].weight.data_ptr() == tensors["x.0.weight"].data_ptr()  # taken, not copied
    with pytest.raises(CheckpointError, match="second"):
        load_strict(module, {"a": torch.ones(3), "b": torch.ones(3)}, lambda name: "0.bias", Path("here"))
