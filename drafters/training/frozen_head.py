"""What a draft costs through the target's own head, which does not learn.

    made [m, d] ──head──▶ logits [m, V] ──▶ −Σ p log q,  its slope on ``made``,  the likeliest tokens

The logits of a whole batch at once are the largest thing in training: V is a hundred times d. Since the head gets no
gradient, the loss and its slope are worked out together, a few rows at a time, and only the slope [m, d] is kept.

Logits reach thirty and more, where bfloat16 has steps of an eighth to a quarter: too coarse to tell the likeliest
token, or a law. The target's laws are therefore float32 products whatever the type of training, and so is what is
evaluated; only a drafter that learns has its own logits in the faster type, whose noise its many steps even out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .batch import Batch, Loss, TargetWeights
from .draft_tokens import likeliest
from .rows import Windows, head_logits, head_rows

_AT_ONCE = 1 << 26  # logits that exist at a time, of the drafter and as many of the target


def windowed_loss(
    target: TargetWeights, batch: Batch, windows: Windows, made: Tensor, decay: float, soft: bool, tokens: Tensor,
    kept: Tensor | None,
) -> Loss:  # fmt: skip
    """The loss of drafts at depth 1 … K, depth k weighted by ``decay`` ** (k − 1); a mean over these weights.

    Args:
        windows: w of them.
        made: [w, K, d]; what the head is to read for each draft.
        soft: learn the target's law at temperature 1 instead of the token that it wrote. Where tokens were drawn from
            it, a token is one draw of that law given all before: the slope is the same on average, and the law shows
            all of it without the noise. Where they were the likeliest ones, the law still has them on top, and says by
            how much. It takes the batch to hold the target's last hidden state, and the head once more per row.
        tokens: ids, int64 ascending, that the laws are over; every token of the windows is among them.
        kept: which of these the drafter may say, by their places (``draft_tokens.likeliest``).
    """
    rows, labels, weights, judged = drafts(batch, windows, decay)
    states = batch.features[target.num_layers] if soft else None
    places = torch.searchsorted(tokens, labels)
    head = head_rows(target.head, tokens)
    total, best = loss_through_head(made[judged], head, rows, places, weights, states, kept)
    return tally(windows, judged, total, weights, best == places)


def drafts(batch: Batch, windows: Windows, decay: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All drafts in ``windows`` that lie within their answers, n of them.

    Returns:
        The rows [n] whose successor each of them guesses, those successors' ids [n], the weights [n] of the losses,
        and bool [w, K], where they stand: indexing by it yields them in this order.
    """
    judged = windows.judged
    by_depth = decay ** torch.arange(judged.shape[1], device=judged.device, dtype=torch.float32)
    weights = by_depth * windows.counts[:, None]
    return windows.rows[:, :-1][judged], windows.tokens(batch)[:, 1:][judged], weights[judged], judged


def tally(windows: Windows, judged: Tensor, total: Tensor, weights: Tensor, hits: Tensor) -> Loss:
    """The loss ``total``, from ``hits`` bool [n] of the drafts that ``drafts`` lists."""
    right = torch.zeros_like(judged)
    right[judged] = hits
    return Loss(total, float(weights.sum()), right[windows.places], judged[windows.places])


def loss_through_head(
    made: Tensor, head: Tensor, rows: Tensor, labels: Tensor, weights: Tensor, states: Tensor | None,
    kept: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Σ weights · (−Σ p log q), q = softmax(head · made), and the likeliest tokens int64 [m] (of equals the lowest).

    Args:
        made: [m, d]; differentiable, once.
        head: [V, d]; gets no gradient.
        rows, labels: int64 [m]; of ``states``, the row whose law p is to be learnt, and the token to learn without.
        weights: float32 [m].
        states: the target's hidden states [n, d] that its head reads; None: p is 1 at ``labels``.
        kept: the rows of ``head`` whose tokens may be the likeliest; None: all. The laws are over all of them.
    """
    result: tuple[Tensor, Tensor] = _ThroughHead.apply(made, head, rows, labels, weights, states, kept)
    return result


class _ThroughHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, made: Tensor, head: Tensor, rows: Tensor, labels: Tensor, weights: Tensor,
                states: Tensor | None, kept: Tensor | None) -> tuple[Tensor, Tensor]:  # fmt: skip
        slope = torch.empty_like(made) if ctx.needs_input_grad[0] else None
        wide = head.float()  # once, where the head is kept in a narrower type
        best, total = torch.empty_like(labels), made.new_zeros((), dtype=torch.float32)
        # In the order of their rows, so that drafts which learn one law lie together and it is worked out once.
        for part in torch.argsort(rows, stable=True).split(max(_AT_ONCE // len(head), 1)):
            if slope is None:
                logits = head_logits(made[part], wide)
            else:
                logits = F.linear(made[part].to(head.dtype), head).float()
            best[part] = likeliest(logits, kept)
            log_sum = logits.logsumexp(-1)
            laws = None
            if states is None:
                expected = logits.gather(1, labels[part, None])[:, 0]
            else:
                distinct, place = rows[part].unique_consecutive(return_inverse=True)
                laws = head_logits(states[distinct], wide).softmax(-1)[place]
                expected = (laws * logits).sum(-1)
            total += (weights[part] * (log_sum - expected)).sum()
            if slope is None:
                continue
            excess = logits.sub_(log_sum[:, None]).exp_()
            if laws is None:
                excess.scatter_add_(1, labels[part, None], -torch.ones_like(log_sum)[:, None])
            else:
                excess -= laws
            excess *= weights[part, None]
            slope[part] = (excess.to(head.dtype) @ head).to(slope.dtype)
        ctx.mark_non_differentiable(best)
        if slope is not None:
            ctx.save_for_backward(slope)
        return total, best

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, above: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return slope * above.to(slope.dtype), None, None, None, None, None, None
