"""EAGLE-1, -2, -3 and -3.1 as graphs; the networks: ``nets/eagle1_net.py``, ``nets/eagle3_net.py``.

n rows, r of them scored, m features per token, d and d_t hidden sizes of drafter and target, V_d tokens of the head:

    step fuse (EAGLE-3 alone; EAGLE-1 reads the one feature as it is)
      features             float [n, m · d_t]   of committed tokens
      → hidden.out         float [n, d]         what their rows read
    step rows
      embedded             float [n, d]         the token after each row's own, rows of the embedding
      hidden               float [n, d]         fused features, or hidden.out of the row before
      positions            int64 [n]
      start                int64 [1]            row i's keys and values go to slot start + i
      mask                 bool [n, S]          True where row i may look
      rows                 int64 [r]            the rows whose logits are wanted; perhaps none
      head                 float [V, d]         the target's head, where the drafter borrows it whole
      past.L.key, .value   float [1, g, S, e]   for every layer L
      → present.L.key, …   the same with the new rows in place
      → hidden.out         float [n, d]         fed back
      → logits             float [r, V_d]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..nets.eagle1_net import Eagle1Net
from ..nets.eagle3_net import Eagle3Net
from .net_graphs import NetGraphs, Weight
from .parts import (
    HeadForm,
    LayerForm,
    add_layer,
    add_logits,
    add_rest,
    array_of,
    joined,
    layer_weights,
    norm_weight,
    rope_weights,
)

if TYPE_CHECKING:
    from spec_planner.graphs.layers import GraphLayers


@dataclass(frozen=True)
class EagleForm:
    """Sizes and switches of either network; those of EAGLE-3 are off in EAGLE-1.

    Attributes:
        width: of what ``fc`` reads.
        epsilon: of every norm outside the layers.
    """

    size: int
    width: int
    num_features: int
    layers: tuple[LayerForm, ...]
    head: HeadForm
    epsilon: float
    is_eagle3: bool
    norms_features: bool = False  # each feature by a norm of its own
    norms_input: bool = False  # all features side by side
    norm_before_residual: bool = False
    norm_output: bool = False


def eagle_graphs(net: Eagle1Net | Eagle3Net, positions: int, head_is_lent: bool) -> NetGraphs:
    """The graphs of a loaded network.

    Args:
        positions: rotary tables reach so far.
        head_is_lent: the head is the target's own, not a copy of all or some of its rows.
    """
    form = _form(net, head_is_lent)
    steps = {"rows": partial(add_rows, form=form)}
    if form.is_eagle3:
        steps["fuse"] = partial(add_fuse, form=form)
    lent = {"head": array_of(net.head_weight)} if head_is_lent else {}
    return NetGraphs(net.kind, form, partial(_weights, net, form, positions), steps, lent)


def add_fuse(graph: GraphLayers, form: EagleForm) -> None:
    features = graph.input("features", graph.kind, "n", form.width)
    if form.norms_features:
        parts = graph.split(features, *[form.width // form.num_features] * form.num_features)
        features = graph.concat(*(graph.norm(part, f"fc_norm.{i}", form.epsilon) for i, part in enumerate(parts)))
    if form.norms_input:
        features = graph.norm(features, "input_norm", form.epsilon)
    graph.output(graph.linear(features, "fc", form.size, form.width), "hidden.out", "n", form.size)


def add_rows(graph: GraphLayers, form: EagleForm) -> None:
    embedded = graph.input("embedded", graph.kind, "n", form.size)
    hidden = graph.input("hidden", graph.kind, "n", form.size)
    rows = graph.indices("rows", "r")
    first, *rest = form.layers
    values = graph.pass_values(first.attention.group)
    if form.is_eagle3:
        normed = graph.norm(hidden, "0.hidden_norm", form.epsilon)
        x = graph.concat(graph.norm(embedded, "0.input_norm", form.epsilon), normed)
        sizes = first.attention
        attended = graph.attention(x, "0", sizes.columns, sizes.heads, values, sizes.size)
        x = add_rest(graph, normed if form.norm_before_residual else hidden, attended, "0", first)
    else:
        x = graph.linear(graph.concat(embedded, hidden), "fc", form.size, form.width)
        x = add_layer(graph, x, "0", first, values)
    for index, layer in enumerate(rest, start=1):
        x = add_layer(graph, x, str(index), layer, values)
    if form.norm_output:
        x = graph.norm(x, "norm", form.epsilon)
    x = graph.output(x, "hidden.out", "n", form.size)
    scored = graph.take(x, rows)
    if form.is_eagle3 and not form.norm_output:
        scored = graph.norm(scored, "norm", form.epsilon)
    graph.output(add_logits(graph, scored, form.head), "logits", "r", form.head.rows)


def _form(net: Eagle1Net | Eagle3Net, head_is_lent: bool) -> EagleForm:
    layers = tuple(LayerForm.of(layer) for layer in net.layers)
    head = HeadForm(*net.head_weight.shape, head_is_lent)
    shared = (net.hidden_size, net.fc.in_features, net.num_features, layers, head)
    if isinstance(net, Eagle1Net):
        return EagleForm(*shared, net.sizes.epsilon, False)
    return EagleForm(
        *shared, net.norm.epsilon, True, net.fc_norm is not None, net.input_norm is not None,
        net.layers[0].norm_before_residual, net.norm_output,
    )  # fmt: skip


def _weights(net: Eagle1Net | Eagle3Net, form: EagleForm, positions: int) -> Iterator[Weight]:
    yield from rope_weights(net.layers[0].self_attn.rope, net.sizes.head_dim, positions)
    yield from joined("fc", net.fc)
    for index, layer in enumerate(net.layers):
        yield from layer_weights(str(index), layer)
    if isinstance(net, Eagle3Net):
        yield norm_weight("0.hidden_norm", net.layers[0].hidden_norm)
        yield norm_weight("norm", net.norm)
        for index, norm in enumerate(net.fc_norm or ()):
            yield norm_weight(f"fc_norm.{index}", norm)
        if net.input_norm is not None:
            yield norm_weight("input_norm", net.input_norm)
    if not form.head.lent:
        yield Weight("head", array_of(net.head_weight), matrix=True)
