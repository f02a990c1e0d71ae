"""The few layers that every trained drafter is built of. One sequence at a time; rows are positions or tree nodes.

Shapes: n rows of a pass, d their width, h / g query / key-value heads, e head_dim, S slots of the cache in view.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .rope import Rope as Rope
from .rope import rotate as rotate


class RMSNorm(nn.Module):
    """x / rms(x) · (w + offset), computed in float32; ``offset`` 1 for checkpoints whose weights are zero-centred."""

    def __init__(self, size: int, epsilon: float = 1e-6, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1.0 - offset))
        self.epsilon, self.offset = epsilon, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        if self.offset:
            return (wide * (self.weight.float() + self.offset)).to(x.dtype)
        return wide.to(x.dtype) * self.weight


class KVCache:
    """Keys and values of every layer in slots 0 … length − 1; it grows by doubling and shrinks by ``truncate``."""

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu") -> None:  # fmt: skip
        self.length = 0
        self._store = torch.zeros((2, num_layers, num_kv_heads, 0, head_dim), dtype=dtype, device=device)

    @property
    def num_bytes(self) -> int:
        return self._store.numel() * self._store.element_size()

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put n rows [n, g, e] behind the cache and return all keys and values in view, [g, length + n, e].

        Every layer writes the same n rows; ``advance(n)`` then keeps them. Rows not kept are overwritten.
        """
        end = self.length + keys.shape[0]
        self._reserve(end)
        self._store[0, layer, :, self.length : end] = keys.transpose(0, 1)
        self._store[1, layer, :, self.length : end] = values.transpose(0, 1)
        return self._store[0, layer, :, :end], self._store[1, layer, :, :end]

    def advance(self, count: int) -> None:
        self.length += count

    def truncate(self, length: int) -> None:
        """Forget all but the first ``length`` slots; longer than the cache changes nothing."""
        self.length = min(self.length, length)

    def _reserve(self, capacity: int) -> None:
        have = self._store.shape[3]
        if capacity > have:
            capacity = max(capacity, 2 * have, 64)
            shape = (*self._store.shape[:3], capacity, self._store.shape[4])
            larger = self._store.new_zeros(shape)  # a masked slot still enters the product, and NaN × 0 is NaN
            larger[:, :, :, : self.length] = self._store[:, :, :, : self.length]
            self._store = larger


def causal_mask(count: int, start: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """bool [count, start + count]: row i sees the slots before ``start`` and rows 0 … i."""
    return torch.ones((count, start + count), dtype=torch.bool, device=device).tril(start)


def tree_mask(ancestors: list[list[int]], context: int, slots: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """bool [n, slots]: row i of a tree level sees the first ``context`` slots and the slots in ``ancestors[i]``.

    A row's own slot is among its ancestors.
    """
    mask = torch.zeros((len(ancestors), slots), dtype=torch.bool)
    mask[:, :context] = True
    for row, seen in enumerate(ancestors):
        mask[row, seen] = True
    return mask.to(device)


@dataclass(frozen=True, eq=False)
class SparseMask:
    """A mask for many rows of which neighbours see the same few slots, as in training.

    Attention is worked out ``at_once`` rows at a time, over the slots that any of them sees.

    Attributes:
        mask: bool [n, S]; every row sees some slot.
    """

    mask: torch.Tensor
    at_once: int

    def __getitem__(self, rows: torch.Tensor) -> SparseMask:
        return SparseMask(self.mask[rows], self.at_once)

    def parts(self) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Rows, the slots int64 [s] they see, and their mask over these, bool [rows, s]."""
        for start in range(0, len(self.mask), self.at_once):
            rows = slice(start, start + self.at_once)
            slots = self.mask[rows].any(0).nonzero()[:, 0]
            yield rows, slots, self.mask[rows][:, slots]


Mask = torch.Tensor | SparseMask | None  # bool [n, S], where a row may look; None: everywhere


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; parameters are named as Hugging Face names them.

    Args:
        input_size: width of the rows that are projected (2d in EAGLE-3).
        output_size: width of the result.
        bias, output_bias: biases on q, k, v and on o.
        qk_norm: an RMSNorm over each head's query and key (Qwen3).
    """

    def __init__(self, input_size: int, output_size: int, num_heads: int, num_kv_heads: int, head_dim: int, rope: Rope,
                 bias: bool = False, output_bias: bool = False, qk_norm: bool = False, epsilon: float = 1e-6,
                 ) -> None:  # fmt: skip
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim, self.rope = num_heads, num_kv_heads, head_dim, rope
        self.q_proj = nn.Linear(input_size, num_heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(input_size, num_kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(input_size, num_kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(num_heads * head_dim, output_size, bias=output_bias)
        self.q_norm = RMSNorm(head_dim, epsilon) if qk_norm else None
        self.k_norm = RMSNorm(head_dim, epsilon) if qk_norm else None

    def queries(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x [n, input_size] at int64 [n] → turned queries [n, h, e]."""
        query = self.q_proj(x).view(len(x), self.num_heads, self.head_dim)
        query = self.q_norm(query) if self.q_norm is not None else query
        return rotate(query, *self.rope.tables(positions, query.dtype))

    def keys_values(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [n, input_size] → turned keys and values, each [n, g, e]."""
        key = self.k_proj(x).view(len(x), self.num_kv_heads, self.head_dim)
        value = self.v_proj(x).view(len(x), self.num_kv_heads, self.head_dim)
        key = self.k_norm(key) if self.k_norm is not None else key
        return rotate(key, *self.rope.tables(positions, key.dtype)), value

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: Mask) -> torch.Tensor:
        """query [n, h, e] over keys, values [g, S, e] under bool [n, S] (None: all visible) → [n, output_size]."""
        if isinstance(mask, SparseMask):
            parts = [
                self._mix(query[rows], keys.index_select(1, slots), values.index_select(1, slots), seen)
                for rows, slots, seen in mask.parts()
            ]
            mixed = torch.cat(parts)
        else:
            mixed = self._mix(query, keys, values, mask)
        result: torch.Tensor = self.o_proj(mixed)
        return result

    def _mix(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
             mask: torch.Tensor | None) -> torch.Tensor:  # fmt: skip
        """As ``attend``, before the last projection: [n, h · e]."""
        n, h, e = query.shape
        group = h // self.num_kv_heads
        # Query head j · group + r reads key head j: fold r into rows, so that the cache is read as it lies.
        folded = query.view(n, -1, group, e).permute(1, 2, 0, 3).reshape(1, -1, group * n, e)
        folded_mask = None if mask is None else mask.repeat(group, 1)
        mixed = F.scaled_dot_product_attention(folded, keys[None], values[None], attn_mask=folded_mask)
        return mixed.view(-1, group, n, e).permute(2, 0, 1, 3).reshape(n, h * e)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, mask: Mask, cache: KVCache, layer: int = 0,
                wanted: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
        """Write the rows behind ``cache`` and attend; ``mask`` bool [n, cache.length + n]. The caller advances.

        Of rows outside ``wanted``, int64 [w], only keys and values are made; the result is [w, output_size] then.
        """
        keys, values = cache.write(layer, *self.keys_values(x, positions))
        if wanted is not None:
            x, positions, mask = x[wanted], positions[wanted], mask if mask is None else mask[wanted]
        return self.attend(self.queries(x, positions), keys, values, mask)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, size: int, inner: int, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=bias)
        self.up_proj = nn.Linear(size, inner, bias=bias)
        self.down_proj = nn.Linear(inner, size, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


@dataclass(frozen=True)
class LayerSizes:
    """Sizes and switches of one decoder layer."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    epsilon: float = 1e-6
    attention_bias: bool = False  # on q, k, v
    output_bias: bool = False  # on o
    mlp_bias: bool = False
    qk_norm: bool = False

    @staticmethod
    def from_config(config: Mapping[str, Any], names: Collection[str], layer: str = "layers.0") -> LayerSizes:
        """Sizes from a Hugging Face config; which biases and head norms there are, from the tensor ``names``.

        Raises:
            KeyError, TypeError, ValueError: a size is missing or is no number.
        """
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        default_dim = 128 if config.get("model_type") == "qwen3" else hidden // heads
        return LayerSizes(
            hidden_size=hidden,
            intermediate_size=int(config["intermediate_size"]),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or default_dim),
            epsilon=float(config.get("rms_norm_eps", 1e-6)),
            attention_bias=f"{layer}.self_attn.q_proj.bias" in names,
            output_bias=f"{layer}.self_attn.o_proj.bias" in names,
            mlp_bias=f"{layer}.mlp.gate_proj.bias" in names,
            qk_norm=f"{layer}.self_attn.q_norm.weight" in names,
        )


class DecoderLayer(nn.Module):
    """Attention and SwiGLU, each with residual and, unless ``input_norm`` is off, pre-norm (Llama, Qwen2, Qwen3)."""

    def __init__(
        self, sizes: LayerSizes, rope: Rope, input_norm: bool = True, attention_input: int | None = None
    ) -> None:
        super().__init__()
        self.self_attn = Attention(
            attention_input or sizes.hidden_size, sizes.hidden_size, sizes.num_heads, sizes.num_kv_heads,
            sizes.head_dim, rope, sizes.attention_bias, sizes.output_bias, sizes.qk_norm, sizes.epsilon,
        )  # fmt: skip
        self.mlp = SwiGLU(sizes.hidden_size, sizes.intermediate_size, sizes.mlp_bias)
        self.input_layernorm = RMSNorm(sizes.hidden_size, sizes.epsilon) if input_norm else None
        self.post_attention_layernorm = RMSNorm(sizes.hidden_size, sizes.epsilon)

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, mask: Mask, cache: KVCache, layer: int = 0,
                wanted: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
        """hidden [n, d] → [n, d]; keys and values go behind ``cache``, which the caller advances.

        Where nobody asks for rows outside ``wanted``, int64 [w], of those only keys and values are made.
        """
        x = hidden if self.input_layernorm is None else self.input_layernorm(hidden)
        residual = hidden if wanted is None else hidden[wanted]
        return self.finish(residual, self.self_attn(x, positions, mask, cache, layer, wanted))

    def finish(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The residual, the attention's result and the feed-forward block, summed."""
        hidden = residual + attended
        result: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return result


def as_borrowed(handle: Any) -> torch.Tensor:
    """Weights that a target lends, a tensor or an array, as a tensor over the same memory; they must not be written."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.as_tensor(handle)


class DraftModule(nn.Module):
    """A draft network's own weights and where they are, as ``draft_net.py`` asks for them."""

    engine = "torch"

    @property
    def precision(self) -> str:
        return str(self.place.dtype).removeprefix("torch.")

    @property
    def num_bytes(self) -> int:
        return module_bytes(self)

    @property
    def place(self) -> torch.Tensor:
        """A tensor in the type and on the device of the rows it reads."""
        return next(self.parameters())


def module_bytes(module: nn.Module) -> int:
    """Bytes of the parameters and buffers that ``module`` owns, each storage counted once."""
    return distinct_bytes([*module.parameters(), *module.buffers()])


def distinct_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of ``tensors``, each storage counted once: a head may be tied to the embedding."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def is_copy(copy: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether ``weights``, loaded as ``dtype`` and rounded as the copy is, are the copy; in pieces, to stay small."""
    if copy.shape != weights.shape:
        return False
    pairs = zip(copy.split(4096), weights.split(4096), strict=True)
    return all(torch.equal(mine, theirs.to(mine.device, dtype).to(mine.dtype)) for mine, theirs in pairs)
