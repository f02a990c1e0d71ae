"""An adapter merged by our own code is what PEFT merges; what we would merge wrongly is refused."""

from __future__ import annotations

import json
import shutil

import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import load_file, save_file  # noqa: E402

from spec_planner.engines import default_model  # noqa: E402
from spec_planner.engines.adapter import adapter_fingerprint, merge_into, read_adapter, write_merged  # noqa: E402
from spec_planner.engines.checkpoint import load_weights  # noqa: E402
from spec_planner.engines.decoder_config import ModelError, read_decoder_config  # noqa: E402
from tests.models import make_tiny_model  # noqa: E402

_LINEARS = {"self_attn.q_proj": (64, 64), "mlp.down_proj": (64, 96)}  # of the tiny model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "qwen3")


@pytest.fixture
def adapter(tmp_path):
    """A directory in PEFT's format: rank 4, alpha 8, two linear layers of every block, float16."""
    torch.manual_seed(0)
    tensors = {}
    for layer in range(2):
        for name, (rows, columns) in _LINEARS.items():
            rows = 96 if name == "self_attn.q_proj" else rows  # qwen3: 4 heads of 24
            key = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{key}.lora_A.weight"] = torch.randn(4, columns).half()
            tensors[f"{key}.lora_B.weight"] = torch.randn(rows, 4).half()
    directory = tmp_path / "adapter"
    directory.mkdir()
    save_file(tensors, directory / "adapter_model.safetensors")
    write_config(directory)
    return directory


def write_config(directory, **changes):
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "bias": "none"}
    config |= {"target_modules": [name.split(".")[1] for name in _LINEARS], **changes}
    (directory / "adapter_config.json").write_text(json.dumps(config))


def test_merged_weights_are_those_peft_merges(model, adapter):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    base = transformers.AutoModelForCausalLM.from_pretrained(model)
    expected = peft.PeftModel.from_pretrained(base, adapter).merge_and_unload().state_dict()
    before = load_file(model / "model.safetensors")
    merged = merge_into(before, read_adapter(adapter))
    assert merged.keys() == before.keys()
    for name, tensor in merged.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-5)
    assert sum(not torch.equal(merged[name], before[name]) for name in before) == 4


def test_a_merged_checkpoint_is_complete_shards_and_types_included(model, adapter, tmp_path):
    split = tmp_path / "split"
    shutil.copytree(model, split)
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(split / "model.safetensors").items()}
    (split / "model.safetensors").unlink()
    shards = {"a.safetensors": sorted(tensors)[::2], "b.safetensors": sorted(tensors)[1::2]}
    for shard, names in shards.items():
        save_file({name: tensors[name] for name in names}, split / shard)
    index = {name: shard for shard, names in shards.items() for name in names}
    (split / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    write_merged(split, adapter, tmp_path / "merged")
    found = load_weights(tmp_path / "merged", read_decoder_config(tmp_path / "merged"))
    expected = merge_into(tensors, read_adapter(adapter))
    assert all(torch.equal(found[name], expected[name]) and found[name].dtype == torch.bfloat16 for name in found)
    note = json.loads((tmp_path / "merged" / "spec_planner.json").read_text())
    assert note == {"prompt_examples": False, "adapter": adapter_fingerprint(adapter)}
    assert (tmp_path / "merged" / "tokenizer.json").is_file()
    with pytest.raises(ModelError, match="merged is not empty"):
        write_merged(split, adapter, tmp_path / "merged")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"use_rslora": True}, "use_rslora is set, which cannot be merged here"),
        ({"use_dora": True}, "use_dora is set"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern is set"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is set"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"peft_type": "LOHA"}, "peft_type 'LOHA' cannot be merged"),
        ({"r": 0}, "is not an adapter's configuration"),
        ({"r": 8}, "lacks a factor of rank 8"),
    ],
)
def test_other_kinds_of_adapter_are_refused(adapter, changes, sentence):
    write_config(adapter, **changes)
    with pytest.raises(ModelError, match=sentence):
        read_adapter(adapter)


def test_an_adapter_of_another_model_is_refused(adapter, model, tmp_path):
    small = make_tiny_model(tmp_path / "small", "llama")
    with pytest.raises(
        ModelError, match=r"changes model.layers.0.self_attn.q_proj.weight as \[96, 64\], but it is \[64, 64\]"
    ):
        write_merged(small, adapter, tmp_path / "out")
    shallow = make_tiny_model(tmp_path / "shallow", "qwen3", num_layers=1)
    with pytest.raises(ModelError, match="and 1 more, which the model does not have"):
        write_merged(shallow, adapter, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_damaged_adapter_is_refused(adapter):
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    first = sorted(tensors)[0]
    save_file({name: tensor for name, tensor in tensors.items() if name != first}, path)
    with pytest.raises(ModelError, match="lacks a factor of rank 4"):
        read_adapter(adapter)
    save_file({**tensors, "base_model.model.lm_head.weight": torch.zeros(2, 2)}, path)
    with pytest.raises(ModelError, match="which is no factor of a linear layer"):
        read_adapter(adapter)
    path.write_bytes(b"no safetensors")
    with pytest.raises(ModelError, match="cannot be read"):
        read_adapter(adapter)
    path.unlink()
    with pytest.raises(ModelError, match="lacks a readable adapter_model.safetensors"):
        read_adapter(adapter)


def test_the_default_model_is_named_after_its_adapter(adapter, monkeypatch, tmp_path):
    made = []

    def convert(gguf, directory, adapter_directory):
        made.append(adapter_directory)

    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(default_model.importlib.metadata, "version", lambda name: "0.1.2")
    monkeypatch.setattr(default_model, "_gguf_file", lambda: None)
    monkeypatch.setattr(default_model, "_convert", convert)
    monkeypatch.setattr(default_model, "shared_file", lambda relative: adapter / "adapter_config.json")
    with_adapter, without = default_model.ensure_default_model(), default_model.ensure_base_model()
    assert made == [adapter, None] and with_adapter == default_model.default_model_directory()
    assert adapter_fingerprint(adapter) in with_adapter.name and with_adapter != without
    write_config(adapter, lora_alpha=4)
    assert default_model.default_model_directory() != with_adapter

    def missing(relative):
        raise FileNotFoundError

    monkeypatch.setattr(default_model, "shared_file", missing)
    assert default_model.ensure_default_model() == without and made == [adapter, None]
