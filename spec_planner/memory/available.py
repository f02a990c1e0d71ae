"""Memory that may still be taken: the machine's, the container's limit, or a GPU's; 0 where the system will not say.

Pages of files that the system has read count as available: it gives them up when they are wanted. So MemAvailable is
right and MemFree is not, and of what a control group uses, its cached files come off.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")


@dataclass(frozen=True)
class Memory:
    """Bytes; ``device`` is "cpu" or "cuda:0". 0: unknown."""

    device: str
    available: int
    total: int


def main_memory(root: Path = _ROOT) -> Memory:
    """Of the machine, or of the control groups this process is in, if one allows less.

    Args:
        root: where ``proc`` and ``sys`` lie; another in tests.
    """
    machine = _numbers(root / "proc/meminfo")
    available, total = machine.get("MemAvailable", 0) * 1024, machine.get("MemTotal", 0) * 1024
    for limit, free in _groups(root):
        if limit < total or not total:
            total = limit
            available = min(available, free) if available else free
        elif free < available:
            available = free
    return Memory("cpu", max(available, 0), total)


def gpu_memory() -> Memory | None:
    """Of the current GPU as torch sees it; None without one, and where it shares the machine's memory, as a Jetson's
    does: its driver counts the pages of cached files as taken.
    """
    try:
        import torch
    except (ImportError, OSError):  # a CUDA library may be missing
        return None
    if not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device()
    if getattr(torch.cuda.get_device_properties(index), "is_integrated", False):
        return None
    free, total = torch.cuda.mem_get_info(index)
    return Memory(f"cuda:{index}", free, total)


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
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        # A container sees its own group at the mount itself, whatever path the host has for it.
        for depth in range(len(parts), -1, -1):
            found += _group(mount.joinpath(*parts[:depth]), *names)
    return found


def _group(directory: Path, limit_name: str, usage_name: str, cached_name: str) -> list[tuple[int, int]]:
    try:
        limit = int((directory / limit_name).read_text(encoding="ascii"))  # "max" is no number: no limit
        used = int((directory / usage_name).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return []
    cached = _numbers(directory / "memory.stat").get(cached_name, 0)
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
