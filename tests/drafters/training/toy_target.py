"""A tiny real target with a language that can be learnt, its weights as trainees see them, and its answers.

Its head likes the token that comes after the last one read on a fixed round trip through a few tokens; its layers,
which are random, move it off that way, the more often the larger their weights, depending on what stands before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafters.training.batch import Batch, TargetWeights
from drafters.training.batch import Path as Answer
from drafters.training.trainee import Trainee
from spec_planner.decoding.contracts import Drafter, PromptInput
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.draft_sampler import RunDraftSampler
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.random_stream import RandomStream
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.decoding.stopping import Stopping
from spec_planner.engines.torch_target import TorchTarget

HIDDEN, VOCABULARY, LAYERS, INNER = 32, 64, 3, 48
RULE = RULES["drafter-invariant"]
USED = 14  # tokens that the language is made of
PROMPTS = ((1, 4, 7, 2, 9, 5), (3, 0, 11, 6), (8, 12, 2, 2, 10, 13, 4), (5, 5, 1))
OTHERS = ((6, 1), (13, 13, 0, 2), (9, 3, 3, 12, 7))  # never learnt from


def write_target(directory: Path, family: str = "llama", scale: float = 0.25, seed: int = 0) -> Path:
    """Llama, Qwen2 (biases) or Qwen3 (head norms), its head not tied; ``scale`` of the layers' weights."""
    random = np.random.RandomState(seed)

    def draw(*shape: int, scale: float, around: float = 0.0) -> Tensor:
        return torch.from_numpy((around + scale * random.standard_normal(shape)).astype(np.float32))

    head_dim = 16 if family == "qwen3" else HIDDEN // 4
    embedding = draw(VOCABULARY, HIDDEN, scale=1.0)
    head = draw(VOCABULARY, HIDDEN, scale=0.1)
    round_trip = random.permutation(USED)
    head[round_trip] = embedding[np.roll(round_trip, 1)]
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head,
               "model.norm.weight": draw(HIDDEN, scale=0.1, around=1.0)}  # fmt: skip
    for layer in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (4 * head_dim, HIDDEN), "self_attn.k_proj": (2 * head_dim, HIDDEN),
            "self_attn.v_proj": (2 * head_dim, HIDDEN), "self_attn.o_proj": (HIDDEN, 4 * head_dim),
            "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
        }  # fmt: skip
        parts = {f"{name}.weight": draw(*shape, scale=scale) for name, shape in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            parts[f"{name}.weight"] = draw(HIDDEN, scale=0.1, around=1.0)
        for name in ("q_norm", "k_norm") if family == "qwen3" else ():
            parts[f"self_attn.{name}.weight"] = draw(head_dim, scale=0.1, around=1.0)
        for name in ("q_proj", "k_proj", "v_proj") if family == "qwen2" else ():
            parts[f"self_attn.{name}.bias"] = draw(shapes[f"self_attn.{name}"][0], scale=0.2)
        tensors |= {f"model.layers.{layer}.{name}": tensor for name, tensor in parts.items()}
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    config = {
        "model_type": family, "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512, "rope_theta": 1000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    }  # fmt: skip
    if family == "qwen3":
        config["head_dim"] = head_dim
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def load_target(directory: Path) -> TorchTarget:
    return TorchTarget.load(directory, context_length=256, device="cpu")


def weights_of(directory: Path) -> TargetWeights:
    tensors = load_file(directory / "model.safetensors")

    def layer(number: int) -> dict[str, Tensor]:
        prefix = f"model.layers.{number}."
        return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    return TargetWeights(
        directory.name, json.loads((directory / "config.json").read_text()), tensors["model.embed_tokens.weight"],
        tensors["lm_head.weight"], tensors["model.norm.weight"], layer, torch.ones(VOCABULARY, dtype=torch.int64),
    )  # fmt: skip


def write(target: TorchTarget, prompt: Sequence[int], length: int, first: int | None = None) -> list[int]:
    """The target's likeliest answer of ``length`` tokens; with ``first``, one that begins with that token."""
    begun = [] if first is None else [first]
    asked = PromptInput((*prompt, *begun))
    target.truncate(0)
    steps = decode(target, None, asked, SamplingParams(), Stopping(length - len(begun)), RULE)
    return begun + [token for step in steps for token in step.tokens]


def forest(target: TorchTarget, answers: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]) -> Batch:
    """Each prompt with its answers; whatever answers and prompts have in common is kept once."""
    rows: dict[tuple[int, ...], int] = {}  # what has been read, its last token included → its row
    states: list[Tensor] = []
    paths = []
    for prompt, written in answers:
        for answer in written:
            text = (*prompt, *answer)
            target.truncate(0)
            target.tap(range(LAYERS + 1))
            features = target.extend(PromptInput(text)).features(range(len(text)))
            for end in range(1, len(text) + 1):
                if text[:end] not in rows:
                    rows[text[:end]] = len(rows)
                    states.append(features[end - 1])
            paths.append(Answer(torch.tensor([rows[text[:end]] for end in range(1, len(text) + 1)]), len(prompt)))
    n = len(rows)
    seen = torch.zeros(n, n, dtype=torch.bool)
    for text, row in rows.items():
        seen[row, [rows[text[:end]] for end in range(1, len(text) + 1)]] = True
    features = torch.stack(states)
    return Batch(
        ids=torch.tensor([text[-1] for text in rows]),
        positions=torch.tensor([len(text) - 1 for text in rows]),
        previous=torch.tensor([rows.get(text[:-1], -1) for text in rows]),
        seen=seen,
        features={layer: features[:, layer].clone() for layer in range(LAYERS + 1)},
        paths=paths,
    )


def answered(target: TorchTarget, prompts: Sequence[Sequence[int]] = PROMPTS, length: int = 24) -> Batch:
    """Two answers to each prompt, of different lengths, the second with another first token."""
    return forest(target, [(p, [write(target, p, length), write(target, p, length - 5, first=p[1])]) for p in prompts])


def text_of(batch: Batch, path: Answer) -> list[int]:
    return batch.ids[path.rows].tolist()


def drafted_right(target: TorchTarget, drafter: Drafter, batch: Batch, depth: int) -> Tensor:
    """bool [anchors, depth]: draft k and all before it are the answer's, drafting greedily behind every anchor."""
    found = []
    sampler = RunDraftSampler(RULE, SamplingParams(), RandomStream(0))
    for path in batch.paths:
        text = text_of(batch, path)
        target.truncate(0)
        target.tap(drafter.requirements.feature_layers)
        features = target.extend(PromptInput(tuple(text))).features(range(len(text)))
        drafter.truncate(0)
        at = 0
        for anchor in range(path.answer, len(text) - 1):
            drafter.observe(text[at:anchor], None if features is None else features[at:anchor])
            at = anchor
            sampler.anchor_position = anchor
            tokens = drafter.draft((text[anchor],), depth, sampler).tokens.tolist()[1:]
            assert len(tokens) == depth
            true = [*text[anchor + 1 : anchor + 1 + depth], *[-1] * depth][:depth]
            found.append([a == b for a, b in zip(tokens, true, strict=True)])
    return torch.tensor(found).long().cumprod(1).bool()


def tokens_per_cycle(target: TorchTarget, drafter: Drafter, text: Sequence[int], answer: int, depth: int) -> list[int]:
    """Of decoding ``text`` from index ``answer`` on once more, drafting ``depth`` tokens; the prefill comes first."""
    target.truncate(0)
    drafter.truncate(0)
    stopping, prompt = Stopping(len(text) - answer), PromptInput(tuple(text[:answer]))
    steps = list(decode(target, drafter, prompt, SamplingParams(), stopping, RULE, FixedBudget(depth)))
    assert [token for step in steps for token in step.tokens] == list(text[answer:])
    return [len(step.tokens) for step in steps]


def learn(trainee: Trainee, batch: Batch, steps: int, rate: float) -> None:
    optimizer = torch.optim.Adam(trainee.net.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        loss = trainee.loss(batch, generator)
        optimizer.zero_grad()
        (loss.sum / loss.count).backward()
        optimizer.step()
