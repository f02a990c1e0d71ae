"""The loss through a head that does not learn is the plain one, however few rows are worked on at a time."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from drafters.training import frozen_head
from drafters.training.common import soft_cross_entropy


@pytest.mark.parametrize("soft", [True, False])
@pytest.mark.parametrize("at_once", [1, 7 * 40, 1 << 26])
def test_it_is_the_plain_loss(monkeypatch, soft, at_once):
    monkeypatch.setattr(frozen_head, "_AT_ONCE", at_once)
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    head, states, weights = draw(40, 8), draw(9, 8), draw(23).abs()
    made = draw(23, 8).requires_grad_()
    rows = torch.randint(0, 9, (23,), generator=generator)
    labels = torch.randint(0, 40, (23,), generator=generator)
    logits = made @ head.T
    plain = (
        soft_cross_entropy(logits, states[rows] @ head.T) if soft else F.cross_entropy(logits, labels, reduction="none")
    )
    (expected,) = torch.autograd.grad((plain * weights).sum() * 3, made)
    total, best = frozen_head.loss_through_head(made, head, rows, labels, weights, states if soft else None)
    (slope,) = torch.autograd.grad(total * 3, made)
    torch.testing.assert_close(total, (plain * weights).sum())
    torch.testing.assert_close(slope, expected)
    assert torch.equal(best, logits.argmax(-1))
    kept = torch.tensor([3, 4, 11, 30])
    with torch.no_grad():
        again, said = frozen_head.loss_through_head(made, head, rows, labels, weights, states if soft else None, kept)
    assert torch.equal(again, total)  # over all tokens, whatever may be said
    assert torch.equal(said, kept[logits[:, kept].argmax(-1)])


def test_what_is_evaluated_and_the_targets_laws_are_not_rounded():
    """Logits of some fifty that lie close together: in bfloat16 a quarter of a nat apart, or the same."""
    generator = torch.Generator().manual_seed(3)
    head = 8 + 0.05 * torch.randn(12, 8, generator=generator)
    states = 1 + 0.3 * torch.rand(1, 8, generator=generator)
    head[:, 0], states[0, 0] = 8 * torch.eye(12)[1], 0  # which the law does not look at
    drafted = torch.eye(8)[:1].requires_grad_()  # looks at nothing else, and its logits are exact in bfloat16 too
    row, label, weight = torch.tensor([0]), torch.tensor([1]), torch.ones(1)
    logits = states @ head.T
    with torch.autocast("cpu", torch.bfloat16):
        rounded = (states @ head.T).float()
        with torch.no_grad():
            evaluated, best = frozen_head.loss_through_head(states, head, row, label, weight, None)
        learnt, _ = frozen_head.loss_through_head(drafted, head, row, label, weight, states)
    assert not torch.allclose(F.cross_entropy(rounded, label), F.cross_entropy(logits, label), atol=1e-3)
    torch.testing.assert_close(evaluated, F.cross_entropy(logits, label))
    assert best.item() == logits.argmax()
    torch.testing.assert_close(learnt, soft_cross_entropy(head[None, :, 0], logits)[0])
    assert not torch.allclose(soft_cross_entropy(head[None, :, 0], rounded)[0], learnt, atol=1e-3)


def test_no_draft_at_all_costs_nothing():
    made = torch.zeros(0, 8, requires_grad=True)
    none = torch.zeros(0, dtype=torch.int64)
    total, best = frozen_head.loss_through_head(made, torch.ones(5, 8), none, none, torch.zeros(0), None)
    total.backward()
    assert total == 0 and len(best) == 0
