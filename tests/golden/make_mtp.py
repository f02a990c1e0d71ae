"""Writes mtp.json: what public code makes of the tiny modules of ``tests/drafters/mtp_support.py``.

    git clone https://github.com/meta-llama/llama      (commit 689c7f2)
    python -m tests.golden.make_mtp path/to/llama

Sequential modules: ``MtpModel`` of transformers (5.24), which its own ``from_pretrained`` loads from the published
layout. Each round runs the whole context anew, so no cache is cropped there. A single module is used again on its own
output, as vLLM and SGLang do; what it is given then is ``MtpModel``'s output (normed), or that of its block (raw).
MiMo's layout is renamed first, and ``mtp_hidden_states_first`` set, which is what its ``modeling_mimo.py`` does.
Parallel heads: ``TransformerBlock`` of meta-llama/llama, put together as the paper and its model card say: every head
on what enters the last layer, then the final norm and the shared output. No test imports this file.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import types
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from tests.drafters.mtp_support import (
    CONFIGS,
    GOLDEN,
    LAYERS,
    PROBED,
    ROUNDS,
    STEPS,
    Lender,
    parallel_heads,
    published,
    text_and_states,
)  # fmt: skip

_MIMO_NAMES = {
    "input_proj": "eh_proj", "token_layernorm": "enorm", "hidden_layernorm": "hnorm",
    "final_layernorm": "shared_head.norm",
}  # fmt: skip


def main(llama: Path) -> None:
    written: dict = {
        "made_by": f"tests/golden/make_mtp.py, transformers {transformers.__version__}, meta-llama/llama 689c7f2"
    }
    with torch.no_grad():
        for form in CONFIGS:
            written[form] = sequential(form)
        written["parallel"] = parallel(llama)
    GOLDEN.write_text(json.dumps(written))


def sequential(form: str) -> list[dict]:
    model = load(form)
    ids, states = text_and_states()
    rounds = []
    num_modules = len(model.layers)
    steps = STEPS if num_modules == 1 else num_modules
    for length, forced in ROUNDS:
        cache = MtpCache(config=model.config)
        hidden, ahead = states[None, :length], ids[1 : length + 1 + forced]
        tokens, logits = [], []
        for step in range(forced + steps if num_modules == 1 else steps):
            depth = step if num_modules > 1 else 0
            first = length - hidden.shape[1]
            at = torch.arange(first + 1 + step, length + 1 + step)[None]
            given = torch.tensor([ahead[first + step : length + step]])
            hidden, read = run_layer(model, depth, hidden, at, given, cache, form.endswith("raw"))
            if num_modules == 1:
                hidden = hidden[:, -1:]
            if step >= forced:
                row = model.shared_head(read[:, -1])[0]
                logits.append(row[PROBED].tolist())
                tokens.append(int(row.argmax()))
                ahead.append(tokens[-1])
        if num_modules > 1 and not forced:
            at = torch.arange(1, length + 1)[None]
            drafted, _, _ = model(torch.tensor([ids[1 : length + 1]]), states[None, :length], None, at,
                                  MtpCache(config=model.config))  # fmt: skip
            assert drafted[0].tolist() == tokens
        rounds.append({"tokens": tokens, "logits": logits})
    return rounds


def run_layer(model, depth, hidden, at, given, cache, raw):
    if not raw:
        made = model.forward_layer(depth, hidden, at, cache, input_ids=given)
        return made, made
    layer = model.layers[depth]
    norm, layer.post_norm = layer.post_norm, torch.nn.Identity()
    made = model.forward_layer(depth, hidden, at, cache, input_ids=given)
    layer.post_norm = norm
    return made, norm(made)


def load(form: str) -> MtpModel:
    given = {**CONFIGS[form]}
    given = {**given, **given.get("text_config", {})}
    tensors = published(form)
    family = "qwen2" if form == "mimo" else given["model_type"]
    given.pop("text_config", None), given.pop("model_type")
    config = transformers.CONFIG_MAPPING[family](**given)
    config.num_mtp_layers = given.get("num_nextn_predict_layers", 1)
    if form.startswith("qwen"):
        config.layer_types = ["linear_attention", "full_attention"]
    if getattr(config, "layer_types", None) is not None:
        config.mtp_layer_types = ["full_attention"] * config.num_mtp_layers
    if form == "mimo":
        config.mtp_hidden_states_first = True
        renamed = {}
        for name, tensor in tensors.items():
            new = name.replace("mtp_layers.0.", f"layers.{LAYERS}.")
            for old, other in _MIMO_NAMES.items():
                new = new.replace(f".{old}.", f".{other}.")
            renamed[new] = tensor
        tensors = renamed
    config._attn_implementation, config.dtype = "eager", torch.float32
    main_model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    main_model._keys_to_ignore_on_load_unexpected = (
        [r"^mtp.*"] if form.startswith("qwen") else [rf"^model\.layers\.{LAYERS + k}\." for k in range(2)]
    )
    lender = Lender()
    main_model.get_input_embeddings().weight.copy_(lender.lend("embedding"))
    main_model.lm_head.weight.copy_(lender.lend("head"))
    with tempfile.TemporaryDirectory() as folder:
        save_file(tensors, Path(folder) / "model.safetensors")
        main_model.config.name_or_path = folder
        model = MtpModel.from_pretrained(main_model).float().eval()
    return model


def parallel(llama: Path) -> list[dict]:
    params, tensors = parallel_heads()
    linear = types.ModuleType("fairscale.nn.model_parallel.layers")
    linear.ColumnParallelLinear = linear.RowParallelLinear = _Linear
    linear.ParallelEmbedding = torch.nn.Embedding
    initialize = types.ModuleType("fairscale.nn.model_parallel.initialize")
    initialize.get_model_parallel_world_size = lambda: 1
    parent = types.ModuleType("fairscale.nn.model_parallel")
    parent.initialize = initialize
    for module in (linear, initialize, parent):
        sys.modules[module.__name__] = module
    for name in ("fairscale", "fairscale.nn"):
        sys.modules[name] = types.ModuleType(name)
    torch.Tensor.cuda = lambda self: self
    spec = importlib.util.spec_from_file_location("llama_model", llama / "llama" / "model.py")
    code = sys.modules["llama_model"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    # ffn_dim_multiplier such that the inner width comes out as the checkpoint's, which the published params do too.
    inner = tensors["extra_heads.0.feed_forward.w1.weight"].shape[0]
    args = code.ModelArgs(
        dim=params["dim"], n_heads=params["n_heads"], n_kv_heads=params["n_kv_heads"], norm_eps=params["norm_eps"],
        multiple_of=inner, ffn_dim_multiplier=inner / (8 * params["dim"] / 3) * 0.99, max_batch_size=1, max_seq_len=128,
    )  # fmt: skip
    blocks = []
    for head in range(3):
        block = code.TransformerBlock(head, args)
        prefix = f"extra_heads.{head}."
        block.load_state_dict({n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}, strict=True)
        blocks.append(block.eval())
    lender = Lender()
    norm = code.RMSNorm(params["dim"], params["norm_eps"])
    norm.weight.copy_(lender.lend("final_norm"))
    turns = code.precompute_freqs_cis(params["dim"] // params["n_heads"], 256)
    ids, states = text_and_states()
    rounds = []
    for length, forced in ROUNDS:
        mask = torch.full((length, length), float("-inf")).triu(1)
        made = [block(states[None, :length], 0, turns[:length], mask) for block in blocks[forced:]]
        rows = [F.linear(norm(each)[0, -1], lender.lend("head")) for each in made]
        rounds.append({"tokens": [int(row.argmax()) for row in rows], "logits": [row[PROBED].tolist() for row in rows]})
    return rounds


class _Linear(torch.nn.Linear):
    def __init__(self, rows: int, columns: int, bias: bool = True, **_) -> None:
        super().__init__(rows, columns, bias=bias)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
