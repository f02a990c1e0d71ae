"""What a drafter in training reads of its target: how often tokens are said, and which come first."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

from drafters.training.common import frequent_tokens  # noqa: E402
from drafters.training.dflash import unsaid_token  # noqa: E402
from drafters.training.rows import LossVocabulary  # noqa: E402
from drafters.training.trainee import make_trainee  # noqa: E402
from spec_planner.learning.distributed import Group  # noqa: E402
from spec_planner.tasks.task import TRAIN  # noqa: E402
from spec_planner.train.learner import read_target_weights  # noqa: E402
from spec_planner.train.responses import Response  # noqa: E402
from spec_planner.train.run import _Run  # noqa: E402
from tests.models import make_tiny_model  # noqa: E402

ANSWERS = [[9, 9, 8], [9, 7, 8]]
PROMPTS = [[300, 7, 9, 250, 300], [7, 300, 7]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("target") / "tiny", num_layers=8)


def read(model, answers=(), prompts=()):
    return read_target_weights(model, torch.device("cpu"), torch.float32, answers, prompts)


def test_answers_come_first_then_prompts_then_the_lowest_ids(model):
    weights = read(model, ANSWERS, PROMPTS)
    assert {token: int(weights.token_counts[token]) for token in (7, 8, 9, 250, 300, 5)} == {
        **{9: 3, 8: 2, 7: 1},
        **{250: 0, 300: 0, 5: 0},  # said by prompts alone
    }
    assert int(weights.token_counts.sum()) == 6 and int(weights.prompt_counts.sum()) == 8
    for size, kept in ((1, [9]), (3, [7, 8, 9]), (4, [7, 8, 9, 300]), (5, [7, 8, 9, 250, 300])):
        assert frequent_tokens(weights.token_ranks, size).tolist() == kept
    assert frequent_tokens(weights.token_ranks, 7).tolist() == [0, 1, 7, 8, 9, 250, 300]


def test_prompts_never_put_a_token_before_one_that_answers_say_more(model):
    generator = torch.Generator().manual_seed(0)
    answers, prompts = (torch.randint(0, high, (320,), generator=generator) for high in (4, 1000))
    weights = replace(read(model), token_counts=answers, prompt_counts=prompts)
    order = weights.token_ranks.argsort(descending=True, stable=True).tolist()
    expected = sorted(range(320), key=lambda token: (-int(answers[token]), -int(prompts[token]), token))
    assert order == expected


def test_without_prompts_the_order_is_that_of_the_answers(model):
    weights = read(model, ANSWERS)
    assert frequent_tokens(weights.token_ranks, 5).tolist() == [0, 1, 7, 8, 9]
    assert torch.equal(replace(weights, prompt_counts=None).token_ranks, weights.token_counts)


def test_a_token_of_prompts_alone_is_unsaid_still(model):
    weights = read(model, [range(300)], [[310, 319]])
    assert unsaid_token(weights) == 319
    with pytest.raises(ValueError, match="every token"):
        unsaid_token(read(model, [range(320)]))


def test_words_of_prompts_are_in_the_draft_and_the_loss_vocabulary(model):
    weights = read(model, ANSWERS, PROMPTS)
    trainee = make_trainee("eagle3", weights, {"draft_vocabulary": "5"})
    assert trainee._kept.tolist() == [7, 8, 9, 250, 300]
    vocabulary = LossVocabulary(weights.token_ranks, 10)
    tokens = vocabulary.tokens(torch.tensor([0]), torch.Generator().manual_seed(0)).tolist()
    assert {7, 8, 9, 250, 300} <= set(tokens)
    for kind in ("medusa", "mtp", "mtp-parallel", "eagle1", "dflash", "draft-model"):
        made = make_trainee(kind, weights, {"loss_vocabulary": "10"})
        assert made._vocabulary._frequent.tolist() == [9, 8, 7, 300, 250], kind


def test_a_run_counts_the_answers_and_prompts_it_learns_from(settings, tmp_path):
    device = torch.device("cpu")
    chosen = replace(settings, drafter="eagle1", options={"loss_vocabulary": "8"}, out=tmp_path)
    with Group(device, timedelta(seconds=9)) as group:
        run = _Run(chosen, device, group, lambda share, line: None, lambda: False)
        trainee = run.make_trainee([Response("toy/1", 0, "toy", TRAIN, 0.0, 0, [300, 300, 9], [9, 8])])
    assert trainee._vocabulary._frequent.tolist() == [9, 8, 300, 0]
