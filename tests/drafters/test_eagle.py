"""EAGLE: published layouts load as they are, drafts agree with the reference, and the target's tokens never change."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from drafters.eagle import EagleDrafter
from drafters.vocab_map import ABSENT
from spec_planner.certify.enumeration import outcome_law, target_law, total_variation
from spec_planner.decoding.contracts import PromptInput, TargetInfo
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.prefix_cache import PrefixCache
from spec_planner.decoding.sampling import Law, SamplingParams
from spec_planner.decoding.stopping import Stopping
from spec_planner.engines.table_target import TableTarget
from spec_planner.engines.torch_target import TorchTarget
from tests.decoding.toys import logits_of
from tests.drafters.test_checkpoint import EAGLE_LAYOUTS, EAGLE_SIZES, make_eagle, seeded
from tests.models import make_tiny_model

GOLDEN = Path(__file__).parents[1] / "golden"


class Lender:
    """What loading needs of a target: its sizes, and weights to lend."""

    def __init__(self, seed: int = 1, layers: int = 8, lendable: tuple[str, ...] = ("embedding", "head"),
                 vocabulary: int = EAGLE_SIZES["vocabulary"]) -> None:  # fmt: skip
        hidden = EAGLE_SIZES["hidden"]
        self.info = TargetInfo("lender", "torch", "float32", "cpu", vocabulary, hidden, layers, 512, 64, True, lendable)
        # A small head, for a flat law: where probabilities round to 1, who is likelier is a matter of rounding.
        scale = {"embedding": 1.0, "head": 0.2}
        self.weights = {name: scale[name] * seeded(seed, name, (vocabulary, hidden)) for name in lendable}

    def lend(self, name: str) -> torch.Tensor:
        return self.weights[name]


class Recorder:
    """Takes the likeliest tokens of the whole softmax, as the reference does, and keeps all logits by branch."""

    def __init__(self) -> None:
        self.logits: dict[tuple[int, ...], np.ndarray] = {}

    def law(self, logits, branch):
        self.logits[tuple(branch)] = logits
        return Law.from_logits(logits, SamplingParams(temperature=1.0))

    def pick(self, law, position, slot):
        return self.pick_siblings(law, 1, position, slot)[0]

    def pick_siblings(self, law, count, position, slot):
        return [int(token) for token in law.ids[np.argsort(-law.probabilities, kind="stable")[:count]]]

    def tree(self, tokens, parents, laws):
        return DraftTree(np.asarray(tokens), np.asarray(parents))


def features_at(start: int, count: int, num_features: int) -> torch.Tensor:
    """Made-up hidden states [count, m, d] of positions from ``start`` on, a function of the position alone."""
    shape = (num_features, EAGLE_SIZES["hidden"])
    return torch.stack([4 * seeded(7, f"feature {start + i}", shape) for i in range(count)])


def load(tmp_path: Path, layout: str, top_k: int = 1, depth: int = 8, target=None) -> EagleDrafter:
    return EagleDrafter.load(make_eagle(tmp_path / layout, layout, **EAGLE_SIZES), target or Lender(), top_k, depth)


def close_to(actual: np.ndarray, expected: list[float]) -> None:
    """The reference's logits, on the tokens the drafter has."""
    present = actual[actual > ABSENT / 2]
    np.testing.assert_allclose(present, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layout", ["eagle1", "eagle3"])
@pytest.mark.parametrize("tree", ["chain", "tree"])
def test_drafts_are_those_of_the_published_code(layout, tree, tmp_path):
    """Several verify rounds with rejections; tests/golden/make_eagle.py says how the numbers were made."""
    golden = json.loads((GOLDEN / "eagle_safeailab.json").read_text())[layout][tree]
    drafter = load(tmp_path, layout, golden["top_k"], golden["depth"])
    known, num_features = 0, 1 if layout == "eagle1" else 3
    for step in golden["rounds"]:
        for ids in (step["committed"][:2], step["committed"][2:]):  # in two pieces, or one
            drafter.observe(ids, features_at(known, len(ids), num_features) if ids else None)
            known += len(ids)
        sampler = Recorder()
        drafted = drafter.draft((step["anchor"],), golden["budget"], sampler)
        assert drafted.tokens.tolist() == step["tokens"] and drafted.parents.tolist() == step["parents"]
        assert len(step["logits"]) > 1
        for branch, logits in step["logits"]:
            close_to(sampler.logits[tuple(branch)], logits)


@pytest.mark.parametrize("layout", ["modelopt", "speculators", "speculators-3.1"])
def test_logits_are_those_of_the_trainers(layout, tmp_path):
    """A chain whose tokens are given, here as a stem: a training pass sees the same rows."""
    source = "modelopt" if layout == "modelopt" else "speculators"
    golden = json.loads((GOLDEN / f"eagle_{source}.json").read_text())[layout]
    drafter = load(tmp_path, layout)
    ids = golden["ids"]
    drafter.observe(ids, features_at(0, len(ids), 3))
    for length, logits in enumerate(golden["logits"], start=1):
        sampler, stem = Recorder(), golden["stem"][:length]
        drafter.draft(stem, 1, sampler)
        close_to(sampler.logits[tuple(stem)], logits)


class FeatureTable(TableTarget):
    """A table target with made-up hidden states, a function of the context, that lends weights."""

    def __init__(self, logits_of, lender: Lender) -> None:
        super().__init__(logits_of, lender.info.vocabulary_size)
        self.info = dataclasses.replace(
            self.info, hidden_size=lender.info.hidden_size, num_layers=8, lendable=("embedding", "head")
        )
        self.lend = lender.lend

    def extend(self, prompt):
        start = len(self._ids)
        output = super().extend(prompt)
        contexts = [tuple(self._ids[: start + i + 1]) for i in range(len(prompt.ids))]
        output.features = lambda path: self._states([contexts[row] for row in path])
        return output

    def verify(self, tree):
        before = tuple(self._ids)
        branches = [before + tuple(tree.tokens[tree.ancestor_mask[node]].tolist()) for node in range(tree.num_nodes)]
        output = super().verify(tree)
        output.features = lambda path: self._states([branches[node] for node in path])
        return output

    def tap(self, feature_layers):
        self.tapped = feature_layers

    def _states(self, contexts):
        shape = (len(self.tapped), self.info.hidden_size)
        return torch.stack([seeded(3, str(context), shape) * 4 for context in contexts])


RULES_AND_TREES = [(rule, top_k) for rule in RULES for top_k in (1, 2) if top_k == 1 or not RULES[rule].chains_only]


@pytest.mark.parametrize(("rule", "top_k"), RULES_AND_TREES)
@pytest.mark.parametrize("layout", ["eagle1", "eagle3"])
def test_every_rule_keeps_the_targets_law(layout, rule, top_k, tmp_path):
    """All outcomes enumerated on 3 tokens; EAGLE-3 can say only 2 of them."""
    sizes = {**EAGLE_SIZES, "vocabulary": 3, "draft_vocabulary": 2}
    lender = Lender(vocabulary=3)
    drafter = EagleDrafter.load(make_eagle(tmp_path, layout, **sizes), lender, top_k)
    of, sampling, length = logits_of(5, 1.0), SamplingParams(1.0), 3
    target = FeatureTable(of, lender)

    def run(source):
        steps = decode(
            target, drafter, PromptInput((0,)), sampling, Stopping(length), RULES[rule], FixedBudget(2), random=source
        )
        return tuple(token for step in steps for token in step.tokens)

    got = outcome_law(run)
    assert sum(got.values()) == pytest.approx(1.0, abs=1e-12)
    assert total_variation(got, target_law(of, sampling, length)) <= 1e-12


def tiny_target(directory: Path, num_layers: int, spread: float, context_length: int = 256) -> TorchTarget:
    """A target that says what the embedding of its last token says, disturbed a little by its layers."""
    make_tiny_model(directory, num_layers=num_layers, tied=False)
    target = TorchTarget.load(directory, context_length=context_length)
    target._decoder.final_norm.fill_(1.0)
    for layer in target._decoder.layers:
        layer.out.mul_(spread)
        layer.down.mul_(spread)
    return target


def load_for(target: TorchTarget, directory: Path, layout: str, top_k: int = 1) -> EagleDrafter:
    sizes = {"vocabulary": 320, "draft_vocabulary": 100, "hidden": 64, "target_layers": target.info.num_layers}
    make_eagle(directory, layout, **sizes)
    if layout == "eagle1":  # predicts the target's next state: the embedding it was given, and a little of its own
        tensors = load_file(directory / "model.safetensors")
        tensors["fc.weight"] = torch.eye(64, 128)
        tensors["fc.bias"].zero_()
        tensors["layers.0.self_attn.o_proj.weight"].mul_(0.02)
        tensors["layers.0.mlp.down_proj.weight"].mul_(0.0)
        del tensors["embed_tokens.weight"]
        save_file(tensors, directory / "model.safetensors")
    else:
        embedding = {"embed_tokens.weight": target.lend("embedding").clone()} if "speculators" in layout else {}
        save_file({**load_file(directory / "model.safetensors"), **embedding}, directory / "model.safetensors")
    return EagleDrafter.load(directory, target, top_k)


class Grammar:
    """Tokens in rising blocks of ten, by place; at every fourth place there is no choice."""

    def allowed(self, tokens):
        start = 10 * (len(tokens) % 30)
        return np.isin(np.arange(320), range(start, start + (1 if len(tokens) % 4 == 3 else 10)))

    def forced(self, tokens):
        return (10 * (len(tokens) % 30),) if len(tokens) % 4 == 3 else ()


def run(
    target, drafter, prompt, temperature, rule="drafter-invariant", budget=6, length=40, prefix_cache=None, grammar=None
):
    steps = list(
        decode(target, drafter, PromptInput(prompt), SamplingParams(temperature, seed=5), Stopping(length), RULES[rule],
               FixedBudget(budget), prefix_cache=prefix_cache, constraint=grammar)
    )  # fmt: skip
    return [token for step in steps for token in step.tokens], steps


PROMPT = tuple(int(token) for token in np.random.default_rng(2).integers(3, 320, 75))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_k", [1, 3])
@pytest.mark.parametrize("layout", EAGLE_LAYOUTS)
def test_the_targets_tokens_stay_the_same(layout, top_k, temperature, tmp_path):
    target = tiny_target(tmp_path / "target", 8, 0.002)
    drafter = load_for(target, tmp_path / "drafter", layout, top_k)
    plain, _ = run(target, None, PROMPT, temperature, prefix_cache=PrefixCache())
    prefix_cache = PrefixCache()
    for _ in range(2):  # the second run starts from what both kept of the first
        drafted, steps = run(target, drafter, PROMPT, temperature, prefix_cache=prefix_cache)
        assert drafted == plain
    assert prefix_cache.reused == 64
    if layout == "eagle1":
        accepted = [step.acceptance.num_accepted for step in steps if step.acceptance]
        assert max(accepted) > 1 and min(accepted) < 6  # both the accepting and the rejecting path were taken


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("layout", "top_k"), [("eagle1", 1), ("eagle1", 3), ("eagle3", 3)])
def test_a_grammar_changes_both_alike(layout, top_k, temperature, tmp_path):
    """Forced tokens lead the draft; EAGLE-3 lacks most tokens, and sometimes all that are allowed."""
    target = tiny_target(tmp_path / "target", 8, 0.002)
    drafter = load_for(target, tmp_path / "drafter", layout, top_k)
    plain, _ = run(target, None, PROMPT[:9], temperature, grammar=Grammar())
    drafted, steps = run(target, drafter, PROMPT[:9], temperature, grammar=Grammar())
    assert drafted == plain
    assert sum(step.acceptance.num_accepted for step in steps if step.acceptance) > 3


def test_a_drafter_that_knows_its_target_is_always_believed(tmp_path):
    target = tiny_target(tmp_path / "target", 2, 0.0)
    drafter = load_for(target, tmp_path / "drafter", "eagle1")
    drafter._net.layers[0].self_attn.o_proj.weight.zero_()
    for rule, temperature in (("drafter-invariant", 0.0), ("block", 0.0)):
        tokens, steps = run(target, drafter, PROMPT[:7], temperature, rule)
        assert tokens == run(target, None, PROMPT[:7], temperature)[0]
        assert all(step.acceptance.num_accepted == step.metrics.num_drafted for step in steps if step.acceptance)
