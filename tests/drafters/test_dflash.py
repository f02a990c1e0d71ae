"""DFlash: published layouts, golden numbers, the shape of a draft, and that the target's tokens never change.

The checkpoints are made here, by seed. ``tests/golden/dflash*.json`` hold what the public implementation computes on
the same weights; how they were made stands in ``tests/golden/make_dflash.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drafters.checkpoint import CheckpointError, detect
from drafters.dflash import DFlashDrafter
from drafters.nets.dflash_net import load_dflash, parse_dflash_config
from spec_planner.decoding.contracts import Drafter, Incompatible, PromptInput
from spec_planner.decoding.draft_sampler import RunDraftSampler
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.random_stream import RandomStream
from spec_planner.decoding.sampling import Law, SamplingParams
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


def small(tmp_path: Path, shape="chain", **config) -> DFlashDrafter:
    net = load_dflash(write_dflash(tmp_path / "small", {**SMALL, **config}))
    return DFlashDrafter(net, *lent(), shape=shape)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_the_public_implementation(tmp_path, variant):
    """Over several rounds: a stale, shifted or kept row of the cache would show in the next one."""
    drafter = small(tmp_path, **VARIANTS[variant])
    expected = json.loads((GOLDEN / f"dflash_{variant}.json").read_text())["rounds"]
    position = 0
    for (features, ids, anchor), golden in zip(rounds(), expected, strict=True):
        drafter.observe(ids, features)
        position += len(ids)
        sampler = Recording(position=position)
        tree = drafter.draft((anchor,), BLOCK - 1, sampler)
        np.testing.assert_allclose(sampler.seen, golden["logits"], atol=1e-4)
        assert tree.tokens[1:].tolist() == np.argmax(golden["logits"], axis=-1).tolist()
        drafter.draft((anchor, 3, 4), 2, Recording(position=position))  # leaves no trace


def test_config_of_older_and_newer_directories():
    older = parse_dflash_config(SMALL)
    assert (older.block_size, older.feature_layers, older.windows) == (BLOCK, (2, 4, 5), (None,) * 3)
    inner = {**SMALL["dflash_config"], "block_size": 8}
    newer = {**SMALL, "dflash_config": inner, "rope_theta": None, "rope_parameters": {"rope_theta": 1e7}}
    assert parse_dflash_config(newer).block_size == 8  # the inner value wins
    assert parse_dflash_config({**SMALL, **VARIANTS["causal_window"]}).causal == (True, True, False)
    assert parse_dflash_config({**SMALL, **VARIANTS["open_window"]}).causal == (False,) * 3
    without = {key: value for key, value in SLIDING.items() if key != "use_sliding_window"}
    assert parse_dflash_config({**SMALL, **without}).windows == (None,) * 3
    jetspec = {**SMALL, "dflash_config": {**SMALL["dflash_config"], "causal_head": True, "draft_shift": False}}
    assert parse_dflash_config(jetspec).causal == (True,) * 3


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


def test_speculators_directories_load_too(tmp_path):
    first = small(tmp_path)
    embedding, head = lent()
    copies = {"embed_tokens.weight": embedding.clone(), "lm_head.weight": head.clone()}
    directory = write_dflash(tmp_path / "exported", exported(), shapes=lambda _: shapes_of(SMALL), extra=copies)
    second = DFlashDrafter(load_dflash(directory), embedding, head)
    assert detect(directory) == detect(tmp_path / "small") == "dflash"
    assert first.requirements == second.requirements and first.own_bytes == second.own_bytes
    for drafter in (first, second):
        drafter.observe([1] * 11, rounds()[0][0])
    samplers = Recording(position=11), Recording(position=11)
    trees = [drafter.draft((5,), 5, sampler) for drafter, sampler in zip((first, second), samplers, strict=True)]
    np.testing.assert_array_equal(samplers[0].seen, samplers[1].seen)
    assert trees[0].tokens.tolist() == trees[1].tokens.tolist()


def test_speculators_windows_start_at_the_anchor(tmp_path):
    layer = {"layer_types": ["sliding_attention"] * LAYERS, **SLIDING}
    config = parse_dflash_config(exported(layer=layer))
    assert config.causal == (True,) * 3 and config.windows == (7,) * 3 and config.window_from_anchor
    assert parse_dflash_config(exported(layer=layer, sliding_window_non_causal=True)).causal == (False,) * 3
    net = load_dflash(write_dflash(tmp_path, exported(layer=layer), shapes=lambda _: shapes_of(SMALL)))
    mask = net._mask(torch.arange(10, 14), 10, 1, 7, True)
    assert mask.tolist() == [[4 <= slot <= row for slot in range(14)] for row in range(10, 14)]


def test_a_reduced_vocabulary_is_kept_to(tmp_path):
    reachable = torch.arange(V) % 3 == 0
    maps = {"t2d": reachable, "d2t": torch.arange(16) * 2}
    config = exported(draft_vocab_size=16)
    directory = write_dflash(tmp_path, config, shapes=lambda _: shapes_of(SMALL), extra=maps)
    drafter = DFlashDrafter(load_dflash(directory), *lent())
    drafter.observe([1] * 11, rounds()[0][0])
    sampler = Recording(1.0, "rejection", 11)
    tree = drafter.draft((5,), 5, sampler)
    assert all(reachable[law.ids].all() for law in tree.draft_laws if law)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dflash_config": {"target_layer_ids": [1]}}, "mask_token_id"),
        ({"dflash_config": {"mask_token_id": MASK}}, "target_layer_ids"),
        ({"shift_label": True}, "shift_label"),
        ({"block_size": 1}, "at least 2 slots"),
        ({"hidden_size": 64}, "expected"),
        ({"num_hidden_layers": 2}, "unexpected layers.2"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
    ],
)
def test_a_directory_that_does_not_fit_says_so(tmp_path, change, said):
    directory = write_dflash(tmp_path, SMALL)
    (directory / "config.json").write_text(json.dumps({**SMALL, **change}))
    with pytest.raises((CheckpointError, ValueError), match=said):
        load_dflash(directory)


def test_weights_are_borrowed_and_counted(tmp_path):
    directory = write_dflash(tmp_path, SMALL)
    embedding, head = lent()
    drafter = DFlashDrafter(load_dflash(directory), embedding, head)
    weights = sum(int(np.prod(shape)) for shape in shapes_of(SMALL).values()) * 4
    assert drafter.own_bytes == weights and drafter.borrowed_bytes == 2 * V * D * 4
    assert DFlashDrafter(load_dflash(directory), embedding, embedding).borrowed_bytes == V * D * 4
    assert drafter._head.data_ptr() == head.data_ptr() and drafter._embedding.data_ptr() == embedding.data_ptr()
    drafter.observe([1] * 11, rounds()[0][0])
    assert drafter.own_bytes > weights
    assert isinstance(drafter, Drafter)
    with pytest.raises(Incompatible, match="hidden states"):
        drafter.observe([1], None)
    with pytest.raises(Incompatible, match="trained for this target"):
        DFlashDrafter(load_dflash(directory), embedding[:-1], head)
    drafter.close()


def test_layers_out_of_order_are_read_in_the_order_of_fc(tmp_path):
    drafter = small(tmp_path)
    mixed = small(tmp_path, dflash_config={"mask_token_id": MASK, "target_layer_ids": [4, 1, 3]})
    assert mixed.requirements.feature_layers == drafter.requirements.feature_layers == (2, 4, 5)
    features = rounds()[0][0]
    drafter.observe([1] * 11, features)
    mixed.observe([1] * 11, features[:, [1, 2, 0]])  # a target gives layers in ascending order: here 4→2nd of fc …
    samplers = Recording(position=11), Recording(position=11)
    drafter.draft((5,), 5, samplers[0])
    mixed.draft((5,), 5, samplers[1])
    np.testing.assert_allclose(samplers[0].seen, samplers[1].seen, atol=1e-5)


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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", ["chain", "best-first"])
def test_a_draft_depends_on_the_committed_context_alone(tmp_path, shape, temperature):
    net = load_dflash(write_dflash(tmp_path, SMALL))
    check_context_alone(lambda: DFlashDrafter(net, *lent(), shape=shape), temperature)


def test_a_stem_is_seen_as_rows_before_the_masks(tmp_path):
    """Slots follow the last forced token; the ones before it stand where they stand, without hidden states."""
    drafter = small(tmp_path)
    features, ids, _ = rounds()[0]
    drafter.observe(ids, features)
    stem = (5, 9, 2)
    sampler = Recording(position=11)
    tree = drafter.draft(stem, BLOCK + 3, sampler)
    assert tree.tokens[:3].tolist() == [5, 9, 2] and tree.num_nodes == 3 + BLOCK - 1 and tree.is_chain
    embedding, head = lent()
    net, cache = drafter._net, drafter._net.new_cache()
    net.follow(features, cache)
    hidden = net(embedding[[*stem, *[MASK] * (BLOCK - 1)]], cache)[3:]
    np.testing.assert_allclose(sampler.seen, net.logits(hidden, head).detach(), atol=1e-6)
    other = Recording(position=11)
    drafter.draft((6, 9, 2), BLOCK - 1, other)
    assert np.abs(np.array(sampler.seen) - other.seen).max() > 1e-3  # a forced token is not overlooked


def test_the_block_keeps_its_width_however_small_the_budget(tmp_path):
    drafter = small(tmp_path)
    drafter.observe([1] * 11, rounds()[0][0])
    wide, narrow = Recording(position=11), Recording(position=11)
    assert drafter.draft((5,), 99, wide).num_draft_tokens == BLOCK - 1
    assert drafter.draft((5,), 2, narrow).num_draft_tokens == 2
    np.testing.assert_allclose(wide.seen[:2], narrow.seen, atol=1e-6)


def test_trees_hold_the_likeliest_paths_over_the_marginals(tmp_path):
    drafter = small(tmp_path, "best-first")
    drafter.observe([1] * 11, rounds()[0][0])
    sampler = Recording(position=11)
    tree = drafter.draft((5,), 12, sampler)
    rows = [Law.from_logits(row, SamplingParams(1.0)).dense(V) for row in slots(drafter, (5,))[1]]
    values = [np.prod([rows[depth - 1][tree.tokens[node]] for node, depth in zip(branch, range(1, 9), strict=False)])
              for branch in map(branch_of(tree), range(1, tree.num_nodes))]  # fmt: skip
    assert tree.num_draft_tokens == 12
    outside = max(rows[0][[t for t in range(V) if t not in tree.tokens[list(tree.children[0])]]])
    assert min(values) >= outside and not tree.is_chain


def branch_of(tree):
    return lambda node: [int(i) for i in np.flatnonzero(tree.ancestor_mask[node]) if i]


def slots(drafter, stem) -> tuple[torch.Tensor, np.ndarray]:
    """Hidden states [B − 1, d] of the slots after ``stem`` and their logits [B − 1, V]."""
    with torch.inference_mode():
        hidden = drafter._slots(stem, 99)
        return hidden, drafter._net.logits(hidden, drafter._head).numpy()


# Against a real target: random weights, small enough in its layers that drafter and target agree now and then.


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
            *(RULES[rule], lambda: budget),
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


@pytest.mark.parametrize("constraint", [None, Forcing()], ids=["free", "constrained"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("shape", "budget"), [("chain", 5), ("best-first", 11)])
def test_the_targets_tokens_stay_the_same(tmp_path, target_directory, shape, budget, temperature, constraint):
    target = load_target(target_directory)
    drafter = DFlashDrafter.load(write_dflash(tmp_path, config_for_target()), target, shape)
    calm(drafter._net)
    for seed in (1, 2):
        plain, _ = run(target, None, temperature, "drafter-invariant", 0, seed, constraint)
        drafter.truncate(0)
        tokens, accepted = run(target, drafter, temperature, "drafter-invariant", budget, seed, constraint)
        assert tokens == plain
        assert accepted > 5  # or nothing was tested


@pytest.mark.parametrize(
    ("rule", "shape"),
    [("rejection", "chain"), ("block", "chain"), ("recursive-rejection", "best-first"), ("traversal", "best-first")],
)
def test_sampled_drafts_record_the_law_they_were_drawn_from(tmp_path, rule, shape):
    """One law per position, whatever stands before it; every token possible under it."""
    drafter = small(tmp_path, shape)
    drafter.observe([1] * 11, rounds()[0][0])
    rows = slots(drafter, (5,))[1]
    tree = drafter.draft((5,), 9, Recording(0.8, rule, 11))
    for node, children in enumerate(tree.children):
        if children:
            expected = Law.from_logits(rows[tree.depths[node]], SamplingParams(0.8))
            np.testing.assert_allclose(tree.draft_laws[node].dense(V), expected.dense(V), atol=1e-9)
