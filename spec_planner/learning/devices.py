"""Where a training computes, and in what."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def choose_device(name: str) -> torch.device:
    """``auto``: the GPU of this process where there is one, else the CPU.

    Raises:
        ValueError: a GPU is asked for and there is none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("no CUDA device is usable by this torch: leave --device out, or use --device cpu")
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """``float32`` or ``bfloat16``; ``auto``: bfloat16 where the hardware multiplies it, else float32."""
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return torch.float32
    return torch.bfloat16 if {"avx512_bf16", "amx_bf16", "bf16"} & set(flags) else torch.float32


def describe(device: torch.device, processes: int) -> str:
    """The hardware of a run in words, for its card."""
    if device.type == "cuda":
        return f"{processes} x {torch.cuda.get_device_name(device)}"
    return f"{torch.get_num_threads()} threads ({platform.machine()})"
