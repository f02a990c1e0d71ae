"""What the tests of EAGLE and DFlash in training share: a made-up language, a real target's batches, the comparison of
what a trainee says of itself with what the drafter does once it is stored and loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from drafters.checkpoint import read_tensors
from drafters.registry import load_drafter
from drafters.training.batch import Batch, Score, TargetWeights
from drafters.training.batch import Path as AnswerPath
from spec_planner.decoding.contracts import PromptInput
from spec_planner.engines.torch_target import TorchTarget
from tests.drafters.dflash_support import Recording
from tests.models import make_tiny_model

WORDS, WIDTH, LAYERS = 40, 32, 8
CYCLE = 12  # words of the language; the other tokens stand in prompts alone


def forest(paths: Sequence[tuple[Sequence[int], int]], states: dict[tuple[int, ...], dict[int, torch.Tensor]]) -> Batch:
    """``paths``: ids and where the answer begins; ``states``: hidden states [d] by layer after each beginning."""
    rows = {beginning: row for row, beginning in enumerate(states)}
    previous = torch.tensor([rows[beginning[:-1]] if len(beginning) > 1 else -1 for beginning in rows])
    seen = torch.eye(len(rows), dtype=torch.bool)
    for row, before in enumerate(previous.tolist()):  # a beginning stands before what goes on from it
        if before >= 0:
            seen[row] |= seen[before]
    layers = next(iter(states.values()))
    return Batch(
        ids=torch.tensor([beginning[-1] for beginning in rows]),
        positions=torch.tensor([len(beginning) - 1 for beginning in rows]),
        previous=previous,
        seen=seen,
        features={layer: torch.stack([state[layer] for state in states.values()]) for layer in layers},
        paths=[
            AnswerPath(torch.tensor([rows[tuple(ids[: i + 1])] for i in range(len(ids))]), answer)
            for ids, answer in paths
        ],
    )


def toy_weights() -> TargetWeights:
    """A target that is no network: ``toy_batch`` makes up what it would think."""
    generator = torch.Generator().manual_seed(1)
    embedding = torch.randn(WORDS, WIDTH, generator=generator)
    config = {
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "bos_token_id": WORDS - 2,
    }
    counts = torch.zeros(WORDS, dtype=torch.long)
    counts[:CYCLE] = 5
    shapes = {
        "self_attn.o_proj.weight": (WIDTH, WIDTH),
        "mlp.gate_proj.weight": (48, WIDTH),
        "mlp.up_proj.weight": (48, WIDTH),
        "mlp.down_proj.weight": (WIDTH, 48),
        "post_attention_layernorm.weight": (WIDTH,),
    }
    layer = {name: 0.1 * torch.randn(shape, generator=generator) + len(shape) % 2 for name, shape in shapes.items()}
    return TargetWeights("toy", config, embedding, embedding, torch.ones(WIDTH), lambda _: layer, counts)


def toy_batch(weights: TargetWeights, seed: int, answers: int = 6) -> Batch:
    """Answers go round the cycle 0, 1, …, from where the prompt's last word says; their beginnings are shared."""
    generator = np.random.default_rng(seed)
    prompt = generator.integers(CYCLE, WORDS - 3, 5).tolist()
    paths, states = [], {}
    for _ in range(answers):
        start, length = int(generator.integers(0, CYCLE)), int(generator.integers(6, 16))
        ids = [*prompt, CYCLE + start, *((start + i) % CYCLE for i in range(length))]
        paths.append((ids, len(prompt) + 1))
        for end in range(1, len(ids) + 1):
            word = ids[end - 1]
            coming = (word + 1) % CYCLE if word < CYCLE else word - CYCLE
            states[tuple(ids[:end])] = {
                layer: weights.embedding[coming if layer == LAYERS else word] for layer in range(LAYERS + 1)
            }
    return forest(paths, states)


def learn(trainee, weights: TargetWeights, steps: int, rate: float = 3e-3) -> tuple[float, float]:
    """Acceptance length on unseen prompts before and after a few dozen steps."""
    optimizer = torch.optim.AdamW(trainee.net.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(2)
    unseen = toy_batch(weights, 1000, answers=9)

    def acceptance() -> float:
        score = Score()
        with torch.no_grad():
            score.add(trainee.loss(unseen))
        return score.acceptance_length

    before = acceptance()
    for step in range(steps):
        loss = trainee.loss(toy_batch(weights, step), generator)
        optimizer.zero_grad()
        (loss.sum / loss.count).backward()
        optimizer.step()
    return before, acceptance()


def check_gradients(trainee, weights: TargetWeights, draws: bool = True) -> None:
    """Every parameter moves the loss, the same batch gives the same loss, and what is borrowed stays as it was.

    draws: the method leaves something to chance in training.
    """
    borrowed = weights.embedding.clone()
    batch = toy_batch(weights, 3)
    first, again = trainee.loss(batch), trainee.loss(batch)
    assert torch.equal(first.sum, again.sum) and torch.equal(first.right, again.right) and first.count == again.count
    assert first.right.shape == first.judged.shape == (len(batch.windows(trainee.depth)), trainee.depth)
    drawn = [trainee.loss(batch, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6)]
    assert torch.equal(drawn[0].sum, drawn[1].sum) and torch.equal(drawn[0].sum, drawn[2].sum) == (not draws)
    drawn[0].sum.backward()
    still = [name for name, p in trainee.net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not still and torch.equal(weights.embedding, borrowed) and weights.embedding.grad is None


def real_target(directory: Path, tied: bool = False) -> tuple[TorchTarget, TargetWeights]:
    """A small random Llama, and what its drafters learn from."""
    sizes = {"hidden_size": WIDTH, "vocab_size": WORDS, "intermediate_size": 48, "rope_theta": 1e3}
    make_tiny_model(directory, "llama", seed=4, num_layers=LAYERS, tied=tied, **sizes)
    target = TorchTarget.load(directory, context_length=160, device="cpu")
    tensors = read_tensors(directory)

    def layer(number: int) -> dict[str, torch.Tensor]:
        prefix = f"model.layers.{number}."
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    counts = torch.ones(WORDS, dtype=torch.long)
    counts[WORDS - 6 :] = 0
    config = json.loads((directory / "config.json").read_text())
    lent = (target.lend(name) for name in ("embedding", "head", "final_norm"))
    return target, TargetWeights("tiny", config, *lent, layer, counts)


def think(target: TorchTarget, ids: Sequence[int], layers: Sequence[int]) -> torch.Tensor:
    """Hidden states [n, layers, d]."""
    target.tap(layers)
    target.truncate(0)
    return target.extend(PromptInput(tuple(ids))).features(range(len(ids)))


def draft_behind(drafter, ids: Sequence[int], states: torch.Tensor, budget: int) -> list[int]:
    """The greedy chain behind the anchor, the last of ``ids``, whose own hidden state the drafter is not shown."""
    drafter.truncate(0)
    drafter.observe(ids[:-1], states[: len(ids) - 1])
    tree = drafter.draft((ids[-1],), budget, Recording(position=len(ids) - 1))
    return tree.tokens[1:].tolist()


def check_alignment(trainee, target: TorchTarget, directory: Path) -> None:
    """Stored and loaded, the drafter's k-th word is the text's exactly where the trainee says it is.

    The texts are made of the drafter's own guesses, so that many are right, and of stray words; they part after a
    common prompt and, two by two, in the middle of an answer.
    """
    with torch.no_grad():
        for name, parameter in trainee.net.named_parameters():
            # Attention as sharp as a trained one's, or a wrong position would not show; and weights as they are stored.
            sharp = 4.0 if any(part in name for part in ("q_proj", "k_proj", "o_proj", "q_norm", "k_norm")) else 1.0
            parameter.copy_((sharp * parameter).half().float())
    trainee.save(directory, {"made_by": "test"})
    assert json.loads((directory / "config.json").read_text())["spec_planner"] == {"made_by": "test"}
    drafter = load_drafter(directory, target, 1)
    layers = drafter.requirements.feature_layers
    assert set(layers) <= set(trainee.feature_layers)
    generator = np.random.default_rng(0)

    def go_on(ids: list[int]) -> list[int]:
        drafted = draft_behind(drafter, ids, think(target, ids, layers), trainee.depth)
        kept = drafted[: int(generator.integers(0, trainee.depth + 1))]
        return [*ids, *kept, int(generator.integers(0, WORDS - 6))]

    prompt, paths = generator.integers(0, WORDS - 6, 6).tolist(), []
    for ending in (7, 8, 0):
        ids = [*prompt, ending] if ending else [*prompt[:3], 9]
        answer = len(ids)
        while len(ids) < answer + 8:
            ids = go_on(ids)
        for _ in range(2):
            branch = ids
            while len(branch) < answer + 20:
                branch = go_on(branch)
            paths.append((branch, answer))
    states: dict[tuple[int, ...], dict[int, torch.Tensor]] = {}
    for ids, _ in paths:
        rows = think(target, ids, trainee.feature_layers)
        for end, row in enumerate(rows, start=1):
            states.setdefault(tuple(ids[:end]), dict(zip(trainee.feature_layers, row, strict=True)))
    batch = forest(paths, states)
    with torch.no_grad():
        loss = trainee.loss(batch)

    found, anchors = [], [(ids, t) for ids, answer in paths for t in range(answer, len(ids) - 1)]
    assert loss.right.shape == (len(anchors), trainee.depth)
    by_path = {tuple(ids): batch.stacked(layers)[path.rows] for (ids, _), path in zip(paths, batch.paths, strict=True)}
    for (ids, t), right, judged in zip(anchors, loss.right.tolist(), loss.judged.tolist(), strict=True):
        drafted = draft_behind(drafter, ids[: t + 1], by_path[tuple(ids)], trainee.depth)
        truth = ids[t + 1 : t + 1 + trainee.depth]
        assert judged == [k < len(truth) for k in range(trainee.depth)]
        for k, (word, true_word) in enumerate(zip(drafted, truth, strict=False)):
            assert right[k] == (word == true_word), (t, k)
            found.append((k, right[k]))
            if word != true_word:
                break
    for k in range(trainee.depth):  # it was put to the test, at every depth
        assert (k, True) in found and (k, False) in found
