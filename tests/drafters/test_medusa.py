"""Medusa: published heads load as they are and say what the published code says; the target's tokens never change."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drafters.checkpoint import CheckpointError
from drafters.medusa import MedusaDrafter, stored_tree
from drafters.nets.medusa_net import MedusaNet, load_medusa
from drafters.registry import load_drafter
from drafters.tree_growth.static import MEDUSA_63, layout, tree_from_accuracy
from spec_planner.decoding.contracts import Drafter, Incompatible, PromptInput, check_compatible
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.draft_sampler import RunDraftSampler
from spec_planner.decoding.draft_tree import DraftTree, Proposal
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.random_stream import RandomStream
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.decoding.stopping import Stopping
from spec_planner.engines.torch_target import TorchTarget
from tests.drafters.mtp_support import Allowed
from tests.models import make_tiny_model

GOLDEN = Path(__file__).parents[1] / "golden" / "medusa.json"
ROUNDS, PROBED = 5, [0, 7, 31, 100, 319]  # scripted rounds, vocabulary entries compared
HIDDEN, VOCABULARY = 48, 320
FORMS = {"v1": (4, 1, True), "legacy": (4, 1, False), "two layers": (4, 2, True)}  # heads, layers, own output
SHAPES = ["chain", "best-first", MEDUSA_63]
PROMPT = tuple(range(3, 60, 4))
ACCURACY = [[0.5, 0.25, 0.125], [0.3, 0.2, 0.0], [0.75, 0.25, 0.0], [0.1, 0.05, 0.05]]  # of four heads


def golden_tensors(form: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A checkpoint in a published layout, and the target's head [V, d]. ``RandomState`` streams are frozen."""
    heads, layers, own = FORMS[form]
    random = np.random.RandomState(11)

    def draw(*shape: int, scale: float = 0.2) -> torch.Tensor:
        return torch.from_numpy((scale * random.standard_normal(shape)).astype(np.float32))

    lent, tensors = draw(VOCABULARY, HIDDEN), {}
    for head in range(heads):
        block = {"linear.weight": draw(HIDDEN, HIDDEN), "linear.bias": draw(HIDDEN)}
        for layer in range(layers):  # the published code repeats one block
            tensors |= {f"{head}.{layer}.{name}": tensor for name, tensor in block.items()}
        if own:
            tensors[f"{head}.{layers}.weight"] = draw(VOCABULARY, HIDDEN)
    return tensors, lent


def hidden_states() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Per round the target's last hidden state [d] and its logits [V]."""
    random = np.random.RandomState(5)
    drawn = [random.standard_normal((HIDDEN + VOCABULARY,)).astype(np.float32) for _ in range(ROUNDS)]
    return [(torch.from_numpy(row[:HIDDEN]), torch.from_numpy(row[HIDDEN:])) for row in drawn]


def sampler_of(temperature: float = 0.0, seed: int = 3, rule: str = "drafter-invariant", at: int = 0):
    sampler = RunDraftSampler(RULES[rule], SamplingParams(temperature, seed=seed), RandomStream(seed))
    sampler.anchor_position = at
    return sampler


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> TorchTarget:
    directory = make_tiny_model(tmp_path_factory.mktemp("medusa") / "target", num_layers=2, tied=False)
    return TorchTarget.load(directory, context_length=256, device="cpu")


def heads_for(target: TorchTarget, seed: int = 0, heads: int = 4, own: bool = True) -> MedusaNet:
    torch.manual_seed(seed)
    net = MedusaNet(target.info.hidden_size, target.info.vocabulary_size, heads, borrows_head=not own)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.3)
    return net


def drafter_for(target: TorchTarget, shape="chain", **options) -> MedusaDrafter:
    net = heads_for(target, **options)
    return MedusaDrafter(net, target.info, target.lend("head") if net.borrows_head else None, shape)


def run(target, drafter, temperature=0.0, rule="drafter-invariant", budget=8, seed=1, length=24, constraint=None):
    target.truncate(0)
    if drafter is not None:
        drafter.truncate(0)
    sampling = SamplingParams(temperature, seed=seed)
    prompt = PromptInput(PROMPT)
    steps = list(
        decode(
            target, drafter, prompt, sampling, Stopping(length), RULES[rule], FixedBudget(budget), constraint=constraint
        )
    )
    return [token for step in steps for token in step.tokens], steps


@pytest.mark.parametrize("form", FORMS)
def test_the_published_code_says_the_same(form, tmp_path):
    tensors, lent = golden_tensors(form)
    torch.save(tensors, tmp_path / "medusa_lm_head.pt")
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 2, "medusa_num_layers": 1}')  # as published: wrong
    net = load_medusa(tmp_path, HIDDEN, VOCABULARY)
    assert net.borrows_head is not FORMS[form][2]
    info = _info()
    drafter = MedusaDrafter(net, info, lent if net.borrows_head else None, MEDUSA_63)
    for state, golden in zip(hidden_states(), json.loads(GOLDEN.read_text())[form], strict=True):
        drafter.observe((1, 2), torch.stack([torch.zeros(1, HIDDEN), state[0][None]]))
        ours = net.logits(state[0][None], range(len(net)), lent)[:, 0, PROBED]
        torch.testing.assert_close(ours, torch.tensor(golden["logits"]), rtol=0, atol=1e-4)
        anchor = int(state[1].argmax())
        tree = drafter.draft((anchor,), 63, sampler_of())
        assert tree.tokens.tolist() == golden["tokens"] and tree.parents.tolist() == list(layout(MEDUSA_63).parents)
        drafter.draft((anchor + 1, 5), 4, sampler_of())  # rejected: leaves no trace


def _info():
    from spec_planner.decoding.contracts import TargetInfo

    return TargetInfo("t", "torch", "float32", "cpu", VOCABULARY, HIDDEN, 2, 256, 64, True, ("head",))


def test_other_layouts_of_the_same_heads(tmp_path):
    tensors, _ = golden_tensors("v1")
    expected = load_medusa(_saved(tmp_path / "plain", tensors), HIDDEN, VOCABULARY).state_dict()
    vllm = {
        name.replace(".1.weight", ".weight").replace(".0.linear", ".layers.0"): tensor
        for name, tensor in tensors.items()
    }
    vllm = {("blocks." if "layers" in name else "lm_heads.") + name: tensor for name, tensor in vllm.items()}
    whole = {f"medusa_head.{name}": tensor for name, tensor in tensors.items()}
    whole["model.layers.0.input_layernorm.weight"] = torch.ones(HIDDEN)  # Medusa-2: not read
    for layout_name, stored in (("vllm", vllm), ("whole", whole)):
        loaded = load_medusa(_saved(tmp_path / layout_name, stored), HIDDEN, VOCABULARY).state_dict()
        assert loaded.keys() == expected.keys()
        assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def _saved(directory: Path, tensors: dict[str, torch.Tensor]) -> Path:
    directory.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    return directory


def test_what_cannot_be_used_is_said(tmp_path):
    tensors, _ = golden_tensors("v1")
    with pytest.raises(CheckpointError, match="no Medusa heads"):
        load_medusa(_saved(tmp_path / "none", {"fc.weight": torch.ones(2, 2)}), HIDDEN, VOCABULARY)
    with pytest.raises(CheckpointError, match="expected"):
        load_medusa(_saved(tmp_path / "other", tensors), HIDDEN, VOCABULARY + 1)
    del tensors["2.0.linear.bias"]
    with pytest.raises(CheckpointError, match="missing 2.0.linear.bias"):
        load_medusa(_saved(tmp_path / "part", tensors), HIDDEN, VOCABULARY)
    with pytest.raises(ValueError, match="lend"):
        MedusaDrafter(MedusaNet(HIDDEN, VOCABULARY, 2, borrows_head=True), _info())
    drafter = MedusaDrafter(MedusaNet(HIDDEN, VOCABULARY, 2), _info())
    with pytest.raises(Incompatible, match="hidden states"):
        drafter.observe((1,), None)


def test_heads_read_what_the_targets_own_head_reads(target):
    """Index num_layers is the hidden state after the final norm."""
    drafter = drafter_for(target)
    check_compatible(target.info, drafter)
    assert isinstance(drafter, Drafter) and drafter.requirements.feature_layers == (target.info.num_layers,)
    target.truncate(0)
    target.tap(drafter.requirements.feature_layers)
    output = target.extend(PromptInput(PROMPT))
    logits = target.lend("head") @ output.features(range(len(PROMPT)))[-1, 0]
    np.testing.assert_allclose(logits.numpy(), output.logits_row(0), atol=1e-4)


def test_head_k_guesses_the_token_k_places_after_the_anchors_successor_and_a_stem_shifts_it(target):
    """A head that turns h(t − 1) into the logits of x(t + 1 + k): planted, so that a shift by one would show."""
    plain, _ = run(target, None)
    context = [*PROMPT, *plain]
    net = heads_for(target, heads=3)
    at = len(PROMPT) + 6  # the anchor's position
    target.truncate(0)
    target.tap((target.info.num_layers,))
    features = target.extend(PromptInput(tuple(context))).features(range(len(context)))
    with torch.no_grad():
        for k, head in enumerate(net):
            head[0].linear.weight.zero_(), head[0].linear.bias.zero_()
            head[1].weight.zero_()
            head[1].weight[context[at + 1 + k]] = features[at - 1, 0]  # norm² at the token to be guessed
    for shape in SHAPES:
        drafter = MedusaDrafter(net, target.info, shape=shape)
        drafter.observe(context[:at], features[:at])
        for forced in range(4):
            stem = context[at : at + 1 + forced]
            tree = drafter.draft(stem, 8 if shape != "chain" else 2, sampler_of(at=at))
            assert tree.tokens[: len(stem)].tolist() == stem
            for k in range(forced, min(3, forced + 2 if shape == "chain" else 3)):
                assert tree.tokens[tree.depths == k + 1][0] == context[at + 1 + k]
            assert tree.depths.max() <= max(3, forced)


@pytest.mark.parametrize("shape", SHAPES, ids=["chain", "best-first", "63"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("own", [True, False])
def test_the_targets_tokens_stay_the_same(target, shape, temperature, own):
    plain, _ = run(target, None, temperature)
    drafted, steps = run(target, drafter_for(target, shape, own=own), temperature)
    assert drafted == plain
    assert all(step.metrics.num_drafted for step in steps[1:-4])


@pytest.mark.parametrize("rule", ["rejection", "block", "recursive-rejection", "traversal", "point-mass"])
@pytest.mark.parametrize("shape", SHAPES, ids=["chain", "best-first", "63"])
def test_every_rule_can_judge_the_drafts(target, rule, shape):
    drafter = drafter_for(target, shape)
    if RULES[rule].chains_only and shape != "chain":
        with pytest.raises(Incompatible):
            run(target, drafter, 1.0, rule)
    else:
        tokens, _ = run(target, drafter, 1.0, rule)
        assert len(tokens) == 24


@pytest.mark.parametrize("shape", SHAPES, ids=["chain", "best-first", "63"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_under_a_constraint_too(target, shape, temperature):
    plain, _ = run(target, None, temperature, constraint=Allowed())
    drafted, _ = run(target, drafter_for(target, shape), temperature, constraint=Allowed())
    assert drafted == plain and all(token % 2 == 0 for token in plain)


@pytest.mark.parametrize("shape", SHAPES, ids=["chain", "best-first", "63"])
@pytest.mark.parametrize("rule", ["drafter-invariant", "recursive-rejection"])
def test_a_draft_depends_on_the_committed_context_alone(target, shape, rule):
    target.truncate(0)
    target.tap((target.info.num_layers,))
    features = target.extend(PromptInput(PROMPT)).features(range(len(PROMPT)))
    fresh, used = drafter_for(target, shape), drafter_for(target, shape)
    fresh.observe(PROMPT, features)
    used.observe((1, 2, 3), features[4:7] + 1)
    used.draft((1,), 5, sampler_of(1.0, rule=rule))
    used.truncate(0)
    for start, end in ((0, 5), (5, 6), (6, len(PROMPT))):
        used.observe(PROMPT[start:end], features[start:end])
        used.draft((2, 7), 4, sampler_of(1.0, at=end, rule=rule))
    used.observe((9, 9), features[:2])
    used.truncate(len(PROMPT))
    expected, again = (drafter.draft((5,), 7, sampler_of(1.0, at=len(PROMPT), rule=rule)) for drafter in (fresh, used))
    assert again.tokens.tolist() == expected.tokens.tolist() and again.parents.tolist() == expected.parents.tolist()
    assert again.proposal is expected.proposal and expected.num_draft_tokens <= 7
    if rule == "recursive-rejection" and shape != "chain":
        assert expected.proposal is Proposal.SAMPLED_WITHOUT_REPLACEMENT


def test_with_nothing_observed_or_no_head_left_the_stem_is_the_draft(target):
    drafter = drafter_for(target, heads=2)
    assert drafter.draft((5,), 4, sampler_of()).tokens.tolist() == [5]
    drafter.observe((1,), torch.ones(1, 1, 64))
    for temperature, rule in ((0.0, "drafter-invariant"), (1.0, "rejection")):
        tree = drafter.draft((5, 6, 7), 4, sampler_of(temperature, rule=rule))
        assert isinstance(tree, DraftTree) and tree.tokens.tolist() == [5, 6, 7]


def test_a_measured_tree_is_that_of_the_heads_that_are_left(target):
    drafter = MedusaDrafter(heads_for(target), target.info, accuracy=ACCURACY)
    assert drafter.requirements.draws_trees
    drafter.observe((1,), torch.ones(1, 1, 64))
    for forced in range(4):
        tree = drafter.draft((5, 6, 7, 8)[: forced + 1], 9, sampler_of())
        expected = layout(tree_from_accuracy(ACCURACY[forced:], 9))
        assert [forced + parent for parent in expected.parents[1:]] == tree.parents[forced + 1 :].tolist()
    assert drafter.draft((5, 6, 7, 8, 9), 9, sampler_of()).num_nodes == 5  # no head is left


@pytest.mark.parametrize("rule", ["drafter-invariant", "recursive-rejection", "traversal", "point-mass"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_measured_tree_changes_no_tokens(target, rule, temperature):
    drafted, steps = run(target, MedusaDrafter(heads_for(target), target.info, accuracy=ACCURACY), temperature, rule)
    assert all(step.metrics.num_drafted for step in steps[1:-4]) and len(drafted) == 24
    if rule == "drafter-invariant" or temperature == 0:
        assert drafted == run(target, None, temperature)[0]


def test_the_tree_that_a_config_asks_for(target, tmp_path):
    net = heads_for(target)
    _saved(tmp_path / "heads", dict(net.state_dict()))
    asked = {
        "nothing": {},
        "best-first": {"medusa_tree": "best-first", "medusa_rank_accuracy": "not looked at"},
        "measured": {"medusa_tree": "measured", "medusa_rank_accuracy": ACCURACY},
        "published": {"medusa_tree": "published"},
    }
    for name, config in asked.items():
        (tmp_path / "heads" / "config.json").write_text(json.dumps(config))
        expected = MedusaDrafter(net, target.info, **{
            "measured": {"accuracy": ACCURACY}, "published": {"shape": MEDUSA_63},
        }.get(name, {"shape": "best-first"}))  # fmt: skip
        trees = []
        for drafter in (expected, load_drafter(tmp_path / "heads", target, 2)):
            assert drafter.requirements.draws_trees
            drafter.observe((1,), torch.ones(1, 1, 64))
            trees.append(drafter.draft((5, 6), 12, sampler_of()))
        assert trees[0].tokens.tolist() == trees[1].tokens.tolist(), name
        assert trees[0].parents.tolist() == trees[1].parents.tolist(), name
        assert not load_drafter(tmp_path / "heads", target, 1).requirements.draws_trees


@pytest.mark.parametrize("accuracy", [None, ACCURACY[:3], [*ACCURACY[:3], [1.5]], [*ACCURACY[:3], 0.5]], ids=str)
def test_a_tree_that_cannot_be_made_is_said(tmp_path, accuracy):
    (tmp_path / "config.json").write_text(json.dumps({"medusa_tree": "measured", "medusa_rank_accuracy": accuracy}))
    with pytest.raises(CheckpointError, match="one row of shares"):
        stored_tree(tmp_path, 4)
    (tmp_path / "config.json").write_text('{"medusa_tree": "widest"}')
    with pytest.raises(CheckpointError, match="'widest': choose best-first, measured or published"):
        stored_tree(tmp_path, 4)


def test_bytes_own_and_borrowed(target):
    own, borrowing = drafter_for(target), drafter_for(target, own=False)
    assert own.borrowed_bytes == 0 and own.own_bytes == 4 * (64 * 64 + 64 + 320 * 64) * 4
    assert borrowing.own_bytes == 4 * (64 * 64 + 64) * 4 and borrowing.borrowed_bytes == 320 * 64 * 4
    assert borrowing._head.weight.data_ptr() == target.lend("head").data_ptr()
    own.observe((1, 2), torch.ones(2, 1, 64))
    assert own.own_bytes == 4 * (64 * 64 + 64 + 320 * 64) * 4 + 2 * 64 * 4
    own.close()
