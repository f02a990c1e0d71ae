"""What the tests of DFlash and DFlash 2 share: published layouts written by seed, what drafters see, a target."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.draft_sampler import RunDraftSampler
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.random_stream import RandomStream
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.decoding.stopping import Stopping
from spec_planner.engines.torch_target import TorchTarget
from tests.models import make_tiny_model

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
V, D, LAYERS, BLOCK, MASK, FEATURES = 48, 32, 3, 6, 47, (1, 3, 4)

SMALL = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": 40,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "max_position_embeddings": 256,
    "num_target_layers": 8,
    "block_size": BLOCK,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(FEATURES)},
}
SLIDING = {"use_sliding_window": True, "sliding_window": 7}
SCALED = {"output_multiplier": 0.5, "final_logit_softcapping": 4.0, "input_embedding_scale": 1.7}
VARIANTS = {
    "full": {},
    "causal_window": {**SLIDING, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
    "open_window": {
        **SLIDING,
        "layer_types": ["sliding_attention"] * 3,
        "is_causal": False,
        "dflash_config": {**SMALL["dflash_config"], **SCALED},
    },
}


def shapes_of(config: dict) -> dict[str, tuple[int, ...]]:
    """Names and shapes of every tensor of a DFlash directory, as published."""
    d, inner, e = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * e, config["num_key_value_heads"] * e
    shapes = {"fc.weight": (d, d * len(config["dflash_config"]["target_layer_ids"]))}
    shapes |= {"hidden_norm.weight": (d,), "norm.weight": (d,)}
    for layer in range(config["num_hidden_layers"]):
        one = {"input_layernorm": (d,), "post_attention_layernorm": (d,), "self_attn.q_norm": (e,),
               "self_attn.k_norm": (e,), "self_attn.q_proj": (q, d), "self_attn.k_proj": (kv, d),
               "self_attn.v_proj": (kv, d), "self_attn.o_proj": (d, q), "mlp.gate_proj": (inner, d),
               "mlp.up_proj": (inner, d), "mlp.down_proj": (d, inner)}  # fmt: skip
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in one.items()}
    return shapes


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    """Norms near 1, the rest of a size at which every part shows in the result; numpy's generator, so for ever."""
    generator = np.random.default_rng(seed)

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        values = generator.standard_normal(shape)
        if "norm" in name:
            return 1.0 + 0.2 * values
        if name.endswith("base_kernel"):
            return 0.4 * values + np.array([1.0, 0.3])[None, :, None]
        return values if "codebook" in name else values * 1.5 / np.sqrt(shape[-1])

    return {name: torch.tensor(draw(name, shape), dtype=torch.float32) for name, shape in shapes.items()}


def write_dflash(directory: Path, config: dict, seed: int = 0, shapes=shapes_of, extra: dict | None = None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({**random_tensors(shapes(config), seed), **(extra or {})}, directory / "model.safetensors")
    return directory


TEMPERATURE = 0.7


SIZES = {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 8, "selector_top_k": 5}


SMALL2 = {
    **{key: value for key, value in SMALL.items() if key != "block_size"},
    **VARIANTS["open_window"],
    "architectures": ["DFlash2DraftModel"],
    "dflash_config": {**VARIANTS["open_window"]["dflash_config"], "block_size": BLOCK, **SIZES},
}


def shapes_of_2(config: dict) -> dict[str, tuple[int, ...]]:
    d, inner = config["hidden_size"], config["dflash_config"]
    taps, rank = inner["conv_kernel_size"], inner["selector_rank"]
    shapes = shapes_of(config)
    shapes["candidate_selector.hidden_projection.weight"] = (rank, d)
    for side in ("predecessor", "successor"):
        shapes[f"candidate_selector.{side}_codebook"] = (config["vocab_size"], rank)
    for layer in range(config["num_hidden_layers"]):
        for conv in ("attention_conv", "mlp_conv"):
            shapes[f"layers.{layer}.{conv}.base_kernel"] = (2, taps, d)
            rows = 2 * taps * d // inner["conv_group_size"]
            shapes[f"layers.{layer}.{conv}.kernel_projection.weight"] = (rows, d)
    return shapes


def write_dflash2(directory, config=None, seed: int = 1, **extra):
    return write_dflash(directory, config or SMALL2, seed, shapes_of_2, **extra)


def lent(seed: int = 100, vocabulary: int = V, width: int = D) -> tuple[torch.Tensor, torch.Tensor]:
    """An embedding and a head, [V, d] each."""
    generator = np.random.default_rng(seed)
    pair = generator.standard_normal((2, vocabulary, width)) * np.array([1.0, 0.4])[:, None, None]
    embedding, head = torch.tensor(pair, dtype=torch.float32)
    return embedding, head


def rounds(seed: int = 200, lengths=(11, 1, 4, 6, 1, 2)) -> list[tuple[torch.Tensor, list[int], int]]:
    """What a drafter sees: hidden states [n, m, d] and ids [n] that were committed, then the next anchor."""
    generator = np.random.default_rng(seed)
    result = []
    for n in lengths:
        features = torch.tensor(generator.standard_normal((n, len(FEATURES), D)), dtype=torch.float32)
        result.append((features, generator.integers(0, V - 1, n).tolist(), int(generator.integers(0, V - 1))))
    return result


class Recording(RunDraftSampler):
    """A run's sampler that keeps the logits it is shown."""

    def __init__(self, temperature: float = 0.0, rule: str = "drafter-invariant", position: int = 0, seed: int = 3,
                 constraint=None) -> None:  # fmt: skip
        super().__init__(RULES[rule], SamplingParams(temperature, seed=seed), RandomStream(seed), constraint)
        self.anchor_position, self.seen = position, []

    def law(self, logits, branch):
        self.seen.append(np.array(logits))
        return super().law(logits, branch)


def exported(**fields) -> dict:
    """The same drafter as speculators writes it down."""
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta")  # fmt: skip
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": {**{key: SMALL[key] for key in kept}, **fields.pop("layer", {})},
        "aux_hidden_state_layer_ids": [layer + 1 for layer in FEATURES],
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "draft_vocab_size": V,
        "sample_from_anchor": False,
        **fields,
    }


def check_context_alone(make_drafter, temperature: float) -> None:
    """The conformance test of that name, with features: cuts, strays and rejected drafts leave no trace."""
    generator = np.random.default_rng(7)
    for trial in range(6):
        n = int(generator.integers(1, 30))
        ids = generator.integers(0, V - 1, n).tolist()
        features = torch.tensor(generator.standard_normal((n + 9, len(FEATURES), D)), dtype=torch.float32)
        stem = (5, 9, 2)[: 1 + trial % 3]
        fresh, used = make_drafter(), make_drafter()
        fresh.observe(ids, features[:n])
        used.observe([1] * 9, features[n:])
        used.draft((1,), 5, Recording(temperature, position=9))
        used.truncate(0)
        cut = int(generator.integers(0, n))
        for start, end in ((0, cut), (cut, n)):
            used.observe(ids[start:end], features[start:end])
            used.draft((2, 3), 4, Recording(temperature, position=end))
        used.observe([1] * 9, features[n:])
        used.truncate(n)
        expected = fresh.draft(stem, 6, Recording(temperature, position=n))
        again = used.draft(stem, 6, Recording(temperature, position=n))
        assert again.tokens.tolist() == expected.tokens.tolist() and again.parents.tolist() == expected.parents.tolist()
        assert tuple(again.tokens[: len(stem)].tolist()) == stem and again.num_draft_tokens <= len(stem) + 5
        assert again.proposal is expected.proposal


def slots(drafter, stem) -> tuple[torch.Tensor, np.ndarray]:
    """Hidden states [B − 1, d] of the slots after ``stem`` and their logits [B − 1, V]."""
    with torch.inference_mode():
        hidden, logits = drafter._guess(stem, 99)
        return hidden, drafter._head.spread(logits)


@pytest.fixture(scope="module")
def target_directory(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target") / "tiny", "qwen3", seed=5, num_layers=4, tied=True)


def load_target(directory: Path, calm: float = 0.02) -> TorchTarget:
    """Layers that change little, so the likeliest next token is mostly the last one again; a head that prefers little,
    so draws with the same noise mostly agree."""
    target = TorchTarget.load(directory, context_length=160, device="cpu")
    for layer in target._decoder.layers:
        layer.out *= calm
        layer.down *= calm
    target._decoder.head = target._decoder.embedding * 0.1
    return target


def config_for_target(**change) -> dict:
    inner = {"mask_token_id": 7, "target_layer_ids": [0, 2], **change.pop("dflash_config", {})}
    return {**SMALL, "vocab_size": 320, "hidden_size": 64, "intermediate_size": 48, "dflash_config": inner, **change}


def calm(net, factor: float = 0.02) -> None:
    with torch.no_grad():
        for layer in net.layers:
            layer.self_attn.o_proj.weight *= factor
            layer.mlp.down_proj.weight *= factor


PROMPT = (5, 9, 200, 31, 7, 7, 44, 7)


def run(target, drafter, temperature: float, rule: str, budget: int, seed: int = 1, constraint=None, length: int = 40):
    steps = list(
        decode(
            *(target, drafter, PromptInput(PROMPT), SamplingParams(temperature, seed=seed), Stopping(length)),
            *(RULES[rule], FixedBudget(budget) if drafter else None),
            constraint=constraint,
        )
    )
    accepted = sum(step.acceptance.num_accepted for step in steps if step.acceptance)
    target.truncate(0)
    return [token for step in steps for token in step.tokens], accepted


class Forcing:
    """Every fourth word is followed by two forced tokens; some tokens are never allowed."""

    def allowed(self, tokens):
        mask = np.arange(320) % 5 != 0
        mask[[7, 44]] = True
        place = len(tokens) % 4
        if place in (2, 3):
            mask[:] = False
            mask[11 if place == 2 else 12] = True
        return mask

    def forced(self, tokens):
        return {2: (11, 12), 3: (12,)}.get(len(tokens) % 4, ())
