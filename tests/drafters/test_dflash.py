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

from drafters.checkpoint import CheckpointError, detect
from drafters.dflash import DFlashDrafter
from drafters.nets.dflash_net import block_mask, load_dflash, parse_dflash_config
from drafters.vocab_map import ABSENT
from spec_planner.decoding.contracts import Drafter, Incompatible
from spec_planner.decoding.sampling import Law, SamplingParams
from tests.drafters.dflash_support import (
    BLOCK,
    GOLDEN,
    LAYERS,
    MASK,
    SLIDING,
    SMALL,
    VARIANTS,
    D,
    Forcing,
    Recording,
    V,
    calm,
    check_context_alone,
    config_for_target,
    exported,
    lent,
    load_target,
    rounds,
    run,
    shapes_of,
    slots,
    write_dflash,
)
from tests.drafters.dflash_support import target_directory as target_directory  # a fixture


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
    mask = block_mask(net.config, torch.arange(10, 14), 10, 1, (7, True))
    assert mask.tolist() == [[4 <= slot <= row for slot in range(14)] for row in range(10, 14)]


@pytest.mark.parametrize(
    "config",
    [
        exported(sample_from_anchor=True),
        {**SMALL, "dflash_config": {**SMALL["dflash_config"], "draft_shift": True}},
        {**SMALL, "architectures": ["Qwen3DSparkModel"], "markov_rank": 0, **SMALL["dflash_config"]},
    ],
    ids=["speculators", "jetspec", "deepspec"],
)
def test_where_slots_predict_the_next_token_the_anchors_slot_counts(tmp_path, config):
    drafter = small(tmp_path)
    shifted = DFlashDrafter(
        load_dflash(write_dflash(tmp_path / "shifted", config, shapes=lambda _: shapes_of(SMALL))), *lent()
    )
    features = rounds()[0][0]
    for one in (drafter, shifted):
        one.observe([1] * 11, features)
    hidden, _ = slots(drafter, (4, 5))
    later, _ = slots(shifted, (4, 5))
    assert len(later) == BLOCK and len(hidden) == BLOCK - 1
    np.testing.assert_allclose(later[1:], hidden, atol=1e-6)
    assert shifted.draft((4, 5), 99, Recording(position=11)).num_draft_tokens == BLOCK + 1


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
        ({"block_size": 1}, "at least 2 slots"),
        ({"hidden_size": 64}, "expected"),
        ({"num_hidden_layers": 2}, "unexpected layers.2"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
    ],
)
def test_a_directory_that_does_not_fit_says_so(tmp_path, change, said):
    directory = write_dflash(tmp_path, SMALL)
    (directory / "config.json").write_text(json.dumps({**SMALL, **change}))
    with pytest.raises(CheckpointError, match=said):
        load_dflash(directory)
    (directory / "config.json").unlink()
    with pytest.raises(CheckpointError, match="^no config.json"):
        load_dflash(directory)


def test_weights_are_borrowed_and_counted(tmp_path):
    directory = write_dflash(tmp_path, SMALL)
    embedding, head = lent()
    drafter = DFlashDrafter(load_dflash(directory), embedding, head)
    weights = sum(int(np.prod(shape)) for shape in shapes_of(SMALL).values()) * 4
    assert drafter.own_bytes == weights and drafter.borrowed_bytes == 2 * V * D * 4
    assert DFlashDrafter(load_dflash(directory), embedding, embedding).borrowed_bytes == V * D * 4
    assert drafter._head.weight.data_ptr() == head.data_ptr() and drafter._embedding.data_ptr() == embedding.data_ptr()
    drafter.observe([1] * 11, rounds()[0][0])
    assert drafter.own_bytes > weights
    assert isinstance(drafter, Drafter)
    with pytest.raises(Incompatible, match="hidden states"):
        drafter.observe([1], None)
    with pytest.raises(Incompatible, match="trained for this target"):
        DFlashDrafter(load_dflash(directory), embedding[:-1], head)
    drafter.close()


def test_of_tokens_that_are_kept_those_it_was_trained_on_come_first(tmp_path):
    """A published vocabulary (t2d) and a reduced head: the logits are the whole head's, of the tokens kept."""
    marked = {"t2d": torch.arange(V) % 3 == 0}
    net, kept = load_dflash(write_dflash(tmp_path, SMALL, extra=marked)), [1, 2, 3, 9, 40]
    drafters = DFlashDrafter(net, *lent()), DFlashDrafter(net, *lent(), draft_tokens=kept)
    for drafter in drafters:
        drafter.observe([1] * 11, rounds()[0][0])
    whole, few = (slots(drafter, (5,))[1] for drafter in drafters)
    np.testing.assert_allclose(few[:, kept], whole[:, kept], rtol=1e-5)
    assert set(few.argmax(1).tolist()) <= {3, 9} and (np.delete(few, kept, axis=1) == ABSENT).all()


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
