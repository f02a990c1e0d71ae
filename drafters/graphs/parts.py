"""What the graphs of several draft networks have in common: a decoder layer, its weights, rotary tables, the head.

Weights go into the file as the graph reads them: q|k|v in one matrix and gate|up in another, norms with their offset
added, and heads of which only a part turns reordered so that turning elements are paired as in any other:

    published   a a' … still …  where (a, a') turn together, half of the turning elements apart
    written     a … still … | a' … still'      half of the head apart; still ones turn by an angle of 0

Queries and keys are reordered alike, so their products stay what they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..nets.layers import Attention, RMSNorm, SwiGLU
from ..nets.rope import Rope
from .net_graphs import TorchOnly, Weight

if TYPE_CHECKING:
    from spec_planner.graphs.layers import GraphLayers, Heads, PassValues


@dataclass(frozen=True)
class AttentionForm:
    """Sizes of an attention layer whose rows are ``columns`` wide and its result ``size``."""

    columns: int
    size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    epsilon: float

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def heads(self) -> Heads:
        from spec_planner.graphs.layers import Heads

        return Heads(self.num_heads, self.num_kv_heads, self.head_dim, self.epsilon)

    @staticmethod
    def of(attention: nn.Module) -> AttentionForm:
        """Raises ``TorchOnly`` unless it is plain grouped-query attention."""
        if not isinstance(attention, Attention) or attention.q_proj.out_features != attention.o_proj.in_features:
            raise TorchOnly("attention that is gated or latent has no graph: this draft network runs on torch only")
        epsilon = attention.q_norm.epsilon if attention.q_norm is not None else 1e-6
        return AttentionForm(attention.q_proj.in_features, attention.o_proj.out_features, attention.num_heads,
                             attention.num_kv_heads, attention.head_dim, epsilon)  # fmt: skip


@dataclass(frozen=True)
class LayerForm:
    """A pre-norm decoder layer; ``inner``: width of its feed-forward."""

    attention: AttentionForm
    inner: int
    epsilon: float
    input_norm: bool = True

    @staticmethod
    def of(layer: Any) -> LayerForm:
        """Raises ``TorchOnly`` unless it is plain attention and SwiGLU."""
        if not isinstance(layer.mlp, SwiGLU):
            raise TorchOnly("a mixture of experts has no graph: this draft network runs on torch only")
        norm = layer.input_layernorm
        return LayerForm(AttentionForm.of(layer.self_attn), layer.mlp.gate_proj.out_features,
                         layer.post_attention_layernorm.epsilon, norm is not None)  # fmt: skip


def layer_weights(name: str, layer: Any, apart: bool = False) -> Iterator[Weight]:
    """Of a layer as ``LayerForm`` describes it; ``apart``: queries in a matrix of their own, keys and values in one."""
    if layer.input_layernorm is not None:
        yield norm_weight(f"{name}.input_norm", layer.input_layernorm)
    yield norm_weight(f"{name}.post_norm", layer.post_attention_layernorm)
    attention, mlp = layer.self_attn, layer.mlp
    query, key, value = attention.q_proj, attention.k_proj, attention.v_proj
    order = _halves_apart(attention.head_dim, attention.rope.rotary_dim)
    orders = {query: _by_head(order, query), key: _by_head(order, key)}
    for part, linears in (("q", [query]), ("kv", [key, value])) if apart else (("qkv", [query, key, value]),):
        yield from joined(f"{name}.{part}", *linears, orders=orders)
    for part, norm in (("q_norm", attention.q_norm), ("k_norm", attention.k_norm)):
        if norm is not None:
            weight = norm_weight(f"{name}.{part}", norm)
            yield weight._replace(array=weight.array[order])
    yield from joined(f"{name}.out", attention.o_proj)
    yield from joined(f"{name}.gate_up", mlp.gate_proj, mlp.up_proj)
    yield from joined(f"{name}.down", mlp.down_proj)


def joined(name: str, *linears: nn.Linear, orders: dict[nn.Linear, NDArray[np.int64]] | None = None,
           ) -> Iterator[Weight]:  # fmt: skip
    """Linear layers over the same rows as one matrix and one bias; ``orders``: of a layer's own rows."""
    orders = orders or {}

    def stacked(parts: list[torch.Tensor]) -> NDArray[np.float32]:
        arrays = [array_of(part) for part in parts]
        arrays = [array[orders[each]] if each in orders else array for array, each in zip(arrays, linears, strict=True)]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    yield Weight(name, stacked([each.weight for each in linears]), matrix=True)
    if linears[0].bias is not None:
        yield Weight(f"{name}.bias", stacked([each.bias for each in linears]))


def norm_weight(name: str, norm: RMSNorm) -> Weight:
    return Weight(name, array_of(norm.weight) + np.float32(norm.offset))


def rope_weights(rope: Rope, head_dim: int, positions: int) -> Iterator[Weight]:
    """Tables [positions, e / 2] of every position there can be; what does not turn has cos 1 and sin 0."""
    half = rope.rotary_dim // 2
    for name, table, still in zip(
        ("rope.cos", "rope.sin"), rope.tables(torch.arange(positions), torch.float32), (1.0, 0.0), strict=True
    ):
        padded = np.full((positions, head_dim // 2), still, dtype=np.float32)
        padded[:, :half] = array_of(table[:, 0, :half])
        yield Weight(name, padded)


def array_of(tensor: torch.Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().float().cpu().numpy()
    return array


def add_layer(graph: GraphLayers, hidden: str, name: str, form: LayerForm, values: PassValues) -> str:
    """A whole layer on rows ``hidden`` [n, d]."""
    x = graph.norm(hidden, f"{name}.input_norm", form.epsilon) if form.input_norm else hidden
    sizes = form.attention
    attended = graph.attention(x, name, sizes.columns, sizes.heads, values, sizes.size)
    return add_rest(graph, hidden, attended, name, form)


def add_rest(graph: GraphLayers, residual: str, attended: str, name: str, form: LayerForm) -> str:
    """What follows attention: the residual, and the feed-forward block with its own."""
    hidden = graph.add("Add", residual, attended)
    x = graph.norm(hidden, f"{name}.post_norm", form.epsilon)
    return graph.add("Add", hidden, graph.swiglu(x, name, form.attention.size, form.inner))


def add_keys_values(graph: GraphLayers, x: str, name: str, form: LayerForm, values: PassValues) -> tuple[str, str]:
    """Keys and values of rows ``x`` into the cache, of a layer written ``apart``; all there are, [1, g, S, e] each."""
    attention, heads = form.attention, form.attention.heads
    width = heads.kv_count * heads.size
    key, value = graph.split(graph.linear(x, f"{name}.kv", 2 * width, attention.columns), width, width)
    return graph.store(key, value, name, heads, values)


@dataclass(frozen=True)
class HeadForm:
    """A product with ``rows`` weights of width ``size``: ``lent`` as input ``head``, else of the weights file."""

    rows: int
    size: int
    lent: bool


def add_logits(graph: GraphLayers, hidden: str, form: HeadForm) -> str:
    """Rows ``hidden`` [r, d] → [r, V_d]."""
    return (graph.linear_lent if form.lent else graph.linear)(hidden, "head", form.rows, form.size)


def _halves_apart(head_dim: int, rotary_dim: int) -> NDArray[np.int64]:
    """The elements of a head in the order in which they are written."""
    half, still = rotary_dim // 2, (head_dim - rotary_dim) // 2
    elements = np.arange(head_dim)
    first, second, rest = np.split(elements, [half, rotary_dim])
    return np.concatenate([first, rest[:still], second, rest[still:]])


def _by_head(order: NDArray[np.int64], linear: nn.Linear) -> NDArray[np.int64]:
    starts = np.arange(0, linear.out_features, len(order))
    return (starts[:, None] + order).reshape(-1)
