"""Make tests/golden/eagle_*.json: what the public code drafts with the weights and features of the tests.

Needs the public repositories beside it; their code is run, never copied, and nothing here is imported by a test:

    python -m tests.golden.make_eagle safeailab DIRECTORY       SafeAILab/EAGLE at cb7e084 (eagle/model is imported)
    python -m tests.golden.make_eagle speculators DIRECTORY     vllm-project/speculators at c05b95b (src is imported)
    python -m tests.golden.make_eagle modelopt DIRECTORY        NVIDIA/Model-Optimizer at a2fbac7 (one file is imported)

Run from the root of this repository. Made with torch 2.13 and transformers 5.24 in float32 on a CPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

import torch
from transformers import DynamicCache, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from drafters.checkpoint import read_config, read_tensors
from tests.drafters.test_checkpoint import EAGLE_SIZES, make_eagle
from tests.drafters.test_eagle import Lender, features_at

HERE = Path(__file__).parent
PROMPT = [3, 17, 40, 8, 8, 25, 31, 2, 19]
ANCHORS = (11, 30, 5, 44)  # what the target says after each round
ACCEPTED = (2, 0, 1, 0)  # how many draft tokens it keeps


def rounded(values: torch.Tensor) -> list[float]:
    return [float(f"{value:.7g}") for value in values.flatten().tolist()]


def safeailab(source: Path) -> dict:
    sys.path.insert(0, str(source / "eagle" / "model"))
    return {
        layout: {
            "chain": _drafts(layout, top_k=1, levels=5, budget=5),
            "tree": _drafts(layout, top_k=4, levels=5, budget=12),
        }
        for layout in ("eagle1", "eagle3")
    }


def _drafts(layout: str, top_k: int, levels: int, budget: int) -> dict:
    net, head = _published_net(layout, top_k, levels, budget)
    heard: list[torch.Tensor] = []
    head.register_forward_hook(
        lambda module, inputs, output: heard.append(output.detach().reshape(-1, output.shape[-1]))
    )
    context: list[int] = []
    committed, num_features, rounds = PROMPT, 1 if layout == "eagle1" else 3, []
    for anchor, accepted in zip(ANCHORS, ACCEPTED, strict=True):
        features = features_at(len(context), len(committed), num_features).flatten(1)[None]
        context = [*context, *committed]
        heard.clear()
        tokens, _, mask, _ = net.topK_genrate(features, torch.tensor([[*context, anchor]]), head, None)
        tokens, mask = tokens[0].tolist(), mask[0, 0].bool()
        parents = [-1, *(int(mask[i, :i].nonzero().max()) for i in range(1, len(tokens)))]
        branches: dict[int, list[int]] = {0: [anchor]}
        for node in range(1, len(tokens)):
            branches[node] = [*branches[parents[node]], tokens[node]]
        # The hook hears the root, then whole levels, of which only the first is in a known order.
        logits = [([anchor], rounded(heard[0][-1]))]
        if top_k == 1:
            logits += [(branches[level], rounded(heard[level][0])) for level in range(1, levels)]
        else:
            likeliest = heard[0][-1].topk(top_k).indices
            first = (likeliest + net.d2t[likeliest] if layout == "eagle3" else likeliest).tolist()
            kept = {tokens[i] for i in range(1, len(tokens)) if parents[i] == 0}
            logits += [([anchor, t], rounded(heard[1][i])) for i, t in enumerate(first) if t in kept]
        rounds.append(
            {"committed": committed, "anchor": anchor, "tokens": tokens, "parents": parents, "logits": logits}
        )
        # The last node so deep, so that a branch off the first is taken.
        committed = next(ids for _, ids in sorted(branches.items(), reverse=True) if len(ids) == accepted + 1)
    return {"top_k": top_k, "depth": levels, "budget": budget, "rounds": rounds}


def _published_net(layout: str, top_k: int, levels: int, budget: int):
    """The published module with our weights: its depth counts what follows the first level."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = make_eagle(Path(scratch), layout, **EAGLE_SIZES)
        config, tensors = read_config(directory), {n: t.clone() for n, t in read_tensors(directory).items()}
    lender = Lender()
    config |= {"pad_token_id": 0, "rope_scaling": None, "rope_theta": 10000.0, "pretraining_tp": 1}
    module = importlib.import_module("cnets1" if layout == "eagle1" else "cnets")
    net = module.Model(types.SimpleNamespace(**config), total_tokens=budget + 1, depth=levels - 1, top_k=top_k).eval()
    tensors["embed_tokens.weight"] = lender.lend("embedding")
    net.load_state_dict(tensors)
    net.init_tree()
    head = torch.nn.Linear(EAGLE_SIZES["hidden"], EAGLE_SIZES["vocabulary"], bias=False)
    head.weight.data = lender.lend("head")
    return net, head if layout == "eagle1" else net.lm_head


def speculators(source: Path) -> dict:
    sys.path.insert(0, str(source / "src"))
    sys.modules["speculators.train.data"] = mock.MagicMock()  # training data, imported on the way
    core = importlib.import_module("speculators.models.eagle3.core")
    configs = importlib.import_module("speculators.models.eagle3.config")
    return {layout: _training_pass(core, configs, layout) for layout in ("speculators", "speculators-3.1")}


def _training_pass(core, configs, layout: str) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        directory = make_eagle(Path(scratch), layout, **EAGLE_SIZES)
        config, tensors = read_config(directory), {n: t.clone() for n, t in read_tensors(directory).items()}
    settings = configs.Eagle3SpeculatorConfig(**{k: v for k, v in config.items() if k != "speculators_model_type"})
    # Not "eager": its mask is of floats, and is extended by a diagonal of ones and zeros, all of them open.
    settings.transformer_layer_config._attn_implementation = "sdpa"
    net = core.Eagle3DraftModel(settings).eval()
    missing, unexpected = net.load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= {"verifier_norm.weight", "verifier_lm_head.weight"}, (missing, unexpected)
    heard: list[torch.Tensor] = []
    net.lm_head.register_forward_hook(lambda module, inputs, output: heard.append(output.detach()[0, -1]))
    # Row r reads the feature at r and the token at r + 1; what follows the last is padded by 0.
    stem = [21, 0, 0, 0]
    features = features_at(0, len(PROMPT), 3).flatten(1)[None]
    net(features, torch.tensor([[*PROMPT[1:], stem[0]]]), torch.zeros((1, len(PROMPT)), dtype=torch.long), ttt_steps=4)
    return {"ids": PROMPT, "stem": stem, "logits": [rounded(row) for row in heard]}


class _Layer(LlamaDecoderLayer):
    """Without its input norm, which ModelOpt's module means to be off: as it stands it would norm hidden states twice,
    which no engine that serves these checkpoints does."""

    def forward(self, hidden_states, **rest):
        hidden = hidden_states + self.self_attn(hidden_states=hidden_states, **rest)[0]
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


def modelopt(source: Path) -> dict:
    path = source / "modelopt" / "torch" / "speculative" / "plugins" / "modeling_eagle.py"
    spec = importlib.util.spec_from_file_location("modeling_eagle", path)
    module = sys.modules["modeling_eagle"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with tempfile.TemporaryDirectory() as scratch:
        directory = make_eagle(Path(scratch), "modelopt", **EAGLE_SIZES)
        config, tensors = read_config(directory), {n: t.clone() for n, t in read_tensors(directory).items()}
    settings = LlamaConfig(**{k: v for k, v in config.items() if k != "eagle_config"}, attn_implementation="sdpa")
    for name, value in {"use_last_layernorm": True, "has_lm_head": True, "eagle_decoder_type": "llama"}.items():
        setattr(settings, name, value)
    for name, value in config["eagle_config"].items():
        setattr(settings, name, value)
    net = module.EagleModule(settings, _Layer).eval()
    net.load_state_dict(tensors)
    net.rotary_emb = LlamaRotaryEmbedding(settings)
    embedding, cache = Lender().lend("embedding"), DynamicCache()
    stem, heard = [21, 0, 13, 5], []
    ids, hidden = [*PROMPT[1:], stem[0]], net.fc(features_at(0, len(PROMPT), 3).flatten(1))[None]
    for following in (*stem[1:], None):
        seen, count = cache.get_seq_length(), len(ids)
        mask = torch.ones((1, 1, count, seen + count), dtype=torch.bool).tril(seen)
        places = torch.arange(seen, seen + count)[None]
        after, before, _ = net(hidden, embedding[ids][None], mask, places, cache, use_cache=True)
        heard.append(net.lm_head(after)[0, -1])
        ids, hidden = [following], before[:, -1:]
    return {"modelopt": {"ids": PROMPT, "stem": stem, "logits": [rounded(row) for row in heard]}}


if __name__ == "__main__":
    kind, place = sys.argv[1], Path(sys.argv[2])
    with torch.no_grad():
        result = {"safeailab": safeailab, "speculators": speculators, "modelopt": modelopt}[kind](place)
    (HERE / f"eagle_{kind}.json").write_text(json.dumps(result) + "\n")
