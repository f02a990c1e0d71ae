"""Tiny MTP checkpoints in the published layouts, and as much of a target as a drafter of theirs needs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from spec_planner.decoding.contracts import Drafter, TargetInfo
from spec_planner.decoding.draft_sampler import RunDraftSampler
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.random_stream import RandomStream
from spec_planner.decoding.sampling import SamplingParams

GOLDEN = Path(__file__).parents[1] / "golden" / "mtp.json"
HIDDEN, VOCABULARY, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER = 32, 96, 2, 4, 2, 16, 24
PROBED = [0, 7, 31, 60, 95]  # vocabulary entries compared
# What is committed when a draft is asked for, and how many forced tokens stand behind the anchor. The text is random,
# so every draft is turned down; 52 tokens at once are followed before the draft, the others with it.
ROUNDS = [(1, 0), (9, 0), (10, 1), (13, 0), (17, 2), (69, 0), (70, 0)]
STEPS = 3  # draft tokens where one module is used again and again

_COMMON = {
    "hidden_size": HIDDEN, "vocab_size": VOCABULARY, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "intermediate_size": INNER, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "rope_theta": 5000.0, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
_MOE = {"moe_intermediate_size": INNER, "num_experts_per_tok": 2, "norm_topk_prob": True}
_NO_THETA = {name: value for name, value in _COMMON.items() if name != "rope_theta"}
_ROPE_35 = {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0]}
CONFIGS: dict[str, dict] = {
    "deepseek": {
        **_COMMON, **_MOE, "model_type": "deepseek_v3", "num_nextn_predict_layers": 1, "num_experts_per_tok": 3,
        "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
        "q_lora_rank": 12, "kv_lora_rank": 10, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 8,
        "num_key_value_heads": HEADS, "head_dim": 4, "first_k_dense_replace": 1, "attention_bias": False,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32,
                         "beta_slow": 1, "original_max_position_embeddings": 128},
    },
    "glm": {
        **_COMMON, **_MOE, "model_type": "glm4_moe", "num_nextn_predict_layers": 1, "n_routed_experts": 4,
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1,
        "attention_bias": True, "use_qk_norm": True, "partial_rotary_factor": 0.5,
    },
    "qwen3_next": {
        **_COMMON, **_MOE, "model_type": "qwen3_next", "num_experts": 4, "shared_expert_intermediate_size": INNER,
        "partial_rotary_factor": 0.25,
    },
    "qwen3_5": {"model_type": "qwen3_5", "text_config": {
        **_NO_THETA, "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1, "rope_parameters": _ROPE_35,
    }},
    "qwen3_5_moe": {"model_type": "qwen3_5_moe", "text_config": {
        **_NO_THETA, **_MOE, "model_type": "qwen3_5_moe_text", "mtp_num_hidden_layers": 1, "num_experts": 4,
        "shared_expert_intermediate_size": INNER, "rope_parameters": _ROPE_35,
    }},
    "mimo": {**_COMMON, "model_type": "mimo", "num_nextn_predict_layers": 1, "attention_bias": True},
}  # fmt: skip
CONFIGS["deepseek raw"] = CONFIGS["deepseek"]
CONFIGS["deepseek two modules"] = {**CONFIGS["deepseek"], "num_nextn_predict_layers": 2}


class Draw:
    """Random tensors under names. ``RandomState`` streams are frozen, so a seed means the same numbers for ever."""

    def __init__(self, seed: int) -> None:
        self._random, self.tensors = np.random.RandomState(seed), {}

    def __call__(self, name: str, *shape: int, scale: float = 0.3, around: float = 0.0) -> None:
        numbers = around + scale * self._random.standard_normal(shape)
        self.tensors[name] = torch.from_numpy(numbers.astype(np.float32))


def published(form: str) -> dict[str, torch.Tensor]:
    """The MTP tensors of a checkpoint, in its family's layout, and a few of the target's that must not be read."""
    draw = Draw(21)
    family = form.split()[0]
    draw("model.layers.0.mlp.down_proj.weight", 3, 3)
    draw("model.embed_tokens.weight", VOCABULARY, HIDDEN)
    if family in ("deepseek", "glm"):
        for depth in range(2 if form == "deepseek two modules" else 1):
            prefix = f"model.layers.{LAYERS + depth}."
            _outer(draw, prefix, "eh_proj", "enorm", "hnorm", "shared_head.norm")
            draw(f"{prefix}embed_tokens.weight", VOCABULARY, HIDDEN)
            draw(f"{prefix}shared_head.head.weight", VOCABULARY, HIDDEN)
            _layer(draw, prefix, family)
    elif family == "mimo":
        _outer(draw, "model.mtp_layers.0.", "input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm")
        _layer(draw, "model.mtp_layers.0.", family)
    else:
        _outer(draw, "mtp.", "fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", around=0.0)
        _layer(draw, "mtp.layers.0.", family)
    return draw.tensors


def _outer(draw: Draw, prefix: str, projection: str, *norms: str, around: float = 1.0) -> None:
    draw(f"{prefix}{projection}.weight", HIDDEN, 2 * HIDDEN)
    for norm in norms:
        draw(f"{prefix}{norm}.weight", HIDDEN, scale=0.2, around=around)


def _layer(draw: Draw, prefix: str, family: str) -> None:
    around = 0.0 if family.startswith("qwen") else 1.0
    for norm in ("input_layernorm", "post_attention_layernorm"):
        draw(f"{prefix}{norm}.weight", HIDDEN, scale=0.2, around=around)
    if family == "deepseek":
        shapes = {"q_a_proj": (12, HIDDEN), "q_b_proj": (HEADS * 10, 12), "kv_a_proj_with_mqa": (14, HIDDEN),
                  "kv_b_proj": (HEADS * 14, 10), "o_proj": (HIDDEN, HEADS * 8)}  # fmt: skip
        for norm, size in (("q_a_layernorm", 12), ("kv_a_layernorm", 10)):
            draw(f"{prefix}self_attn.{norm}.weight", size, scale=0.2, around=1.0)
    else:
        gated = 2 if family.startswith("qwen") else 1
        shapes = {"q_proj": (gated * HEADS * HEAD_DIM, HIDDEN), "k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
                  "v_proj": (KV_HEADS * HEAD_DIM, HIDDEN), "o_proj": (HIDDEN, HEADS * HEAD_DIM)}  # fmt: skip
        for norm in ("q_norm", "k_norm") if family != "mimo" else ():
            draw(f"{prefix}self_attn.{norm}.weight", HEAD_DIM, scale=0.2, around=around)
        for name in ("q_proj", "k_proj", "v_proj") if family in ("glm", "mimo") else ():
            draw(f"{prefix}self_attn.{name}.bias", shapes[name][0])
    for name, shape in shapes.items():
        draw(f"{prefix}self_attn.{name}.weight", *shape)
    if family in ("mimo", "qwen3_5"):
        _swiglu(draw, f"{prefix}mlp.")
        return
    count = 8 if family == "deepseek" else 4
    draw(f"{prefix}mlp.gate.weight", count, HIDDEN)
    if family == "qwen3_5_moe":
        draw(f"{prefix}mlp.experts.gate_up_proj", count, 2 * INNER, HIDDEN)
        draw(f"{prefix}mlp.experts.down_proj", count, HIDDEN, INNER)
    else:
        for expert in range(count):
            _swiglu(draw, f"{prefix}mlp.experts.{expert}.")
    if family.startswith("qwen"):
        _swiglu(draw, f"{prefix}mlp.shared_expert.")
        draw(f"{prefix}mlp.shared_expert_gate.weight", 1, HIDDEN)
    else:
        _swiglu(draw, f"{prefix}mlp.shared_experts.")
        draw(f"{prefix}mlp.gate.e_score_correction_bias", count, scale=0.1)


def _swiglu(draw: Draw, prefix: str) -> None:
    draw(f"{prefix}gate_proj.weight", INNER, HIDDEN)
    draw(f"{prefix}up_proj.weight", INNER, HIDDEN)
    draw(f"{prefix}down_proj.weight", HIDDEN, INNER)


def parallel_heads(num_heads: int = 3) -> tuple[dict, dict[str, torch.Tensor]]:
    """params.json and the extra heads of a checkpoint in Meta's layout."""
    draw = Draw(31)
    draw("layers.0.ffn_norm.weight", HIDDEN)
    for head in range(num_heads):
        prefix = f"extra_heads.{head}."
        for norm in ("attention_norm", "ffn_norm"):
            draw(f"{prefix}{norm}.weight", HIDDEN, scale=0.2, around=1.0)
        for name, rows in (("wq", HEADS), ("wk", KV_HEADS), ("wv", KV_HEADS)):
            draw(f"{prefix}attention.{name}.weight", rows * 8, HIDDEN)
        draw(f"{prefix}attention.wo.weight", HIDDEN, HEADS * 8)
        draw(f"{prefix}feed_forward.w1.weight", INNER, HIDDEN)
        draw(f"{prefix}feed_forward.w3.weight", INNER, HIDDEN)
        draw(f"{prefix}feed_forward.w2.weight", HIDDEN, INNER)
    params = {"dim": HIDDEN, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "norm_eps": 1e-5, "n_layers": LAYERS + 3}
    return params, draw.tensors


def text_and_states() -> tuple[list[int], torch.Tensor]:
    """Ids of a text, and hidden states [n, d] of a target at them."""
    random = np.random.RandomState(8)
    length = ROUNDS[-1][0] + 8
    ids = random.randint(0, VOCABULARY, length).tolist()
    return ids, torch.from_numpy(random.standard_normal((length, HIDDEN)).astype(np.float32))


class Lender:
    """As much of a target as a drafter needs: its weights."""

    def __init__(self, num_layers: int = LAYERS) -> None:
        draw = Draw(41)
        draw("embedding", VOCABULARY, HIDDEN, scale=1.0)
        draw("head", VOCABULARY, HIDDEN)
        draw("final_norm", HIDDEN, scale=0.2, around=1.0)
        self.lend = draw.tensors.__getitem__
        self.info = TargetInfo(
            "t", "torch", "float32", "cpu", VOCABULARY, HIDDEN, num_layers, 512, 64, True,
            ("embedding", "head", "final_norm"),
        )  # fmt: skip


class Recording(RunDraftSampler):
    """Keeps the logits it is given."""

    def law(self, logits, branch):
        self.seen.append(logits[PROBED].tolist())
        self.laws.append(super().law(logits, branch))
        return self.laws[-1]


def sampler_of(temperature=0.0, seed=3, rule="drafter-invariant", at=0, kind=RunDraftSampler):
    sampler = kind(RULES[rule], SamplingParams(temperature, seed=seed), RandomStream(seed))
    sampler.anchor_position, sampler.seen, sampler.laws = at, [], []
    return sampler


def saved(directory: Path, tensors: dict[str, torch.Tensor], config: dict, config_name: str = "config.json") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / config_name).write_text(json.dumps(config))
    return directory


def dense_layer(draw: Draw, prefix: str) -> None:
    """A Qwen3 layer of the tiny target's sizes."""
    for norm in ("input_layernorm", "post_attention_layernorm"):
        draw(f"{prefix}{norm}.weight", 64, around=1.0)
    for name, shape in (("q_proj", (96, 64)), ("k_proj", (48, 64)), ("v_proj", (48, 64)), ("o_proj", (64, 96))):
        draw(f"{prefix}self_attn.{name}.weight", *shape)
    for norm in ("q_norm", "k_norm"):
        draw(f"{prefix}self_attn.{norm}.weight", 24, around=1.0)
    for name, shape in (("gate_proj", (96, 64)), ("up_proj", (96, 64)), ("down_proj", (64, 96))):
        draw(f"{prefix}mlp.{name}.weight", *shape)


class Allowed:
    """Every token but the odd ones, and two forced tokens after each token divisible by 6."""

    def allowed(self, tokens):
        mask = np.zeros(320, dtype=bool)
        mask[::2] = True
        for i in range(len(tokens)):
            if tokens[i] % 6 == 0 and len(tokens) - i <= 2:
                mask[:] = False
                mask[(4, 8)[len(tokens) - i - 1]] = True
                return mask
        return mask

    def forced(self, tokens):
        ahead = []
        while tokens and np.count_nonzero(mask := self.allowed([*tokens, *ahead])) == 1 and len(ahead) < 4:
            ahead.append(int(mask.argmax()))
        return tuple(ahead)


def check_rounds(drafter: Drafter, golden: list[dict], steps: int) -> None:
    ids, states = text_and_states()
    seen = 0
    for (length, forced), expected in zip(ROUNDS, golden, strict=True):
        drafter.observe(ids[seen:length], states[seen:length, None])
        seen = length
        sampler = sampler_of(at=length, kind=Recording)
        tree = drafter.draft(ids[length : length + forced + 1], steps, sampler)
        assert tree.tokens[forced + 1 :].tolist() == expected["tokens"]
        np.testing.assert_allclose(sampler.seen, expected["logits"], rtol=0, atol=1e-4)
    # Forgotten and told again, in other pieces: the same.
    for length, again in ((13, 3), (60, 4)):
        drafter.truncate(length)
        seen = length
        number = next(i for i, (end, _) in enumerate(ROUNDS) if end >= length)
        for (end, forced), expected in list(zip(ROUNDS, golden, strict=True))[number : number + again]:
            drafter.observe(ids[seen:end], states[seen:end, None])
            seen = end
            tree = drafter.draft(ids[end : end + forced + 1], steps, sampler_of(at=end))
            assert tree.tokens[forced + 1 :].tolist() == expected["tokens"]
