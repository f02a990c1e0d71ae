"""Multi-token prediction as graphs, sequential modules and parallel heads; the networks: ``nets/mtp_net.py``.

Sequential, D modules, n rows, r of them scored, d hidden size, V_d tokens of the head:

    step module.k, k = 0 … D − 1
      hidden, embedded     float [n, d]         of the step before, or the target; of the token that each row reads
      positions            int64 [n]            of these tokens
      start                int64 [1]            row i's keys and values go to slot start + i
      mask                 bool [n, S]          True where a row may look
      rows                 int64 [r]            the rows whose logits are wanted; perhaps none
      head                 float [V, d]         the target's head, where it is read whole
      past.k.key, .value   float [1, g, S, e]
      → present.k.key, …   the same with the new rows in place
      → hidden.out         float [n, d]         what the next step gets
      → logits             float [r, V_d]

Parallel, K heads, r of them wanted:

    step follow            hidden [n, d], positions, start, past.k.… → present.k.…     what enters the last layer
    step heads             the same, and
      asked                int64 [1]            the row that the heads are asked at
      mask                 bool [1, S]          what it sees
      rows                 int64 [r]            the heads wanted
      head                 float [V, d]         as above
      → logits             float [r, V_d]

Blocks of plain attention and SwiGLU alone have a graph: what is gated, latent or a mixture of experts is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from ..nets.mtp_net import MtpForm, MtpNet, ParallelHeads
from .net_graphs import NetGraphs, TorchOnly, Weight
from .parts import (
    HeadForm,
    LayerForm,
    add_keys_values,
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
class ModulesForm:
    """Sizes of every sequential module, and how the family wires them."""

    size: int
    layers: tuple[LayerForm, ...]
    wiring: MtpForm
    epsilon: float
    head: HeadForm


@dataclass(frozen=True)
class HeadsForm:
    """Sizes of the parallel heads; ``epsilon``: of the target's final norm."""

    size: int
    layers: tuple[LayerForm, ...]
    epsilon: float
    head: HeadForm


def mtp_graphs(net: MtpNet, positions: int, head: torch.Tensor, head_is_lent: bool) -> NetGraphs:
    """The graphs of loaded modules; ``head`` [V_d, d]: the target's, or a copy of some of its rows.

    Raises:
        TorchOnly: a block is not plain.
    """
    modules = list(net.modules_by_depth)
    layers = tuple(LayerForm.of(module.block) for module in modules)
    _check_alike(layers)
    form = ModulesForm(net.hidden_size, layers, net.form, modules[0].norm.epsilon, HeadForm(*head.shape, head_is_lent))
    steps = {f"module.{depth}": partial(add_module, depth=depth, form=form) for depth in range(len(layers))}

    def weights() -> Iterator[Weight]:
        attention = modules[0].block.self_attn
        yield from rope_weights(attention.rope, attention.head_dim, positions)
        for depth, module in enumerate(modules):
            for name in ("enorm", "hnorm", "norm"):
                yield norm_weight(f"{depth}.{name}", getattr(module, name))
            yield from joined(f"{depth}.eh_proj", module.eh_proj)
            yield from layer_weights(str(depth), module.block)
        if not head_is_lent:
            yield Weight("head", array_of(head), matrix=True)

    return NetGraphs("mtp", form, weights, steps, {"head": array_of(head)} if head_is_lent else {})


def parallel_graphs(net: ParallelHeads, positions: int, final_norm: torch.Tensor, head: torch.Tensor,
                    head_is_lent: bool) -> NetGraphs:  # fmt: skip
    """The graphs of loaded parallel heads; ``final_norm`` [d]: the target's; ``head`` as for ``mtp_graphs``.

    Raises:
        TorchOnly: a block is not plain.
    """
    layers = tuple(LayerForm.of(block) for block in net.heads)
    _check_alike(layers)
    form = HeadsForm(net.hidden_size, layers, net.epsilon, HeadForm(*head.shape, head_is_lent))
    steps = {"follow": partial(add_follow, form=form), "heads": partial(add_heads, form=form)}

    def weights() -> Iterator[Weight]:
        attention = net.heads[0].self_attn
        yield from rope_weights(attention.rope, attention.head_dim, positions)
        yield Weight("final_norm", array_of(final_norm))
        for k, block in enumerate(net.heads):
            yield from layer_weights(str(k), block, apart=True)
        if not head_is_lent:
            yield Weight("head", array_of(head), matrix=True)

    return NetGraphs("mtp-parallel", form, weights, steps, {"head": array_of(head)} if head_is_lent else {})


def add_module(graph: GraphLayers, depth: int, form: ModulesForm) -> None:
    d, layer = form.size, form.layers[depth]
    hidden, embedded = graph.input("hidden", graph.kind, "n", d), graph.input("embedded", graph.kind, "n", d)
    rows = graph.indices("rows", "r")
    values = graph.pass_values(layer.attention.group)
    parts = [graph.norm(embedded, f"{depth}.enorm", form.epsilon), graph.norm(hidden, f"{depth}.hnorm", form.epsilon)]
    x = graph.concat(*(reversed(parts) if form.wiring.hidden_first else parts))
    made = add_layer(graph, graph.linear(x, f"{depth}.eh_proj", d, 2 * d), str(depth), layer, values)
    if form.wiring.recurse_normed:
        made = graph.norm(made, f"{depth}.norm", form.epsilon)
    made = graph.output(made, "hidden.out", "n", d)
    scored = graph.take(made, rows)
    if not form.wiring.recurse_normed:
        scored = graph.norm(scored, f"{depth}.norm", form.epsilon)
    graph.output(add_logits(graph, scored, form.head), "logits", "r", form.head.rows)


def add_follow(graph: GraphLayers, form: HeadsForm) -> None:
    trunk, values = graph.input("hidden", graph.kind, "n", form.size), graph.stored_values()
    for k, layer in enumerate(form.layers):
        add_keys_values(graph, graph.norm(trunk, f"{k}.input_norm", layer.epsilon), str(k), layer, values)


def add_heads(graph: GraphLayers, form: HeadsForm) -> None:
    """Keys and values of every row, and the rest of each head at the row asked."""
    trunk = graph.input("hidden", graph.kind, "n", form.size)
    asked, rows = graph.indices("asked", 1), graph.indices("rows", "r")
    values = graph.pass_values(form.layers[0].attention.group, asking=1)
    at_asked = replace(values, places=graph.take(values.places, asked, axis=1))
    trunk_asked, results = graph.take(trunk, asked), []
    for k, layer in enumerate(form.layers):
        attention, heads = layer.attention, layer.attention.heads
        x = graph.norm(trunk, f"{k}.input_norm", layer.epsilon)
        keys, cached = add_keys_values(graph, x, str(k), layer, values)
        query = graph.take(x, asked)
        query = graph.linear(query, f"{k}.q", heads.count * heads.size, attention.columns)
        query = graph.queries(query, str(k), heads, at_asked)
        attended = graph.look(query, keys, cached, str(k), heads, values, form.size)
        results.append(add_rest(graph, trunk_asked, attended, str(k), layer))
    wanted = graph.take(graph.add("Concat", *results, axis=0), rows)
    wanted = graph.norm(wanted, "final_norm", form.epsilon)
    graph.output(add_logits(graph, wanted, form.head), "logits", "r", form.head.rows)


def _check_alike(layers: tuple[LayerForm, ...]) -> None:
    if len({(layer.attention.head_dim, layer.attention.group) for layer in layers}) > 1:
        raise TorchOnly("modules with heads of different sizes have no graph: this draft network runs on torch only")
