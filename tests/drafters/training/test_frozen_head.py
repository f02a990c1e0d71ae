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
    with torch.no_grad():
        again, _ = frozen_head.loss_through_head(made, head, rows, labels, weights, states if soft else None)
    assert torch.equal(again, total)


def test_what_is_evaluated_and_the_targets_laws_are_not_rounded():
    """Logits of thirty, a twentieth apart: in bfloat16 they are equal."""
    head = torch.full((4, 8), 30.0 / 8)
    head[2] += 0.05 / 8
    head[3] += 0.1 / 8
    states = torch.ones(1, 8)
    rows, weights = torch.zeros(1, dtype=torch.int64), torch.ones(1)
    plain, alike = (F.linear(states, each) for each in (head, head.to(torch.bfloat16).float()))
    assert float(alike.max() - alike.min()) == 0 and float(plain.max() - plain.min()) > 0.09
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            total, best = frozen_head.loss_through_head(states, head, rows, rows, weights, states)
        made = torch.zeros(1, 8, requires_grad=True)  # all tokens alike: its slope is (1/4 − p) · head
        (slope,) = torch.autograd.grad(frozen_head.loss_through_head(made, head, rows, rows, weights, states)[0], made)
    assert best.item() == 3
    torch.testing.assert_close(total, soft_cross_entropy(plain, plain).sum())
    assert bool((slope < 0).all()) or bool(slope.abs().max() > 0)


def test_no_draft_at_all_costs_nothing():
    made = torch.zeros(0, 8, requires_grad=True)
    none = torch.zeros(0, dtype=torch.int64)
    total, best = frozen_head.loss_through_head(made, torch.ones(5, 8), none, none, torch.zeros(0), None)
    total.backward()
    assert total == 0 and len(best) == 0
