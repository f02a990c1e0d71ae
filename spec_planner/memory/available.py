"""Memory that may still be taken: the machine's, the container's limit, or a GPU's; None where the system will not say.

Pages of files that the system has read count as available: it gives them up when they are wanted. So MemAvailable is
right and MemFree is not, and of what a control group uses, its cached files come off, those read lately among them:
they are the weights that a planner before this one has read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")


@dataclass(frozen=True)
class Memory:
    """Bytes; ``device`` is "cpu" or "cuda:0". Unknown: ``available`` None, ``total`` 0."""

    device: str
    available: int | None
    total: int


def main_memory(root: Path = _ROOT) -> Memory:
    """Of the machine, or of the control groups this process is in, if one allows less.

    Args:
        root: where ``proc`` and ``sys`` lie; another in tests.
    """
    machine = _numbers(root / "proc/meminfo")
    total = machine.get("MemTotal", 0) * 1024
    available = machine["MemAvailable"] * 1024 if "MemAvailable" in machine else None
    for limit, free in _groups(root):
        if available is not None:
            available = min(available, free)
        elif not total or limit < total:  # a limit beyond the machine says nothing of what there is
            available = free
        total = min(total, limit) if total else limit
    return Memory("cpu", None if available is None else max(available, 0), total)


def gpu_memory() -> Memory | None:
    """Of the current GPU as torch sees it; None without one, and where it shares the machine's memory, as a Jetson's
    does: its driver counts the pages of cached files as taken.
    """
    if not torch_sees_a_gpu():
        return None
    import torch

    index = torch.cuda.current_device()
    if getattr(torch.cuda.get_device_properties(index), "is_integrated", False):
        return None
    free, total = torch.cuda.mem_get_info(index)
    return Memory(f"cuda:{index}", free, total)


def torch_sees_a_gpu() -> bool:
    try:
        import torch
    except (ImportError, OSError):  # a CUDA library may be missing
        return False
    return bool(torch.cuda.is_available())


def resident_bytes(root: Path = _ROOT) -> int:
    """What this process holds of main memory now; 0 where the system will not say."""
    return _numbers(root / "proc/self/status").get("VmRSS", 0) * 1024


def _groups(root: Path) -> list[tuple[int, int]]:
    """(limit, free) of this process's memory group and of those above it, versions 1 and 2; only those with a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            mount, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        # Version 1 counts those below a group apart.
        cached = [f"{'' if number == '0' else 'total_'}{kind}" for kind in ("inactive_file", "active_file")]
        # A container sees its own group at the mount itself, whatever path the host has for it.
        for depth in range(len(parts), -1, -1):
            found += _group(mount.joinpath(*parts[:depth]), *names, cached)
    return found


def _group(directory: Path, limit_name: str, usage_name: str, cached_names: list[str]) -> list[tuple[int, int]]:
    try:
        limit = int((directory / limit_name).read_text(encoding="ascii"))  # "max" is no number: no limit
        used = int((directory / usage_name).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return []
    pages = _numbers(directory / "memory.stat")
    cached = sum(pages.get(name, 0) for name in cached_names)
    return [(limit, limit - used + min(cached, used))]


def _numbers(path: Path) -> dict[str, int]:
    """Lines "name: number …" or "name number" of a file of the kernel's."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, *values = line.replace(":", " ").split() or [""]
        if values and values[0].isdigit():
            found[name] = int(values[0])
    return found
