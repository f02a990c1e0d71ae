"""What the trainees of EAGLE and DFlash share."""

from __future__ import annotations

import torch

from drafters.training.rows import head_logits


def test_logits_are_not_rounded_where_other_products_are():
    generator = torch.Generator().manual_seed(0)
    hidden, head = (torch.randn(size, 64, generator=generator) for size in (5, 9))
    exact = (hidden.double() * 4) @ head.to(torch.bfloat16).double().T
    with torch.autocast("cpu", torch.bfloat16):
        logits = head_logits(hidden * 4, head.to(torch.bfloat16))
        rounded = (hidden * 4) @ head.T
    assert logits.dtype == torch.float32 and rounded.dtype == torch.bfloat16
    assert (logits - exact).abs().max() < 1e-4 < 0.02 < (rounded - exact).abs().max()
