"""DFlash and DFlash 2 as graphs; the networks: ``nets/dflash_net.py``, ``nets/dflash2_net.py``.

n rows, r of them scored, m features per token, d hidden size, V_d tokens of the head:

    step follow
      features             float [n, m · d]     of committed tokens
      positions            int64 [n]
      start                int64 [1]            row i's keys and values go to slot start + i
      past.L.key, .value   float [1, g, S, e]   for every layer L
      → present.L.key, …   the same with the new rows in place
    step block
      embedded             float [n, d]         forced tokens, the anchor, then mask tokens
      positions, start, past.…, present.…       as above; the rows are overwritten by what is followed next
      mask, mask.1, …      bool [n, S]          True where a row may look, for each way to look that layers have
      rows                 int64 [r]            the slots wanted
      head                 float [V, d]         the target's head, where the drafter borrows it whole
      → hidden.out         float [r, d]         of the slots wanted, after the norm
      → logits             float [r, V_d]

DFlash 2's selector stays in torch: per cycle it takes the 16 best of a few rows and gathers their codes, which no
engine does faster, and what it gathers depends on the tokens drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..nets.dflash2_net import DFlash2Layer, LocalMixing
from ..nets.dflash_net import UNREACHED, DFlashNet, Looking
from .net_graphs import AHEAD, NetGraphs, TorchOnly, Weight
from .parts import (
    HeadForm,
    LayerForm,
    add_keys_values,
    add_logits,
    array_of,
    joined,
    layer_weights,
    norm_weight,
    rope_weights,
)

if TYPE_CHECKING:
    from spec_planner.graphs.layers import GraphLayers, PassValues


@dataclass(frozen=True)
class DFlashForm:
    """Sizes and switches.

    Attributes:
        looking: per layer, the number of its mask.
        taps, group: of local mixing; 0 taps where there is none.
        bounded: some tokens of the head were never trained.
    """

    size: int
    width: int
    layers: tuple[LayerForm, ...]
    looking: tuple[int, ...]
    epsilon: float
    head: HeadForm
    embedding_scale: float
    output_multiplier: float
    logit_cap: float
    bounded: bool
    taps: int = 0
    group: int = 1


def ways_to_look(net: DFlashNet) -> list[Looking]:
    """The different ones among the layers', in the order of their masks."""
    return list(dict.fromkeys(net.looking))


def dflash_graphs(net: DFlashNet, positions: int, head: torch.Tensor, kept: torch.Tensor | None) -> NetGraphs:
    """The graphs of a loaded network.

    Args:
        positions: rotary tables reach so far.
        head: the target's [V, d], lent; or, of the tokens ``kept``, a copy of its rows [V_d, d].

    Raises:
        TorchOnly: behind a context's end its block would leave the rotary tables.
    """
    if net.config.block_size - 1 > AHEAD:
        raise TorchOnly(
            f"a block of more than {AHEAD + 1} slots, here {net.config.block_size}, has no graph: this draft network "
            f"runs on torch only"
        )
    config, ways = net.config, ways_to_look(net)
    mixing = net.layers[0].attention_conv if isinstance(net.layers[0], DFlash2Layer) else None
    form = DFlashForm(
        config.hidden_size, net.fc.in_features, tuple(LayerForm.of(layer) for layer in net.layers),
        tuple(ways.index(way) for way in net.looking), config.norm_epsilon, HeadForm(*head.shape, kept is None),
        config.embedding_scale, config.output_multiplier, config.logit_cap, net.reachable is not None,
        *((mixing.taps, mixing.group) if mixing is not None else ()),
    )  # fmt: skip
    steps = {"follow": partial(add_follow, form=form), "block": partial(add_block, form=form)}
    lent = {"head": array_of(head)} if kept is None else {}
    kind = "dflash" if mixing is None else "dflash2"
    return NetGraphs(kind, form, partial(_weights, net, form, positions, head, kept), steps, lent)


def add_follow(graph: GraphLayers, form: DFlashForm) -> None:
    fused = graph.linear(graph.input("features", graph.kind, "n", form.width), "fc", form.size, form.width)
    context = graph.norm(fused, "hidden_norm", form.epsilon)
    values = graph.stored_values()
    for index, layer in enumerate(form.layers):
        add_keys_values(graph, context, str(index), layer, values)


def add_block(graph: GraphLayers, form: DFlashForm) -> None:
    hidden, rows = graph.input("embedded", graph.kind, "n", form.size), graph.indices("rows", "r")
    group = form.layers[0].attention.group
    ways = [graph.pass_values(group)]
    ways += [graph.masked(ways[0], f"mask.{way}", group) for way in range(1, max(form.looking) + 1)]
    if form.embedding_scale != 1:
        hidden = graph.add("Mul", hidden, graph.constant(form.embedding_scale))
    for index, layer in enumerate(form.layers):
        hidden = _add_layer(graph, hidden, str(index), layer, form, ways[form.looking[index]])
    scored = graph.take(graph.norm(hidden, "norm", form.epsilon), rows)
    scored = graph.output(scored, "hidden.out", "r", form.size)
    logits = add_logits(graph, scored, form.head)
    if form.output_multiplier != 1:
        logits = graph.add("Mul", logits, graph.constant(form.output_multiplier))
    if form.logit_cap > 0:
        capped = graph.add("Tanh", graph.add("Div", logits, graph.constant(form.logit_cap)))
        logits = graph.add("Mul", capped, graph.constant(form.logit_cap))
    if form.bounded:
        logits = graph.add("Add", logits, graph.weight("unreached"))
    graph.output(logits, "logits", "r", form.head.rows)


def _add_layer(graph: GraphLayers, hidden: str, name: str, layer: LayerForm, form: DFlashForm,
               values: PassValues) -> str:  # fmt: skip
    attention, heads = layer.attention, layer.attention.heads
    x = graph.norm(hidden, f"{name}.input_norm", layer.epsilon)
    before, after = _kernels(graph, x, f"{name}.attention_mixing", form)
    x = _mixed(graph, before, x, form)
    query = graph.linear(x, f"{name}.q", heads.count * heads.size, attention.columns)
    query = graph.queries(query, name, heads, values)
    keys, cached = add_keys_values(graph, x, name, layer, values)
    attended = graph.look(query, keys, cached, name, heads, values, form.size)
    hidden = graph.add("Add", hidden, _mixed(graph, after, attended, form))
    x = graph.norm(hidden, f"{name}.post_norm", layer.epsilon)
    before, after = _kernels(graph, x, f"{name}.mlp_mixing", form)
    made = graph.swiglu(_mixed(graph, before, x, form), name, form.size, layer.inner)
    return graph.add("Add", hidden, _mixed(graph, after, made, form))


def _kernels(graph: GraphLayers, x: str, name: str, form: DFlashForm) -> tuple[list[str], list[str]]:
    """Both sides' coefficients per tap, [n, d] each; none where nothing is mixed."""
    if not form.taps:
        return [], []
    groups, pieces = form.size // form.group, 2 * form.taps
    changes = graph.split(graph.linear(x, name, pieces * groups, form.size), *[groups] * pieces)
    kernels = []
    for piece, change in enumerate(changes):  # one number per group of channels, beside a base of each channel's own
        base = graph.weight(f"{name}.base.{piece}")
        wide = graph.add("Add", graph.reshape(change, -1, groups, 1), base)
        kernels.append(graph.reshape(wide, -1, form.size))
    return kernels[: form.taps], kernels[form.taps :]


def _mixed(graph: GraphLayers, kernels: list[str], x: str, form: DFlashForm) -> str:
    """Tap t of row i reads row i − t; before the first row is 0."""
    if not kernels:
        return x
    mixed = graph.add("Mul", kernels[0], x)
    for tap, kernel in enumerate(kernels[1:], start=1):
        nothing = graph.add("Expand", graph.constant(0.0), graph.constant([tap, form.size]))
        moved = graph.add("Concat", nothing, x, axis=0)
        moved = graph.add("Slice", moved, graph.constant([0]), graph.constant([-tap]), graph.constant([0]))
        mixed = graph.add("Add", mixed, graph.add("Mul", kernel, moved))
    return mixed


def _weights(net: DFlashNet, form: DFlashForm, positions: int, head: torch.Tensor,
             kept: torch.Tensor | None) -> Iterator[Weight]:  # fmt: skip
    yield from rope_weights(net.config.rope, net.config.head_dim, positions)
    yield from joined("fc", net.fc)
    yield norm_weight("hidden_norm", net.hidden_norm)
    yield norm_weight("norm", net.norm)
    for index, layer in enumerate(net.layers):
        yield from layer_weights(str(index), layer, apart=True)
        if form.taps:
            yield from _mixing_weights(f"{index}.attention_mixing", layer.attention_conv, form)
            yield from _mixing_weights(f"{index}.mlp_mixing", layer.mlp_conv, form)
    if net.reachable is not None:
        reachable = net.reachable if kept is None else net.reachable[kept]
        yield Weight("unreached", np.where(reachable.cpu().numpy(), np.float32(0), np.float32(UNREACHED)))
    if kept is not None:
        yield Weight("head", array_of(head), matrix=True)


def _mixing_weights(name: str, mixing: LocalMixing, form: DFlashForm) -> Iterator[Weight]:
    yield from joined(name, mixing.kernel_projection)
    for piece, base in enumerate(array_of(mixing.base_kernel).reshape(2 * form.taps, -1, form.group)):
        yield Weight(f"{name}.base.{piece}", base)
