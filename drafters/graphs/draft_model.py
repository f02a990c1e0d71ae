"""A distilled draft model as a graph; the network: ``nets/draft_model_net.py``.

    step rows
      embedded             float [n, d]         rows of the target's embedding
      positions            int64 [n]
      start                int64 [1]            row i's keys and values go to slot start + i
      mask                 bool [n, S]          True where a row may look
      rows                 int64 [r]            the rows whose logits are wanted
      head                 float [V, d]         the target's head, where it is read whole
      past.L.key, .value   float [1, g, S, e]   for every layer L
      → present.L.key, …   the same with the new rows in place
      → logits             float [r, V_d]

A draft model that is a whole checkpoint is a target of its own, and its engine's graph is the target's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from ..nets.draft_model_net import DraftModelNet
from .net_graphs import NetGraphs, Weight
from .parts import HeadForm, LayerForm, add_layer, add_logits, array_of, layer_weights, norm_weight, rope_weights

if TYPE_CHECKING:
    from spec_planner.graphs.layers import GraphLayers


@dataclass(frozen=True)
class DraftModelForm:
    """Sizes; ``epsilon``: of the last norm."""

    size: int
    layers: tuple[LayerForm, ...]
    epsilon: float
    head: HeadForm


def draft_model_graphs(net: DraftModelNet, positions: int, head: torch.Tensor, head_is_lent: bool) -> NetGraphs:
    """The graph of a loaded network; ``head`` [V_d, d]: the target's, or a copy of some of its rows."""
    layers = tuple(LayerForm.of(layer) for layer in net.layers)
    form = DraftModelForm(net.sizes.hidden_size, layers, net.norm.epsilon, HeadForm(*head.shape, head_is_lent))

    def weights() -> Iterator[Weight]:
        yield from rope_weights(net.layers[0].self_attn.rope, net.sizes.head_dim, positions)
        for index, layer in enumerate(net.layers):
            yield from layer_weights(str(index), layer)
        yield norm_weight("norm", net.norm)
        if not head_is_lent:
            yield Weight("head", array_of(head), matrix=True)

    lent = {"head": array_of(head)} if head_is_lent else {}
    return NetGraphs("draft-model", form, weights, {"rows": partial(add_rows, form=form)}, lent)


def add_rows(graph: GraphLayers, form: DraftModelForm) -> None:
    hidden, rows = graph.input("embedded", graph.kind, "n", form.size), graph.indices("rows", "r")
    values = graph.pass_values(form.layers[0].attention.group)
    for index, layer in enumerate(form.layers):
        hidden = add_layer(graph, hidden, str(index), layer, values)
    scored = graph.norm(graph.take(hidden, rows), "norm", form.epsilon)
    graph.output(add_logits(graph, scored, form.head), "logits", "r", form.head.rows)
