"""Multi-token prediction: published modules load as they are and say what Hugging Face's code says of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from drafters.checkpoint import CheckpointError, detect
from drafters.mtp import MtpDrafter, ParallelMtpDrafter
from drafters.nets.mtp_layouts import load_mtp, load_parallel_heads
from spec_planner.decoding.contracts import Drafter, Incompatible, PromptInput, check_compatible
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.random_stream import Purpose, RandomStream
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.decoding.stopping import Stopping
from spec_planner.engines.torch_target import TorchTarget
from tests.drafters.mtp_support import (
    CONFIGS,
    GOLDEN,
    HIDDEN,
    LAYERS,
    PROBED,
    STEPS,
    Allowed,
    Draw,
    Lender,
    Recording,
    check_rounds,
    dense_layer,
    parallel_heads,
    published,
    sampler_of,
    saved,
    text_and_states,
)
from tests.models import make_tiny_model


@pytest.mark.parametrize("form", CONFIGS)
def test_the_reference_says_the_same(form, tmp_path):
    directory = saved(tmp_path, published(form), CONFIGS[form])
    assert detect(directory) == "mtp"
    net = load_mtp(directory, recursion="raw" if form.endswith("raw") else "normed")
    assert len(net) == (2 if form == "deepseek two modules" else 1)
    check_rounds(MtpDrafter(net, Lender()), json.loads(GOLDEN.read_text())[form], STEPS)


def test_the_layout_of_speculators(tmp_path):
    """MiMo's names over Qwen's modules, the embedding first: the same modules as in Qwen's own layout."""
    renames = {
        "mtp.fc.": "input_proj.", "mtp.norm.": "final_layernorm.", "mtp.layers.0.": "",
        "mtp.pre_fc_norm_hidden.": "hidden_layernorm.", "mtp.pre_fc_norm_embedding.": "token_layernorm.",
    }  # fmt: skip
    tensors = {}
    for name, tensor in published("qwen3_5").items():
        for old, new in renames.items():
            if name.startswith(old):
                tensors[f"mtp_layers.0.{new}{name[len(old) :]}"] = tensor
    config = {"speculators_model_type": "mtp", "transformer_layer_config": CONFIGS["qwen3_5"]["text_config"]}
    net = load_mtp(saved(tmp_path, tensors, config))
    check_rounds(MtpDrafter(net, Lender()), json.loads(GOLDEN.read_text())["qwen3_5"], STEPS)


def test_coupled_drafts_use_the_noise_of_their_own_position(tmp_path):
    """So a module whose laws are the target's guesses what the target will draw."""
    net = load_mtp(saved(tmp_path, published("mimo"), CONFIGS["mimo"]))
    drafter, (ids, states) = MtpDrafter(net, Lender()), text_and_states()
    drafter.observe(ids[:9], states[:9, None])
    sampler = sampler_of(1.0, at=9, kind=Recording)
    tree = drafter.draft((3, 4), 3, sampler)
    said = [RandomStream(3).draw(law, Purpose.TARGET, 11 + step) for step, law in enumerate(sampler.laws)]
    assert tree.tokens.tolist() == [3, 4, *said] and len(said) == 3


def test_the_reference_says_the_same_of_parallel_heads(tmp_path):
    params, tensors = parallel_heads()
    net = load_parallel_heads(saved(tmp_path, tensors, params, "params.json"))
    drafter = ParallelMtpDrafter(net, Lender())
    assert drafter.requirements.feature_layers == (LAYERS - 1,)
    check_rounds(drafter, json.loads(GOLDEN.read_text())["parallel"], STEPS)


# On a real, if tiny, target: hidden 64, vocabulary 320, 2 layers.

PROMPT = tuple(range(3, 150, 4))
KINDS = ["one module, chain", "one module, comb", "two modules, chain", "two modules, comb",
         "parallel, chain", "parallel, best-first"]  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> TorchTarget:
    directory = make_tiny_model(tmp_path_factory.mktemp("mtp") / "target", "qwen3", num_layers=2, tied=False)
    return TorchTarget.load(directory, context_length=256, device="cpu")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    """Modules of the target's own kind, dense, in DeepSeek's layout, and extra heads under Hugging Face's names."""
    folder = tmp_path_factory.mktemp("modules")
    config = {"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
              "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}  # fmt: skip
    made = {}
    for number, word in ((1, "one"), (2, "two")):
        draw = Draw(number)
        for depth in range(number):
            prefix = f"model.layers.{2 + depth}."
            draw(f"{prefix}eh_proj.weight", 64, 128)
            for norm in ("enorm", "hnorm", "shared_head.norm"):
                draw(f"{prefix}{norm}.weight", 64, around=1.0)
            dense_layer(draw, prefix)
        made[word] = saved(folder / word, draw.tensors, config)
    draw = Draw(3)
    for head in range(3):
        dense_layer(draw, f"extra_heads.{head}.")
    made["parallel"] = saved(folder / "parallel", draw.tensors, config)
    return made


def make(kind: str, checkpoints: dict[str, Path], target) -> MtpDrafter | ParallelMtpDrafter:
    word, how = kind.replace(" modules", "").replace(" module", "").split(", ")
    if word == "parallel":
        return ParallelMtpDrafter.load(checkpoints[word], target, how)
    return MtpDrafter.load(checkpoints[word], target, siblings=3 if how == "comb" else 1)


def run(target, drafter, temperature=0.0, rule="drafter-invariant", budget=7, length=24, constraint=None):
    target.truncate(0)
    if drafter is not None:
        drafter.truncate(0)
    sampling, prompt = SamplingParams(temperature, seed=1), PromptInput(PROMPT)
    steps = list(
        decode(
            target, drafter, prompt, sampling, Stopping(length), RULES[rule], FixedBudget(budget), constraint=constraint
        )
    )
    return [token for step in steps for token in step.tokens], steps


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_targets_tokens_stay_the_same(target, checkpoints, kind, temperature):
    drafter = make(kind, checkpoints, target)
    check_compatible(target.info, drafter)
    assert isinstance(drafter, Drafter)
    plain, _ = run(target, None, temperature)
    for _ in range(2):
        drafted, steps = run(target, drafter, temperature)
        assert drafted == plain and all(step.metrics.num_drafted for step in steps[1:-3])


@pytest.mark.parametrize("rule", ["rejection", "block", "recursive-rejection", "traversal", "point-mass"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_can_judge_the_drafts(target, checkpoints, kind, rule):
    drafter = make(kind, checkpoints, target)
    if RULES[rule].chains_only and drafter.requirements.draws_trees:
        with pytest.raises(Incompatible):
            run(target, drafter, 1.0, rule)
    else:
        assert len(run(target, drafter, 1.0, rule)[0]) == 24


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_under_a_constraint_too(target, checkpoints, kind, temperature):
    plain, _ = run(target, None, temperature, constraint=Allowed())
    drafted, _ = run(target, make(kind, checkpoints, target), temperature, constraint=Allowed())
    assert drafted == plain and all(token % 2 == 0 for token in plain)


@pytest.mark.parametrize("rule", ["drafter-invariant", "recursive-rejection"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_depends_on_the_committed_context_alone(target, checkpoints, kind, rule):
    drafter = make(kind, checkpoints, target)
    target.truncate(0)
    target.tap(drafter.requirements.feature_layers)
    context = [*PROMPT, *PROMPT[::-1]]
    features = target.extend(PromptInput(tuple(context))).features(range(len(context)))
    for length in (1, 2, 3, 40, len(context)):
        fresh, used = make(kind, checkpoints, target), drafter
        fresh.observe(context[:length], features[:length])
        used.truncate(0)
        used.observe((1, 2, 3, 4), features[4:8] + 1)
        used.draft((1,), 5, sampler_of(1.0, rule=rule))
        used.truncate(1)
        used.truncate(0)
        cuts = sorted({cut for cut in (1, 2, 5, 39) if cut < length})
        for start, end in zip([0, *cuts], [*cuts, length], strict=True):
            used.observe(context[start:end], features[start:end])
            used.draft((2, 7), 4, sampler_of(1.0, at=end, rule=rule))
            used.draft((9,), 3, sampler_of(1.0, at=end, rule=rule))
        used.observe((9, 9, 8, 8), features[:4])
        used.draft((2,), 4, sampler_of(1.0, at=length + 4, rule=rule))
        used.truncate(length)
        expected, again = (
            each.draft((5,), 6, sampler_of(1.0, at=length, rule=rule, kind=Recording)) for each in (fresh, used)
        )
        assert again.tokens.tolist() == expected.tokens.tolist()
        assert again.parents.tolist() == expected.parents.tolist() and again.proposal is expected.proposal
        assert 0 < expected.num_draft_tokens <= 6


def test_a_draft_goes_on_from_the_stem_and_keeps_to_its_budget(target, checkpoints):
    for kind in KINDS:
        drafter = make(kind, checkpoints, target)
        assert drafter.draft((5, 6), 4, sampler_of()).tokens.tolist() == [5, 6]  # nothing observed
        target.truncate(0)
        target.tap(drafter.requirements.feature_layers)
        drafter.observe(PROMPT, target.extend(PromptInput(PROMPT)).features(range(len(PROMPT))))
        for forced in range(4):
            for budget in (1, 2, 6, 20):
                stem = (5, 6, 7, 8)[: forced + 1]
                tree = drafter.draft(stem, budget, sampler_of(at=len(PROMPT)))
                assert tuple(tree.tokens[: len(stem)].tolist()) == stem and tree.parents[
                    1 : len(stem)
                ].tolist() == list(range(forced))
                assert tree.num_draft_tokens - forced <= budget
                reach = {"one": 99, "two": 2 - forced, "par": 3 - forced}[kind[:3]]
                assert (tree.num_draft_tokens == forced) == (reach < 1)
                assert tree.is_chain or drafter.requirements.draws_trees


def test_a_head_that_is_the_targets_last_layer_says_what_the_target_says(target, checkpoints):
    """So z is what enters the last layer, and a head's result goes through the target's final norm and head."""
    drafter = make("parallel, chain", checkpoints, target)
    layer, block = target._decoder.layers[-1], drafter._net.heads[0]
    with torch.no_grad():
        for linear, rows in zip(("q_proj", "k_proj", "v_proj"), layer.qkv.split((96, 48, 48)), strict=True):
            getattr(block.self_attn, linear).weight.copy_(rows)
        for linear, rows in zip(("gate_proj", "up_proj"), layer.gate_up.chunk(2), strict=True):
            getattr(block.mlp, linear).weight.copy_(rows)
        block.mlp.down_proj.weight.copy_(layer.down)
        block.self_attn.o_proj.weight.copy_(layer.out)
        block.self_attn.q_norm.weight.copy_(layer.q_norm)
        block.self_attn.k_norm.weight.copy_(layer.k_norm)
        block.input_layernorm.weight.copy_(layer.input_norm)
        block.post_attention_layernorm.weight.copy_(layer.post_norm)
    target.truncate(0)
    target.tap(drafter.requirements.feature_layers)
    output = target.extend(PromptInput(PROMPT))
    drafter.observe(PROMPT, output.features(range(len(PROMPT))))
    sampler = sampler_of(at=len(PROMPT), kind=Recording)
    drafter.draft((5,), 1, sampler)
    np.testing.assert_allclose(sampler.seen[0], output.logits_row(0)[PROBED], atol=1e-3)


def test_what_cannot_be_used_is_said(tmp_path, target):
    tensors = published("glm")
    only_target = {name: tensor for name, tensor in tensors.items() if ".layers.2." not in name}
    with pytest.raises(CheckpointError, match="holds no MTP modules"):
        load_mtp(saved(tmp_path / "none", only_target, CONFIGS["glm"]))
    with pytest.raises(CheckpointError, match="holds no extra_heads"):
        load_parallel_heads(tmp_path / "none")
    without = {name: tensor for name, tensor in tensors.items() if "experts.3.up_proj" not in name}
    with pytest.raises(CheckpointError, match="missing .*experts.3.up_proj"):
        load_mtp(saved(tmp_path / "part", without, CONFIGS["glm"]))
    broken = {name: value for name, value in CONFIGS["glm"].items() if name != "num_experts_per_tok"}
    with pytest.raises(CheckpointError, match="num_experts_per_tok"):
        load_mtp(saved(tmp_path / "config", tensors, broken))
    params, heads = parallel_heads()
    with pytest.raises(CheckpointError, match="params.json does not describe a model .*n_heads"):
        load_parallel_heads(saved(tmp_path / "meta", heads, {"dim": params["dim"]}, "params.json"))
    with pytest.raises(CheckpointError, match="lack what a layer needs .*num_attention_heads"):
        load_parallel_heads(saved(tmp_path / "plain", heads, {"hidden_size": HIDDEN}))
    with pytest.raises(ValueError, match="at least 1 candidate"):
        MtpDrafter(load_mtp(saved(tmp_path / "whole", tensors, CONFIGS["glm"])), Lender(), siblings=0)
    drafter = MtpDrafter.load(tmp_path / "whole", Lender())
    with pytest.raises(Incompatible, match="made for a vocabulary of 96"):
        check_compatible(target.info, drafter)
    with pytest.raises(Incompatible, match="hidden states"):
        drafter.observe((1,), None)


def test_bytes_own_and_borrowed(target, checkpoints):
    block = (64 * 96 * 2 + 64 * 48 * 2 + 3 * 64 * 96 + 2 * 64 + 2 * 24) * 4
    head = 320 * 64 * 4
    drafter = make("two modules, chain", checkpoints, target)
    assert drafter.own_bytes == 2 * (block + (128 * 64 + 3 * 64) * 4) and drafter.borrowed_bytes == 2 * head
    parallel = make("parallel, chain", checkpoints, target)
    assert parallel.own_bytes == 3 * block and parallel.borrowed_bytes == head + 64 * 4
    parallel.observe((1, 2), torch.ones(2, 1, 64))
    parallel.draft((3,), 1, sampler_of())
    assert parallel.own_bytes == 3 * block + 2 * 64 * 4 + 3 * 2 * 64 * 48 * 4  # states, and keys and values in 64 slots
    parallel.close()
    drafter.close()
