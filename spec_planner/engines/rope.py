"""Rotary position embedding tables (Su et al., 2104.09864) and the length extensions checkpoints use.

Each kind yields inverse frequencies [head_dim / 2] and one factor that scales cos and sin:
``linear`` divides positions; ``llama3`` slows only the low frequencies; ``yarn`` (Peng et al., 2309.00071)
blends both by wavelength and sharpens attention.
"""

from __future__ import annotations

import math

import torch

from .decoder_config import DecoderConfig


def rope_tables(config: DecoderConfig, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each float32 [capacity, head_dim], for positions 0 … capacity − 1."""
    frequencies, scale = _inverse_frequencies(config)
    angles = torch.outer(torch.arange(capacity, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * scale, angles.sin() * scale


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate head vectors: x [n, heads, head_dim]; cos, sin [n, 1, head_dim]; halves paired as Hugging Face does."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def _inverse_frequencies(config: DecoderConfig) -> tuple[torch.Tensor, float]:
    dim, parameters = config.head_dim, config.rope_parameters
    base = 1.0 / config.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if config.rope_type == "default":
        return base, 1.0
    factor = float(parameters["factor"])
    if config.rope_type == "linear":
        return base / factor, 1.0
    original = int(parameters["original_max_position_embeddings"] or config.context_length)
    if config.rope_type == "llama3":
        return _llama3(base, factor, original, parameters), 1.0
    return _yarn(config, base, factor, original)


def _llama3(base: torch.Tensor, factor: float, original: int, parameters: dict) -> torch.Tensor:
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    wavelength = 2 * math.pi / base
    blend = ((original / wavelength - low) / (high - low)).clamp(0, 1)  # 0: slow down fully, 1: keep
    return (1 - blend) * base / factor + blend * base


def _yarn(config: DecoderConfig, base: torch.Tensor, factor: float, original: int) -> tuple[torch.Tensor, float]:
    parameters, dim = config.rope_parameters, config.head_dim

    def dimension_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low = dimension_of(float(parameters.get("beta_fast") or 32))
    high = dimension_of(float(parameters.get("beta_slow") or 1))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
    scale = parameters.get("attention_factor") or (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
    return base / factor * ramp + base * (1 - ramp), float(scale)
