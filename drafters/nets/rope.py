"""Rotary position embedding for drafters, with every length extension a checkpoint of theirs may name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_BETAS = (("beta_fast", 32), ("beta_slow", 1))  # of yarn


class Rope:
    """Rotary position embedding (Su et al., 2104.09864), halves paired, and the length extensions checkpoints use.

    ``linear`` divides positions; ``llama3`` slows only the low frequencies; ``yarn`` (Peng et al., 2309.00071) blends
    both by wavelength. With ``rotary_dim`` below head_dim only the first elements of a head turn.
    """

    def __init__(self, head_dim: int, theta: float = 10000.0, kind: str = "default",
                 parameters: Mapping[str, Any] | None = None, rotary_dim: int | None = None) -> None:  # fmt: skip
        if kind not in ROPE_TYPES:
            raise ValueError(f"RoPE type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        with torch.device("cpu"):  # a table, not a weight: it is there even while a network is built on ``meta``
            self.frequencies, self.scale = _frequencies(self.rotary_dim, theta, kind, dict(parameters or {}))

    @staticmethod
    def from_config(config: Mapping[str, Any], head_dim: int) -> Rope:
        """From a Hugging Face config: ``rope_parameters``, or ``rope_theta`` (10000 if absent) and ``rope_scaling``."""
        parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        parameters.setdefault("original_max_position_embeddings", config.get("original_max_position_embeddings"))
        if parameters["original_max_position_embeddings"] is None:
            parameters["original_max_position_embeddings"] = config.get("max_position_embeddings")
        partial = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
        kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
        theta = parameters.get("rope_theta") or config.get("rope_theta") or 10000.0
        return Rope(head_dim, float(theta), kind, parameters, int(head_dim * float(partial)))

    def tables(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, each [n, 1, rotary_dim], at ``positions`` int64 [n]."""
        angles = positions[:, None].float() * self.frequencies.to(positions.device)
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return (angles.cos() * self.scale).to(dtype), (angles.sin() * self.scale).to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn head vectors [n, heads, e] by tables [n, 1, rotary_dim]."""
    width = cos.shape[-1]
    turning, still = x[..., :width], x[..., width:]
    half = width // 2
    turned = torch.cat((-turning[..., half:], turning[..., :half]), dim=-1)
    turning = turning * cos + turned * sin
    return turning if not still.shape[-1] else torch.cat((turning, still), dim=-1)


def _frequencies(dim: int, theta: float, kind: str, parameters: dict[str, Any]) -> tuple[torch.Tensor, float]:
    """Inverse frequencies float32 [dim / 2] and the factor on cos and sin."""
    base = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if kind == "default":
        return base, 1.0
    factor = float(parameters["factor"])
    if kind == "linear":
        return base / factor, 1.0
    original = int(parameters["original_max_position_embeddings"])
    if kind == "llama3":
        low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
        blend = ((original * base / (2 * math.pi) - low) / (high - low)).clamp(0, 1)  # 0: slow down fully, 1: keep
        return (1 - blend) * base / factor + blend * base, 1.0

    def dimension_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    first, last = (dimension_of(float(parameters.get(name) or usual)) for name, usual in _BETAS)
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - first) / max(last - first, 1e-3)).clamp(0, 1)
    scale = parameters.get("attention_factor")
    if not scale:
        own, shared = parameters.get("mscale"), parameters.get("mscale_all_dim")
        scale = _sharpness(factor, own or 1.0) / (_sharpness(factor, shared) if own and shared else 1.0)
    return base / factor * ramp + base * (1 - ramp), float(scale)


def _sharpness(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
