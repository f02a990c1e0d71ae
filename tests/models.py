"""Tiny real checkpoints for tests: random weights, a real byte-level BPE tokenizer, the files Hugging Face writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

_CORPUS = (
    "Put the cup on the table. Bring the tool box to the bench. 1. go_to(kitchen)\n2. pick(cup)\n3. place(cup, table)\n"
    "The robot opens the drawer, takes the spoon, closes the drawer and says hello to the visitor at the door. "
)
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_FAMILIES: dict[str, dict] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 24},
}


def make_tiny_model(
    directory: Path, family: str = "llama", seed: int = 0, num_layers: int = 2, tied: bool = True, **config
) -> Path:
    """Write a random checkpoint of ``family`` (hidden 64, 4/2 heads, vocabulary 320) with its tokenizer."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_CORPUS], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "unk_token": "<|endoftext|>",
                "chat_template": _TEMPLATE,
            }
        )
    )
    sizes = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": tied,
        "eos_token_id": 2,
        "bos_token_id": 1,
        "initializer_range": 0.3,  # far from uniform, so that argmax ties are as rare as in a trained model
    }
    settings = transformers.CONFIG_MAPPING[family](**{**sizes, **_FAMILIES[family], **config})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(settings).float()
    with torch.no_grad():  # give biases and norms values that a mistake would show in
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    model.save_pretrained(directory)
    return directory


def load_onnx(directory: Path, **options):
    """An ``OnnxTarget`` over ``directory``, its graph kept beside it and not in the user's cache."""
    pytest.importorskip("onnxruntime")
    from spec_planner.engines.onnx_target import OnnxTarget

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPEC_PLANNER_CACHE", str(directory.parent / "cache"))
        return OnnxTarget.load(directory, **options)


def load_openvino(directory: Path, **options):
    """An ``OpenVinoTarget`` over ``directory``, its graph kept beside it and not in the user's cache."""
    pytest.importorskip("openvino")
    from spec_planner.engines.openvino_target import OpenVinoTarget

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPEC_PLANNER_CACHE", str(directory.parent / "cache"))
        return OpenVinoTarget.load(directory, **options)
