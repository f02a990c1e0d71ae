"""EAGLE around its network: state, labels, which features are read, whose weights are used, what is refused, trees."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from drafters.checkpoint import CheckpointError
from drafters.eagle import EagleDrafter
from drafters.tree_growth.dynamic import Start, chain_shape, grow_likeliest, grow_shape, sampled_shape
from drafters.vocab_map import ABSENT, VocabularyMap
from spec_planner.decoding.contracts import Drafter, Incompatible
from spec_planner.decoding.draft_sampler import RunDraftSampler
from spec_planner.decoding.draft_tree import Proposal
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.random_stream import RandomStream
from spec_planner.decoding.sampling import Law, SamplingParams
from tests.decoding.toys import logits_of
from tests.drafters.test_checkpoint import EAGLE_SIZES, make_eagle
from tests.drafters.test_eagle import FeatureTable, Lender, Recorder, features_at, load, run


@functools.cache
def drafter_of(layout: str, top_k: int, copy: int) -> EagleDrafter:
    with tempfile.TemporaryDirectory() as scratch:
        return load(Path(scratch), layout, top_k)


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(1, 50), stray=st.integers(1, 50), cuts=st.lists(st.integers(1, 49), max_size=4),
    top_k=st.sampled_from([1, 3]), temperature=st.sampled_from([0.0, 1.0]),
    layout=st.sampled_from(["eagle1", "eagle3"]), stem=st.lists(st.integers(0, 47), min_size=1, max_size=3),
)  # fmt: skip
def test_a_draft_depends_on_the_committed_context_alone(length, stray, cuts, top_k, temperature, layout, stem):
    """Not on how it was observed, nor on what was drafted, rejected or forgotten before."""
    fresh, used = drafter_of(layout, top_k, 0), drafter_of(layout, top_k, 1)
    m = 1 if layout == "eagle1" else 3
    context, others = (np.random.default_rng(n).integers(0, 48, n).tolist() for n in (length, stray + 100))
    others, strange = others[:stray], features_at(1000, stray, m)

    def sampler(position: int, seed: int) -> RunDraftSampler:
        made = RunDraftSampler(RULES["drafter-invariant"], SamplingParams(temperature, seed=seed), RandomStream(seed))
        made.anchor_position = position
        return made

    fresh.observe(context, features_at(0, length, m))
    used.observe(others, strange)
    used.draft((1,), 5, sampler(stray, 9))
    used.truncate(0)
    bounds = [0, *sorted({cut for cut in cuts if cut < length}), length]
    for start, end in zip(bounds, bounds[1:], strict=False):
        used.observe(context[start:end], features_at(start, end - start, m))
        used.draft((2,), 4, sampler(end, 9))
    used.draft(stem[:1], 4, sampler(length, 9))
    used.observe(others, strange)
    used.truncate(length)
    for _ in range(2):
        expected, again = (d.draft(stem, 6, sampler(length, 3)) for d in (fresh, used))
        assert again.tokens.tolist() == expected.tokens.tolist()
        assert again.parents.tolist() == expected.parents.tolist() and again.proposal is expected.proposal
        assert expected.tokens[: len(stem)].tolist() == stem and expected.num_draft_tokens <= len(stem) - 1 + 6
    for drafter in (fresh, used):
        drafter.truncate(0)


def test_labels_say_how_a_draft_was_made(tmp_path):
    chain, tree = load(tmp_path, "eagle3"), load(tmp_path, "eagle3", top_k=3)
    assert isinstance(chain, Drafter) and not chain.requirements.draws_trees and tree.requirements.draws_trees
    for drafter, rule, proposal in (
        (chain, "drafter-invariant", Proposal.COUPLED),
        (chain, "rejection", Proposal.SAMPLED_CHAIN),
        (tree, "drafter-invariant", Proposal.COUPLED),
        (tree, "point-mass", Proposal.POINT_MASS),
        (tree, "traversal", Proposal.SAMPLED_WITHOUT_REPLACEMENT),
    ):
        drafter.truncate(0)
        drafter.observe([5, 6], features_at(0, 2, 3))
        sampler = RunDraftSampler(RULES[rule], SamplingParams(1.0), RandomStream(0))
        drafted = drafter.draft((7, 8), 6, sampler)
        assert drafted.proposal is proposal and drafted.num_draft_tokens == 7
        assert drafted.is_chain != drafter.requirements.draws_trees
    sizes = {**EAGLE_SIZES, "vocabulary": 3, "draft_vocabulary": 2}
    lender = Lender(vocabulary=3)
    drafter = EagleDrafter.load(make_eagle(tmp_path / "small", "eagle1", **sizes), lender, top_k=2)
    with pytest.raises(Incompatible, match="chains only"):
        run(FeatureTable(logits_of(1, 1.0), lender), drafter, (0,), 1.0, "block")


def test_feature_layers_are_hidden_states(tmp_path):
    for layout in ("eagle3", "modelopt", "speculators"):  # by default, as layer outputs, as hidden states
        assert load(tmp_path, layout).requirements.feature_layers == (2, 4, 5)
    assert load(tmp_path, "eagle1").requirements.feature_layers == (8,)
    directory = make_eagle(tmp_path / "mixed", "speculators", **EAGLE_SIZES)
    config = json.loads((directory / "config.json").read_text())
    config["eagle_aux_hidden_state_layer_ids"] = [5, 2, 4]  # a target hands its states out in ascending order
    (directory / "config.json").write_text(json.dumps(config))
    drafter = EagleDrafter.load(directory, Lender())
    assert drafter.requirements.feature_layers == (2, 4, 5) and drafter._order == [2, 0, 1]
    assert EagleDrafter.load(directory, Lender(), feature_layers=(3, 5, 6)).requirements.feature_layers == (3, 5, 6)
    with pytest.raises(CheckpointError, match="reads 3 feature layers, 2 were named"):
        EagleDrafter.load(directory, Lender(), feature_layers=(3, 5))


def test_weights_the_target_has_are_borrowed(tmp_path):
    embedding = 48 * 32 * 4
    for layout, borrows in (
        ("eagle1", ("embedding", "head")),
        ("eagle3", ("embedding",)),
        ("speculators", ("embedding",)),
    ):
        drafter = load(tmp_path, layout)
        assert drafter.requirements.borrows == borrows and drafter.borrowed_bytes == len(borrows) * embedding
        before = drafter.own_bytes
        drafter.observe([1, 2, 3], features_at(0, 3, 1 if layout == "eagle1" else 3))
        assert drafter.own_bytes > before  # kept features
    own = EagleDrafter.load(tmp_path / "speculators", Lender(seed=2))  # trained further: not the target's any more
    assert own.requirements.borrows == () and own.borrowed_bytes == 0
    assert own.own_bytes == before + embedding
    with pytest.raises(Incompatible, match="does not lend its embedding"):
        load(tmp_path, "eagle3", target=Lender(lendable=("head",)))
    with pytest.raises(Incompatible, match="needs hidden states"):
        own.observe([1], None)


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="at least 7 layers"):
        load(tmp_path, "eagle3", target=Lender(layers=4))
    with pytest.raises(CheckpointError, match="vocabulary of 48 and the target has 50"):
        load(tmp_path, "eagle3", target=Lender(vocabulary=50))
    for layout, name in (
        ("eagle1", "fc.weight"),
        ("eagle3", "midlayer.hidden_norm.weight"),
        ("speculators-3.1", "fc_norm.1.weight"),
    ):
        directory = make_eagle(tmp_path / layout, layout, **EAGLE_SIZES)
        tensors = load_file(directory / "model.safetensors")
        broken = (
            {**tensors, name: tensors[name][:5]}
            if layout == "eagle3"
            else {n: t for n, t in tensors.items() if n != name}
        )
        broken = broken if layout != "eagle1" else {**tensors, "layers.0.input_layernorm.weight": torch.ones(32)}
        save_file(broken, directory / "model.safetensors")
        with pytest.raises(
            CheckpointError, match="missing fc_norm.1|is \\[5\\], expected \\[32\\]|unexpected layers.0.input"
        ):
            EagleDrafter.load(directory, Lender())


def test_a_reduced_vocabulary_maps_by_offset():
    small = VocabularyMap.from_offsets([1, 1, 4], 8, np.isin(np.arange(8), [1, 2, 6]))
    assert small.draft_to_target.tolist() == [1, 2, 6]
    spread = small.spread(np.array([3.0, 4.0, 5.0], dtype=np.float32))
    assert spread[[1, 2, 6]].tolist() == [3.0, 4.0, 5.0] and (spread == ABSENT).sum() == 5
    only_absent = np.isin(np.arange(8), [0, 3])  # a grammar may leave nothing the drafter can say
    assert Law.from_logits(spread, SamplingParams(0.5), only_absent).ids.tolist() == [0, 3]
    assert VocabularyMap.identity(4).is_identity
    assert VocabularyMap.from_checkpoint([0, 0, 0], [False] * 3, 3, 3).is_identity
    with pytest.raises(ValueError, match="no d2t says which"):
        VocabularyMap.from_checkpoint(None, None, 3, 8)
    with pytest.raises(ValueError, match=r"d2t is \[2\], expected \[3\]"):
        VocabularyMap.from_checkpoint([1, 1], None, 3, 8)
    for offsets, present in (
        ([1, 2, 6], None),
        ([1, 0], None),
        ([0, 0], [True, False]),
    ):  # absolute, twice, contradicted
        with pytest.raises(ValueError, match="d2t"):
            VocabularyMap.from_offsets(offsets, 8 if offsets != [0, 0] else 2, present)


class Table:
    """``expand`` over a table: logits are a function of the branch below the anchor."""

    def __init__(self, of) -> None:
        self.of, self.rows = of, []

    def __call__(self, tokens, parents):
        self.rows += [
            (*(self.rows[parent] if parent >= 0 else ()), t) for t, parent in zip(tokens, parents, strict=True)
        ]
        return [self.of(row) for row in self.rows[-len(tokens) :]]


def likeliest_of_all(of, top_k: int, depth: int, budget: int) -> set[tuple[int, ...]]:
    """EAGLE-2 as the paper has it: every level in full, then the best of all."""
    scores, frontier = {}, [((), 0.0)]
    for _ in range(depth):
        level = {}
        for branch, score in frontier:
            law = Law.from_logits(of(branch), SamplingParams(1.0))
            for token in np.argsort(-law.probabilities, kind="stable")[:top_k]:
                level[(*branch, int(law.ids[token]))] = score + float(np.log(law.probabilities[token]))
        scores |= level
        frontier = sorted(level.items(), key=lambda item: -item[1])[:top_k]
    return set(sorted(scores, key=lambda branch: -scores[branch])[:budget])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999), sharpness=st.sampled_from([0.5, 2.0, 5.0]), top_k=st.integers(1, 4),
    depth=st.integers(1, 5), budget=st.integers(1, 12),
)  # fmt: skip
def test_rows_that_are_not_run_would_not_have_been_kept(seed, sharpness, top_k, depth, budget):
    of = logits_of(seed, sharpness, 7)
    expand = Table(of)
    tree = grow_likeliest(Start((5,), 3, of(())), budget, top_k, depth, expand, Recorder())
    branches = {tuple(tree.tokens[tree.ancestor_mask[node]][1:].tolist()) for node in range(1, tree.num_nodes)}
    assert branches == likeliest_of_all(of, top_k, depth, budget)
    assert len(expand.rows) <= top_k * (depth - 1)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999), vocabulary=st.integers(2, 9), top_k=st.integers(1, 4), depth=st.integers(1, 5),
    budget=st.integers(1, 12), stem=st.lists(st.integers(0, 1), min_size=1, max_size=3),
    rule=st.sampled_from(["traversal", "drafter-invariant", "point-mass"]),
)  # fmt: skip
def test_a_shape_is_filled_whatever_the_tokens(seed, vocabulary, top_k, depth, budget, stem, rule):
    of = logits_of(seed, 1.0, vocabulary)
    sampler = RunDraftSampler(RULES[rule], SamplingParams(1.0, seed=seed), RandomStream(seed))
    shape = chain_shape(min(depth, budget)) if top_k == 1 else sampled_shape(budget, top_k, depth)
    tree = grow_shape(Start(stem, 3, of(())), shape, Table(of), sampler)
    assert tree.tokens[: len(stem)].tolist() == stem
    drafted = tree.num_draft_tokens - (len(stem) - 1)
    assert drafted == len(shape) if vocabulary >= top_k else 0 < drafted <= len(shape)
    assert max(tree.depths) <= len(stem) - 1 + min(depth, budget) and len(shape) <= budget
    siblings = [[int(tree.tokens[child]) for child in children] for children in tree.children]
    assert all(len(set(tokens)) == len(tokens) <= top_k for tokens in siblings)
