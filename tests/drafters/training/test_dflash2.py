"""DFlash 2 in training: it learns, and what it says of itself is what the stored drafter does."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from drafters.checkpoint import detect, read_config
from drafters.nets.dflash2_net import LocalMixing
from drafters.training.dflash import DFlashOptions, DFlashTrainee
from drafters.training.dflash2 import DFlash2Options, DFlash2Trainee
from tests.drafters.training.rows_support import (
    check_alignment,
    check_gradients,
    learn,
    real_target,
    toy_batch,
    toy_weights,
)

SMALL = {"layers": 2, "block_size": 5, "anchors": 20, "loss_vocabulary": 24, "rank": 8, "top_k": 4, "group": 8}
PLAIN = DFlashOptions(layers=2, block_size=5, anchors=20)


def made(weights, seed: int = 0, **options) -> DFlash2Trainee:
    torch.manual_seed(seed)
    trainee = DFlash2Trainee(weights, DFlash2Options(**{**SMALL, **options}))
    return trainee


def stirred(trainee: DFlash2Trainee) -> DFlash2Trainee:
    """Mixing and selector far from the identity that they start as."""
    with torch.no_grad():
        for name, parameter in trainee.net.named_parameters():
            if "_conv." in name or "candidate_selector" in name:
                parameter += 0.5 * torch.randn_like(parameter)
    return trainee


def test_it_learns():
    weights = toy_weights()
    before, after = learn(made(weights), weights, 80)
    assert before < 1.5 and after > 3.5


def test_every_parameter_learns_and_chance_comes_from_the_generator_alone():
    weights = toy_weights()
    check_gradients(stirred(made(weights)), weights)


@pytest.mark.parametrize("options", [{}, {"draft_vocabulary": 20}, {"draft_vocabulary": 3}], ids=str)
def test_stored_it_drafts_as_it_was_judged(tmp_path, options):
    """Also with fewer tokens than candidates."""
    target, weights = real_target(tmp_path / "target")
    (tmp_path / "drafter").mkdir()
    check_alignment(stirred(made(weights, **options)), target, tmp_path / "drafter")
    assert len(read_config(tmp_path / "drafter").get("draft_tokens", ())) == options.get("draft_vocabulary", 0)
    assert detect(tmp_path / "drafter") == "dflash2"


def test_it_starts_as_dflash():
    """Same hidden states and same choices as a DFlash of the same weights; and the selector learns from step one."""
    weights = toy_weights()
    trainee, plain, batch = made(weights), DFlashTrainee(weights, PLAIN), toy_batch(weights, 0)
    own = plain.net.state_dict()
    plain.net.load_state_dict({name: value for name, value in trainee.net.state_dict().items() if name in own})
    ours, theirs = trainee.loss(batch), plain.loss(batch)
    assert torch.equal(ours.right, theirs.right)
    ours.sum.backward()
    selector = trainee.net.candidate_selector
    size = selector.hidden_projection.weight.grad.abs().mean()
    assert size > 0.1 * trainee.net.fc.weight.grad.abs().mean()
    for book in (selector.predecessor_codebook, selector.successor_codebook):
        assert book.std().item() == pytest.approx(0.4, rel=1e-3) and book.mean().abs() < 1e-3


def test_mixing_stays_within_a_block():
    trainee = stirred(made(toy_weights()))
    mixing = trainee.net.layers[0].attention_conv
    rows = torch.randn(3, 5, 32)
    sides = mixing.kernels(rows)
    together = LocalMixing.mix(sides[0], rows)
    for i in range(3):
        alone = LocalMixing.mix(mixing.kernels(rows[i])[0], rows[i])
        torch.testing.assert_close(together[i], alone)


def test_the_selector_learns_among_the_candidates_and_the_truth():
    """One slot whose true word is a candidate, one whose word is none and takes the place of the last."""
    trainee = stirred(made(toy_weights()))
    vocabulary = torch.tensor([0, 3, 5, 8, 11, 20, 30])
    hidden, logits = torch.randn(1, 4, 32), torch.randn(1, 4, 7)
    order = logits[0].argsort(dim=-1, descending=True)
    labels = torch.stack([order[0, 2], order[1, 6], order[2, 0], order[3, 3]])[None]
    ids = torch.cat((torch.tensor([[9]]), vocabulary[labels]), dim=1)
    entropy, right = trainee._choose(hidden, logits, ids, labels, vocabulary, None)
    selector = trainee.net.candidate_selector
    for slot, place in enumerate(labels[0].tolist()):
        among = order[slot, :4].tolist()
        is_candidate = place in among
        among = among if is_candidate else [*among[:3], place]
        code = selector.predecessor_codebook[ids[0, slot]] * selector.hidden_projection(hidden[0, slot])
        scores = logits[0, slot, among] + selector.successor_codebook[vocabulary[among]] @ code
        index = torch.tensor(among.index(place))
        torch.testing.assert_close(entropy[0, slot], F.cross_entropy(scores, index))
        assert bool(right[0, slot]) == (is_candidate and int(scores.argmax()) == int(index))


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="option group is 5: it must divide the target's hidden size, 32"):
        made(toy_weights(), group=5)
