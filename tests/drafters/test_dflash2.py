"""DFlash 2: golden numbers, the selector's law, beams, and that the target's tokens never change."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from drafters.checkpoint import CheckpointError, detect
from drafters.dflash import DFlashDrafter
from drafters.dflash2 import DFlash2Drafter
from drafters.nets.dflash2_net import load_dflash2
from drafters.nets.dflash_net import load_dflash
from drafters.tree_growth.best_first import grow
from drafters.tree_growth.selector_beam import grow_beam
from drafters.vocab_map import ABSENT
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.random_stream import Purpose, RandomStream
from spec_planner.decoding.sampling import Law, SamplingParams
from tests.drafters.dflash_support import (
    BLOCK,
    GOLDEN,
    LAYERS,
    SIZES,
    SLIDING,
    SMALL,
    SMALL2,
    TEMPERATURE,
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
    random_tensors,
    rounds,
    run,
    shapes_of_2,
    slots,
    write_dflash,
    write_dflash2,
)
from tests.drafters.dflash_support import target_directory as target_directory  # a fixture


def small(tmp_path, shape="chain", **options) -> DFlash2Drafter:
    return DFlash2Drafter(load_dflash2(write_dflash2(tmp_path / "small")), *lent(), shape=shape, **options)


def test_logits_path_and_law_are_those_of_the_public_implementation(tmp_path):
    drafter = small(tmp_path)
    expected = json.loads((GOLDEN / "dflash2.json").read_text())["rounds"]
    position = 0
    for (features, ids, anchor), golden in zip(rounds(), expected, strict=True):
        drafter.observe(ids, features)
        position += len(ids)
        np.testing.assert_allclose(slots(drafter, (anchor,))[1], golden["logits"], atol=1e-4)
        tree = drafter.draft((anchor,), BLOCK - 1, Recording(position=position))
        assert tree.tokens[1:].tolist() == golden["greedy"]
        sampler = Scripted(golden["drawn"], position)
        tree = drafter.draft((anchor,), BLOCK - 1, sampler)
        for law, candidates, q in zip(tree.draft_laws, golden["candidates"], golden["q"], strict=False):
            dense = np.zeros(V)
            dense[candidates] = q
            np.testing.assert_allclose(law.dense(V), dense, atol=1e-4)


class Scripted(Recording):
    """Says given tokens and records the laws."""

    def __init__(self, tokens, position: int) -> None:
        super().__init__(TEMPERATURE, "rejection", position)
        self._tokens = iter(tokens)

    def pick(self, law, position, slot):
        return next(self._tokens)


def slow_scores(drafter, stem) -> callable:
    """S_t(a, b) straight from the equations of the selector: float32 [V] with −inf off the candidates."""
    selector = drafter._selector
    hidden, logits = slots(drafter, stem)
    with torch.inference_mode():
        projected = (hidden @ selector.hidden_projection.weight.T).numpy()
    before, after = selector.predecessor_codebook.detach().numpy(), selector.successor_codebook.detach().numpy()

    def scores(slot: int, predecessor: int) -> np.ndarray:
        row = np.full(V, -np.inf, dtype=np.float32)
        for b in np.argsort(-logits[slot])[: selector.top_k]:
            row[b] = logits[slot, b] + sum(before[predecessor] * projected[slot] * after[b])
        return row

    return scores


@pytest.mark.parametrize(
    ("rule", "shape"),
    [
        *(("rejection", "chain"), ("block", "chain"), ("recursive-rejection", "chain"), ("traversal", "chain")),
        *(("recursive-rejection", "beam"), ("traversal", "beam"), ("traversal", "best-first")),
    ],
)
def test_children_come_from_the_selectors_law_at_their_own_branch(tmp_path, rule, shape):
    drafter = small(tmp_path, shape)
    drafter.observe([1] * 11, rounds()[0][0])
    scores = slow_scores(drafter, (5, 8))
    tree = drafter.draft((5, 8), 13, Recording(TEMPERATURE, rule, 11))
    checked = 0
    for node in range(1, tree.num_nodes):
        if tree.children[node]:
            expected = Law.from_logits(
                scores(tree.depths[node] - 1, int(tree.tokens[node])), SamplingParams(TEMPERATURE)
            )
            np.testing.assert_allclose(tree.draft_laws[node].dense(V), expected.dense(V), atol=1e-5)
            checked += 1
    assert checked >= 4 and tree.is_chain == (shape == "chain")
    assert tree.draft_laws[0].ids.tolist() == [8]


@pytest.mark.parametrize(
    ("rule", "shape"),
    [
        *(("rejection", "chain"), ("block", "chain"), ("recursive-rejection", "beam"), ("traversal", "beam")),
        *(("point-mass", "beam"), ("drafter-invariant", "beam"), ("recursive-rejection", "best-first")),
    ],
)
def test_two_tokens_follow_the_targets_law_under_every_rule(tmp_path, rule, shape):
    """2,000 seeds, the joint law of the next two tokens, against a target that half agrees with the selector."""
    drafter = small(tmp_path, shape)
    drafter.observe([1] * 11, rounds()[0][0])
    hidden, logits = slots(drafter, (5,))
    drafter._guess = lambda stem, budget: (hidden[:budget], torch.from_numpy(logits)[:budget])  # for every seed
    ranks = np.argsort(-logits, axis=1)[:, [0, 2, 8]]  # the last of them is no candidate
    weights = {(): (0.5, 0.2, 0.3), 0: (0.1, 0.6, 0.3), 1: (0.3, 0.3, 0.4), 2: (0.7, 0.2, 0.1)}

    def law(first=None) -> Law:
        place = () if first is None else ranks[0].tolist().index(first)
        dense = np.zeros(V)
        dense[ranks[0 if first is None else 1]] = weights[place]
        return Law.of(dense)

    seen, count = np.zeros((3, 3)), 2000
    for seed in range(count):
        tree = drafter.draft((5,), 7, Recording(1.0, rule, 11, seed))
        parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
        random = RandomStream(seed)

        def at(node, parents=parents, tokens=tokens) -> Law:
            depth_one = node if node == 0 or parents[node] == 0 else parents[node]
            known = tokens[depth_one] if node else None
            return law(known) if known is None or known in ranks[0] else Law.point(0)

        accepted = RULES[rule](tree, at, random, 11)
        said = [*(tokens[node] for node in accepted.path[1:]), accepted.next_token][:2]
        if len(said) == 1:
            said.append(random.draw(law(said[0]), Purpose.TARGET, 13))
        seen[ranks[0].tolist().index(said[0]), ranks[1].tolist().index(said[1])] += 1
    expected = count * np.array(weights[()])[:, None] * np.array([weights[0], weights[1], weights[2]])
    assert ((seen - expected) ** 2 / expected).sum() < 31.8  # χ², 8 degrees of freedom, p = 1e-4


def test_a_greedy_walk_follows_the_selector_not_the_logits(tmp_path):
    drafter = small(tmp_path)
    drafter.observe([1] * 11, rounds()[0][0])
    scores = slow_scores(drafter, (5,))
    tree = drafter.draft((5,), 99, Recording(position=11))
    walked, token = [], 5
    for slot in range(BLOCK - 1):
        token = int(np.argmax(scores(slot, token)))
        walked.append(token)
    assert tree.tokens[1:].tolist() == walked != slots(drafter, (5,))[1].argmax(-1).tolist()


def test_with_identity_mixing_and_no_codes_it_is_dflash(tmp_path):
    tensors = random_tensors(shapes_of_2(SMALL2), 1)
    same = {name: torch.zeros_like(value) for name, value in tensors.items() if "codebook" in name or "conv" in name}
    for name in same:
        if name.endswith("base_kernel"):
            same[name][:, 0] = 1.0
    plain = {name: value for name, value in tensors.items() if "selector" not in name and "conv" not in name}
    second = DFlash2Drafter(load_dflash2(write_dflash2(tmp_path / "two", extra=same)), *lent())
    first_directory = write_dflash(tmp_path / "one", SMALL2, extra=plain)
    first = DFlashDrafter(load_dflash(first_directory), *lent())
    assert detect(tmp_path / "two") == "dflash2" and detect(first_directory) == "dflash"
    for drafter in (first, second):
        drafter.observe([1] * 11, rounds()[0][0])
    one, two = (drafter.draft((5, 6), 9, Recording(position=11)) for drafter in (first, second))
    assert one.tokens.tolist() == two.tokens.tolist()


def test_codebooks_may_be_stored_as_embeddings(tmp_path):
    tensors = random_tensors(shapes_of_2(SMALL2), 1)
    renamed = {f"{name}.weight": value for name, value in tensors.items() if "codebook" in name}
    others = {name: shape for name, shape in shapes_of_2(SMALL2).items() if "codebook" not in name}
    directory = write_dflash(tmp_path / "renamed", SMALL2, 1, lambda _: others, renamed)
    net = load_dflash2(directory)
    assert torch.equal(net.candidate_selector.successor_codebook, tensors["candidate_selector.successor_codebook"])
    drafter, weights = DFlash2Drafter(net, *lent()), sum(tensor.numel() for tensor in tensors.values())
    assert drafter.own_bytes == 4 * weights and drafter.borrowed_bytes == 4 * 2 * V * D


def test_speculators_directories_load_too(tmp_path):
    layer = {"layer_types": ["sliding_attention"] * LAYERS, **SLIDING}
    config = exported(layer=layer, speculators_model_type="dflash2", **SIZES)
    for name, change in (("flat", {}), ("nested", {"dflash2_config": {key: config.pop(key) for key in list(SIZES)}})):
        written = {**config, **(SIZES if name == "flat" else change)}
        net = load_dflash2(write_dflash(tmp_path / name, written, 1, lambda _: shapes_of_2(SMALL2)))
        assert net.config.causal == (False,) * 3 and net.candidate_selector.top_k == 5


def test_directories_of_the_other_kind_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="conv_kernel_size"):
        load_dflash2(write_dflash(tmp_path / "one", SMALL))
    with pytest.raises(CheckpointError, match="candidate_selector|attention_conv"):
        load_dflash(write_dflash2(tmp_path / "two"))


def random_laws(seed: int, vocabulary: int = 9, sharpness: float = 2.0):
    def law_after(branch) -> Law:
        generator = np.random.default_rng([seed, *(token + 1 for token in branch)])
        return Law.from_logits(
            (sharpness * generator.standard_normal(vocabulary)).astype(np.float32), SamplingParams(1.0)
        )

    return law_after


def ranked(law_after):
    """The same laws as rank paths, for ``grow``."""
    tokens = {(): ()}

    def probabilities(path, depth: int = 4):
        if len(path) == depth:
            return ()
        law = law_after(tokens[path])
        order = np.argsort(-law.probabilities, kind="stable")
        tokens.update({(*path, rank): (*tokens[path], int(law.ids[i])) for rank, i in enumerate(order)})
        return law.probabilities[order]

    return probabilities


@pytest.mark.parametrize("seed", range(5))
def test_a_wide_beam_is_the_best_tree_and_a_narrow_one_asks_little(seed):
    law_after = random_laws(seed)
    best = grow(ranked(law_after), 14)
    assert grow_beam(law_after, 4, 14, 14) == best
    asked = []
    narrow = grow_beam(lambda branch: asked.append(branch) or law_after(branch), 4, 2, 14)
    assert len(narrow) == 14 and len(asked) <= 1 + 2 * 3 and len(set(asked)) == len(asked)
    assert all(path[:-1] in ((), *narrow) for path in narrow)
    assert grow_beam(law_after, 4, 3, 0) == [] and len(grow_beam(law_after, 1, 3, 99)) == 9
    assert grow_beam(lambda branch: Law.point(3), 4, 3, 9) == [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", ["chain", "beam", "best-first"])
def test_a_draft_depends_on_the_committed_context_alone(tmp_path, shape, temperature):
    net = load_dflash2(write_dflash2(tmp_path))
    check_context_alone(lambda: DFlash2Drafter(net, *lent(), shape=shape), temperature)


@pytest.mark.parametrize("constraint", [None, Forcing()], ids=["free", "constrained"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("shape", "budget"), [("chain", 5), ("beam", 11), ("best-first", 11)])
def test_the_targets_tokens_stay_the_same(tmp_path, target_directory, shape, budget, temperature, constraint):  # noqa: F811
    target = load_target(target_directory)
    inner = {"block_size": BLOCK, **SIZES, "selector_top_k": 256}
    config = config_for_target(architectures=["DFlash2DraftModel"], dflash_config=inner)
    drafter = DFlash2Drafter.load(write_dflash2(tmp_path, config), target, shape)
    with torch.no_grad():
        calm(drafter._net)
        drafter._net.candidate_selector.successor_codebook *= 0.01
    for seed in (1, 2):
        plain, _ = run(target, None, temperature, "drafter-invariant", 0, seed, constraint)
        drafter.truncate(0)
        tokens, accepted = run(target, drafter, temperature, "drafter-invariant", budget, seed, constraint)
        assert tokens == plain
        assert accepted > 5  # or nothing was tested


def test_where_all_candidates_are_forbidden_the_others_take_over(tmp_path):
    drafter = small(tmp_path, "beam")
    drafter.observe([1] * 11, rounds()[0][0])
    logits = slots(drafter, (5,))[1][0]
    top = np.argsort(-logits)[:5]

    class Forbidding:
        def allowed(self, tokens):
            return ~np.isin(np.arange(V), top) if len(tokens) == 1 else None

    tree = drafter.draft((5,), 9, Recording(1.0, "recursive-rejection", 11, constraint=Forbidding()))
    assert not set(tree.tokens[list(tree.children[0])]) & set(top.tolist())
    softmax = Law.from_logits(np.where(np.isin(np.arange(V), top), -np.inf, logits), SamplingParams(1.0))
    np.testing.assert_allclose(tree.draft_laws[0].dense(V), softmax.dense(V), atol=2e-3)


def test_candidates_are_of_the_tokens_kept_and_all_others_stand_behind(tmp_path):
    """The selector's scores are those of target ids; with every candidate forbidden the rest of the kept ones come."""
    kept = [1, 2, 3, 9, 20, 33, 40]
    whole, few = small(tmp_path), DFlash2Drafter(load_dflash2(tmp_path / "small"), *lent(), draft_tokens=kept)
    for drafter in (whole, few):
        drafter.observe([1] * 11, rounds()[0][0])
    hidden, logits = slots(whole, (5,))
    sampler = Recording(TEMPERATURE, "rejection", 11)
    tree = few.draft((5,), BLOCK - 1, sampler)
    with torch.inference_mode():
        gated = whole._selector.gated(hidden, torch.tensor([kept] * len(hidden))).numpy()
        before = whole._selector.codes(torch.as_tensor(tree.tokens)).numpy()
    assert set(tree.tokens[1:].tolist()) <= set(kept)
    for slot, row in enumerate(sampler.seen):
        order = sorted(range(len(kept)), key=lambda i: -logits[slot, kept[i]])
        candidates, rest = order[:5], order[5:]
        for i in candidates:
            expected = logits[slot, kept[i]] + gated[slot, i] @ before[slot]
            assert row[kept[i]] == pytest.approx(expected, abs=1e-3)
        behind = row[[kept[i] for i in rest]]
        assert (behind < row[[kept[i] for i in candidates]].min() - 1e3).all() and (behind > -1e5).all()
        assert (np.delete(row, kept) == ABSENT).all()
