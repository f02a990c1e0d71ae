"""Where on the GPU every tensor of an engine lies. Addresses are given to TensorRT once and never change.

A tensor has one buffer, as large as its largest shape in any profile; a smaller pass uses the front of it. Outputs of
the cache have the buffer of the input they are the new state of; lent weights have that of whoever lends them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from .bindings import Network, Tensor


class TrtCache:
    """Keys and values of ``layers`` at their whole capacity.

    Attributes:
        rows: [2 · layers, g, C, e]; of a layer first the keys, then the values.
    """

    def __init__(self, layers: Sequence[str], like: Tensor, device: torch.device) -> None:
        """``like``: one of the inputs that hold it."""
        self.names = [f"{layer}.{part}" for layer in layers for part in ("key", "value")]
        shape = (len(self.names), *(int(extent) for extent in like.shape[1:]))
        # Zeros, not empty: a masked slot still enters the matrix product, and NaN × 0 is NaN.
        self.rows = torch.zeros(shape, dtype=dtype_of(like), device=device)
        _settle(device)

    def inputs(self) -> dict[str, torch.Tensor]:
        return {f"past.{name}": rows for name, rows in zip(self.names, self.rows, strict=True)}

    def move(self, sources: torch.Tensor, start: int) -> None:
        """Copy slots ``sources`` to slots start, start + 1, …"""
        self.rows[:, :, start : start + len(sources)] = self.rows.index_select(2, sources)


class Buffers:
    """Args: ``given``: buffers that others have too, by name; what the network has no tensor for is left alone."""

    def __init__(self, network: Network, cache: TrtCache | None, given: Mapping[str, torch.Tensor],
                 device: torch.device) -> None:  # fmt: skip
        self._tensors = {tensor.name: tensor for tensor in network.tensors}
        self._largest = {
            letter: max(ranges[letter][2] for ranges in network.profiles) for letter in network.profiles[0]
        }
        self._cache = None if cache is None else cache.rows  # not the cache itself, which may hold these buffers
        self._buffers = {**given, **({} if cache is None else cache.inputs())}
        self._buffers |= {output: self._buffers[name] for output, name in network.aliases.items()}
        new = [] if cache is None else [f"new.{name}" for name in cache.names if f"new.{name}" in self._tensors]
        self._new = torch.zeros((0, 0))
        if new:
            self._new = torch.zeros(
                (len(new), self._room(new[0])), dtype=dtype_of(self._tensors[new[0]]), device=device
            )
        self._buffers |= {name: self._new[index] for index, name in enumerate(new)}
        self._buffers = {name: buffer for name, buffer in self._buffers.items() if name in self._tensors}
        for name, tensor in self._tensors.items():
            if name not in self._buffers:
                self._buffers[name] = torch.zeros(self._room(name), dtype=dtype_of(tensor), device=device)
        _settle(device)

    def __contains__(self, name: str) -> bool:
        return name in self._buffers

    def addresses(self) -> dict[str, int]:
        """By name, of every input and output."""
        return {name: buffer.data_ptr() for name, buffer in self._buffers.items()}

    def view(self, name: str, sizes: Mapping[str, int]) -> torch.Tensor:
        """The front of a buffer as a tensor of the shape that it has at ``sizes``."""
        shape = self._tensors[name].at(sizes)
        return self._buffers[name].flatten()[: math.prod(shape)].view(shape)

    def store_new_rows(self, sizes: Mapping[str, int]) -> None:
        """Put the keys and values that a pass handed out where ``slots`` says; where it writes itself, nothing."""
        if len(self._new) and self._cache is not None:
            heads, _, size = self._cache.shape[1:]
            rows = self._new[:, : heads * sizes["n"] * size].unflatten(1, (heads, sizes["n"], size))
            self._cache.index_copy_(2, self.view("slots", sizes), rows)

    def _room(self, name: str) -> int:
        return math.prod(self._tensors[name].at(self._largest))


def _settle(device: torch.device) -> None:
    """Wait for what was put into new buffers on torch's default stream: passes run on another, which does not wait."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def dtype_of(tensor: Tensor) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    return dtype
