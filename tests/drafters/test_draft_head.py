"""Drafters that read few rows of the target's head: which rows, whose bytes, and that no token changes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from drafters.checkpoint import CheckpointError
from drafters.draft_head import DraftHead, read_draft_tokens
from drafters.footprint import checkpoint_bytes
from drafters.registry import load_drafter
from drafters.training.trainee import TRAINEES, make_trainee
from drafters.vocab_map import ABSENT
from spec_planner.decoding.contracts import PromptInput, check_compatible
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.draft_sampler import RunDraftSampler
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.random_stream import RandomStream
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.decoding.stopping import Stopping
from spec_planner.engines.torch_target import TorchTarget
from spec_planner.train.learner import read_target_weights
from tests.drafters.test_checkpoint import make_eagle
from tests.models import make_tiny_model

BORROWING = [kind for kind in TRAINEES if kind != "eagle3"]  # which has a head of its own
HIDDEN, VOCABULARY, KEPT = 64, 320, 40
PROMPT = tuple(range(3, 60, 4))
RULE = RULES["drafter-invariant"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target") / "tiny", "qwen3", num_layers=4, tied=False)


@pytest.fixture(scope="module")
def target(model):
    target = TorchTarget.load(model, context_length=256, device="cpu")
    yield target
    target.close()


def stored(kind: str, model: Path, directory: Path, size: int) -> Path:
    """A drafter that is off the one it begins as, and keeps ``size`` tokens, all of them even."""
    said = [2 * token for token in range(KEPT)]
    weights = read_target_weights(model, torch.device("cpu"), torch.float32, [said])
    torch.manual_seed(1)
    trainee = make_trainee(kind, weights, {"draft_vocabulary": str(size)})
    with torch.no_grad():
        for parameter in trainee.net.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    directory.mkdir()
    trainee.save(directory, {})
    return directory


def change(directory: Path, **fields) -> Path:
    config = directory / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
    return directory


def run(target, drafter, temperature, constraint=None):
    target.truncate(0)
    if drafter is not None:
        drafter.truncate(0)
    sampling = SamplingParams(temperature, seed=1)
    steps = list(decode(target, drafter, PromptInput(PROMPT), sampling, Stopping(24), RULE, FixedBudget(6),
                        constraint=constraint))  # fmt: skip
    return [token for step in steps for token in step.tokens], sum(step.metrics.num_drafted for step in steps)


def draft(target, drafter, temperature=0.0):
    """After the prompt, as the target has read it."""
    target.truncate(0)
    target.tap(drafter.requirements.feature_layers)
    features = target.extend(PromptInput(PROMPT)).features(range(len(PROMPT)))
    drafter.truncate(0)
    drafter.observe(PROMPT, features)
    sampler = RunDraftSampler(RULE, SamplingParams(temperature, seed=3), RandomStream(3))
    sampler.anchor_position = len(PROMPT)
    return drafter.draft((5,), 6, sampler)


class Odd:
    """Only tokens that the drafters here do not keep; and now and then two of them are forced."""

    def allowed(self, tokens):
        mask = np.arange(VOCABULARY) % 2 == 1
        if len(tokens) % 5 in (3, 4):
            mask[:] = False
            mask[11] = True
        return mask

    def forced(self, tokens):
        return {3: (11, 11), 4: (11,)}.get(len(tokens) % 5, ())


def test_of_a_few_tokens_the_rows_are_copied():
    lent = torch.randn(8, 4)
    head, hidden = DraftHead(lent, [1, 2, 6]), torch.randn(2, 4)
    assert head.weight.is_contiguous() and head.weight.untyped_storage().nbytes() == head.own_bytes == 3 * 4 * 4
    assert head.borrows == () and head.lent == [] and head.vocabulary.size == 8
    logits = head.spread(hidden @ head.weight.T)
    np.testing.assert_array_equal(logits[:, [1, 2, 6]], (hidden @ lent[[1, 2, 6]].T).numpy())
    assert logits.shape == (2, 8) and (logits == ABSENT).sum() == 2 * 5


@pytest.mark.parametrize("kept", [None, range(8)])
def test_of_all_tokens_the_head_is_read_where_it_lies(kept):
    array = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    array.setflags(write=False)  # as of a memory-mapped file
    head = DraftHead(array, kept)
    assert head.weight.data_ptr() == array.ctypes.data and head.own_bytes == 0 and head.borrows == ("head",)
    assert head.kept is None and head.lent == [head.weight]
    np.testing.assert_allclose(head.spread(torch.ones(4) @ head.weight.T), array.sum(1), rtol=1e-5)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ([1, 8], "list ids from 0 to 7"), ([-1, 2], "list ids from 0 to 7"), ([], "list ids from 0 to 7"),
        ("all", "list ids from 0 to 7"), ([1, 2.0], "list ids from 0 to 7"), ([True], "list ids from 0 to 7"),
        ([1, 2, 2], "each id once and in ascending order"), ([2, 1], "each id once and in ascending order"),
    ],
)  # fmt: skip
def test_tokens_that_are_none_of_the_targets_are_refused(tmp_path, kept, said):
    (tmp_path / "config.json").write_text(json.dumps({"draft_tokens": kept}))
    with pytest.raises(CheckpointError, match=f"draft_tokens in .*config.json must .*{said}"):
        read_draft_tokens(tmp_path, 8)


def test_what_does_not_name_them_keeps_all(tmp_path):
    assert read_draft_tokens(tmp_path, 8) is None
    (tmp_path / "config.json").write_text("{}")
    assert read_draft_tokens(tmp_path, 8) is read_draft_tokens(tmp_path, 8, borrows_head=False) is None
    change(tmp_path, draft_tokens=[0, 7])
    assert read_draft_tokens(tmp_path, 8) == read_draft_tokens(tmp_path / "model.safetensors", 8) == [0, 7]


@pytest.mark.parametrize("kind", BORROWING)
def test_it_says_kept_tokens_alone_and_counts_their_rows_as_its_own(kind, model, target, tmp_path):
    directory = stored(kind, model, tmp_path / "drafter", KEPT)
    kept = json.loads((directory / "config.json").read_text())["draft_tokens"]
    assert kept == list(range(0, 2 * KEPT, 2))
    few = load_drafter(directory, target, 1)
    check_compatible(target.info, few)
    drafts = [draft(target, few, temperature).tokens[1:].tolist() for temperature in (0.0, 1.0)]
    assert all(tokens and set(tokens) <= set(kept) for tokens in drafts)
    whole = load_drafter(change(directory, draft_tokens=None), target, 1)
    draft(target, whole), draft(target, whole, 1.0)
    rows, head = KEPT * HIDDEN * 4, VOCABULARY * HIDDEN * 4
    assert few.own_bytes == whole.own_bytes + rows and few.borrowed_bytes == whole.borrowed_bytes - head
    assert set(whole.requirements.borrows) - set(few.requirements.borrows) == {"head"}
    assert few.requirements.vocabulary_size == VOCABULARY
    few.close(), whole.close()


@pytest.mark.parametrize("branches", [1, 3], ids=["chain", "tree"])
@pytest.mark.parametrize("kind", BORROWING)
def test_with_every_token_named_it_is_as_with_none(kind, branches, model, target, tmp_path):
    directory = stored(kind, model, tmp_path / "drafter", 0)
    assert "draft_tokens" not in json.loads((directory / "config.json").read_text())
    first = load_drafter(directory, target, branches)
    second = load_drafter(change(directory, draft_tokens=list(range(VOCABULARY))), target, branches)
    for temperature in (0.0, 1.0):
        trees = [draft(target, drafter, temperature) for drafter in (first, second)]
        assert trees[0].tokens.tolist() == trees[1].tokens.tolist() and trees[0].num_draft_tokens > 0
        assert trees[0].parents.tolist() == trees[1].parents.tolist()
    assert (first.own_bytes, first.borrowed_bytes) == (second.own_bytes, second.borrowed_bytes)
    assert first.requirements == second.requirements


@pytest.mark.parametrize("branches", [1, 3], ids=["chain", "tree"])
@pytest.mark.parametrize("kind", BORROWING)
def test_the_targets_tokens_stay_the_same(kind, branches, model, target, tmp_path):
    """Also where a grammar allows none of the tokens kept: something lawful is drafted all the same."""
    drafter = load_drafter(stored(kind, model, tmp_path / "drafter", KEPT), target, branches)
    for constraint in (None, Odd()):
        for temperature in (0.0, 1.0):
            plain, _ = run(target, None, temperature, constraint)
            drafted, count = run(target, drafter, temperature, constraint)
            assert drafted == plain and count > 12
            assert constraint is None or all(token % 2 for token in drafted)
    drafter.close()


@pytest.mark.parametrize("rule", ["rejection", "recursive-rejection", "traversal"])
@pytest.mark.parametrize("kind", BORROWING)
def test_rules_that_read_laws_find_them_over_kept_tokens(kind, rule, model, target, tmp_path):
    drafter = load_drafter(stored(kind, model, tmp_path / "drafter", KEPT), target, 1)
    target.truncate(0)
    steps = list(decode(target, drafter, PromptInput(PROMPT), SamplingParams(1.0, seed=2), Stopping(24), RULES[rule],
                        FixedBudget(6)))  # fmt: skip
    assert sum(len(step.tokens) for step in steps) == 24
    drafter.close()


@pytest.mark.parametrize("kind", BORROWING)
def test_tokens_of_another_target_are_refused_on_loading(kind, model, target, tmp_path):
    directory = change(stored(kind, model, tmp_path / "drafter", KEPT), draft_tokens=[3, VOCABULARY])
    with pytest.raises(CheckpointError, match="ids from 0 to 319, the target's vocabulary"):
        load_drafter(directory, target, 1)
    with pytest.raises(CheckpointError, match="ids from 0 to 319, the target's vocabulary"):
        checkpoint_bytes(directory, model, "float32", 0)


@pytest.mark.parametrize("kind", BORROWING)
def test_what_is_learnt_has_the_same_names_and_shapes_whatever_is_kept(kind, model):
    """So a run that began before there was a choice is stored with one when it is resumed."""
    weights = read_target_weights(model, torch.device("cpu"), torch.float32)
    shapes = [
        {name: value.shape for name, value in make_trainee(kind, weights, options).net.state_dict().items()}
        for options in ({}, {"draft_vocabulary": "0"}, {"draft_vocabulary": "40"})
    ]
    assert shapes[0] == shapes[1] == shapes[2]
    with pytest.raises(ValueError, match="option draft_vocabulary must be 0, for all tokens, or more, got -1"):
        make_trainee(kind, weights, {"draft_vocabulary": "-1"})


def test_a_copy_of_the_head_that_is_not_the_targets_has_its_rows_taken_too(model, target, tmp_path):
    """EAGLE-1 of other programs may bring one, trained further."""
    make_eagle(tmp_path, "eagle1", vocabulary=VOCABULARY, hidden=HIDDEN, target_layers=4, draft_vocabulary=KEPT)
    file, copy = tmp_path / "model.safetensors", torch.randn(VOCABULARY, HIDDEN)
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": copy}, file)
    own = load_drafter(tmp_path, target, 1).own_bytes
    change(tmp_path, draft_tokens=[4, 9])
    drafter = load_drafter(tmp_path, target, 1)
    assert torch.equal(drafter._net.head, copy[[4, 9]]) and "head" not in drafter.requirements.borrows
    assert drafter.own_bytes == own - (VOCABULARY - 2) * HIDDEN * 4 == checkpoint_bytes(tmp_path, model, "float32", 0)
    save_file({**tensors, "lm_head.weight": torch.as_tensor(target.lend("head")).clone()}, file)
    assert load_drafter(tmp_path, target, 1).own_bytes == checkpoint_bytes(tmp_path, model, "float32", 0)


def test_of_an_output_of_its_own_no_row_can_be_left_out(model, target, tmp_path):
    weights = read_target_weights(model, torch.device("cpu"), torch.float32)
    for kind, options in (("medusa", {"borrows_head": "false"}), ("eagle3", {"feature_layers": "1,2,3"})):
        (tmp_path / kind).mkdir()
        make_trainee(kind, weights, {**options, "draft_vocabulary": "40"}).save(tmp_path / kind, {})
        load_drafter(tmp_path / kind, target, 1)
        with pytest.raises(CheckpointError, match="this one has an output of its own: remove the field"):
            load_drafter(change(tmp_path / kind, draft_tokens=[1, 2]), target, 1)
