"""EAGLE: published layouts load as they are, drafts agree with the reference, and the target's tokens never change."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from drafters.checkpoint import CheckpointError
from drafters.eagle import EagleDrafter
from drafters.vocab_map import ABSENT, VocabularyMap
from spec_planner.decoding.contracts import Drafter, Incompatible, PromptInput, TargetInfo
from spec_planner.decoding.draft_sampler import RunDraftSampler
from spec_planner.decoding.draft_tree import DraftTree, Proposal
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.random_stream import RandomStream
from spec_planner.decoding.sampling import Law, SamplingParams
from spec_planner.decoding.stopping import Stopping
from spec_planner.engines.torch_target import TorchTarget
from tests.drafters.test_checkpoint import EAGLE_LAYOUTS, EAGLE_SIZES, make_eagle, seeded
from tests.models import make_tiny_model

GOLDEN = Path(__file__).parents[1] / "golden"


class Lender:
    """What loading needs of a target: its sizes, and weights to lend."""

    def __init__(self, seed: int = 1, layers: int = 8, lendable: tuple[str, ...] = ("embedding", "head")) -> None:
        vocabulary, hidden = EAGLE_SIZES["vocabulary"], EAGLE_SIZES["hidden"]
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
