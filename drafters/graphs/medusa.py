"""Medusa's heads as a graph; the network: ``nets/medusa_net.py``.

K heads, r of them wanted, d hidden size, V_d tokens that are guessed among:

    step heads
      hidden               float [1, d]         the target's hidden state, after its final norm
      rows                 int64 [r]            the heads wanted
      head                 float [V, d]         the target's head, where the heads have none and it is read whole
      → logits             float [r, V_d]

Heads with an output of their own are all worked out, whichever are wanted: a graph leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from ..nets.medusa_net import MedusaNet
from .net_graphs import NetGraphs, Weight
from .parts import HeadForm, add_logits, array_of, joined

if TYPE_CHECKING:
    from spec_planner.graphs.layers import GraphLayers


@dataclass(frozen=True)
class MedusaForm:
    """``head``: that all heads share, or, with ``own_outputs``, the sizes of each one's own."""

    size: int
    num_heads: int
    num_layers: int
    head: HeadForm
    own_outputs: bool


def medusa_graphs(net: MedusaNet, head: torch.Tensor | None, head_is_lent: bool) -> NetGraphs:
    """The graph of loaded heads; ``head`` [V_d, d]: the target's, or rows of it, for heads without an output."""
    num_layers = len(net[0]) - (not net.borrows_head)
    rows = net.vocabulary_size if head is None else len(head)
    sizes = HeadForm(rows, net.hidden_size, head_is_lent)
    form = MedusaForm(net.hidden_size, len(net), num_layers, sizes, head is None)
    lent = {"head": array_of(head)} if head is not None and head_is_lent else {}
    return NetGraphs("medusa", form, partial(_weights, net, head, form), {"heads": partial(add_heads, form=form)}, lent)


def add_heads(graph: GraphLayers, form: MedusaForm) -> None:
    d = form.size
    hidden, rows = graph.input("hidden", graph.kind, 1, d), graph.indices("rows", "r")
    first = graph.reshape(graph.linear(hidden, "0", form.num_heads * d, d), form.num_heads, d)
    x = graph.add("Add", hidden, graph.silu(first))  # [K, d]
    if form.num_layers > 1 or form.own_outputs:
        each = [graph.take(x, graph.constant([k])) for k in range(form.num_heads)]
        for layer in range(1, form.num_layers):
            each = [graph.add("Add", one, graph.silu(graph.linear(one, f"{k}.{layer}", d, d)))
                    for k, one in enumerate(each)]  # fmt: skip
        if form.own_outputs:
            each = [graph.linear(one, f"{k}.head", form.head.rows, d) for k, one in enumerate(each)]
        x = graph.add("Concat", *each, axis=0)
    wanted = graph.take(x, rows)
    logits = wanted if form.own_outputs else add_logits(graph, wanted, form.head)
    graph.output(logits, "logits", "r", form.head.rows)


def _weights(net: MedusaNet, head: torch.Tensor | None, form: MedusaForm) -> Iterator[Weight]:
    yield from joined("0", *(blocks[0].linear for blocks in net))
    for k, blocks in enumerate(net):
        for layer in range(1, form.num_layers):
            yield from joined(f"{k}.{layer}", blocks[layer].linear)
        if form.own_outputs:
            yield from joined(f"{k}.head", blocks[form.num_layers])
    if head is not None and not form.head.lent:
        yield Weight("head", array_of(head), matrix=True)
