"""What set-up needs from the machine. Everything missing is one sentence, said before the minutes are spent."""

from __future__ import annotations

import errno
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setup_state import SetupError, State

PYTHON = (3, 11)  # the pins in requirements/lock.txt are for this one
ENVIRONMENT_BYTES = 3_000_000_000  # .venv measured 1.8 GB with a CPU build of torch, and pip unpacks beside it
MODEL_BYTES = 700_000_000  # the default model in float32, measured 540 MB


def use_right_python(command: list[str]) -> None:
    """Return under Python 3.11; otherwise start ``command`` again with a python3.11 that works.

    Raises:
        SetupError: there is none.
    """
    if sys.version_info[:2] == PYTHON:
        return
    other = shutil.which("python3.11")
    if other and _runs(other):
        sys.stdout.flush()
        os.execv(other, [other, *command])
    found = f"{sys.version_info[0]}.{sys.version_info[1]}"
    raise SetupError(
        f"the pinned packages are for Python 3.11 and {sys.executable} is {found}: install Python 3.11, "
        f"or name it with make PYTHON=/path/to/python3.11"
    )


def _runs(python: str) -> bool:
    """A version manager's shim may exist and still refuse to run."""
    probe = subprocess.run(  # noqa: S603
        [python, "-c", "import sys; sys.exit(sys.version_info[:2] != (3, 11))"], capture_output=True, check=False
    )
    return probe.returncode == 0


def before(stage: str, state: State) -> None:
    """Check what the stage is about to need.

    Raises:
        SetupError: one sentence on what is missing.
    """
    if stage == "venv":
        _platform()
        _venv_module()
        _compiler()
        _room(state.root, ENVIRONMENT_BYTES, "the Python packages")
    elif stage == "messages":
        _compiler()
    elif stage == "model":
        _room(cache_root(), MODEL_BYTES, "the default model")


def cache_root() -> Path:
    """Nearest existing folder at or above where the default model will be kept."""
    base = os.environ.get("SPEC_PLANNER_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(base)
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def explain(error: OSError) -> str:
    """One sentence for a failed file operation."""
    where = error.filename or "the disk"
    if error.errno == errno.ENOSPC:
        return f"no space left at {where}: free some and run make again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"may not write {where}: run make as the user this folder belongs to"
    return f"{error.strerror or error} ({where})"


def _platform() -> None:
    machine, (libc, version) = platform.machine(), platform.libc_ver()
    recent = libc == "glibc" and tuple(int(part) for part in version.split(".")[:2]) >= (2, 28)
    if sys.platform != "linux" or machine != "x86_64" or not recent:
        raise SetupError(
            f"the ROS wheels need Linux on x86_64 with glibc 2.28 or newer and this is {sys.platform} on {machine} "
            f"({libc or 'no glibc'} {version}): build with colcon where ROS 2 is installed instead (see README.md)"
        )


def _venv_module() -> None:
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(
            f"{sys.executable} lacks its module {' and '.join(missing)}: install it (Debian: python3-venv), "
            f"or name another Python 3.11 with make PYTHON=/path/to/python3.11"
        )


def _compiler() -> None:
    for variable, candidates, what in (("CC", ("cc", "gcc", "clang"), "C"), ("CXX", ("c++", "g++", "clang++"), "C++")):
        wanted = os.environ.get(variable, "").split()[:1] or list(candidates)
        if not any(shutil.which(name) for name in wanted):
            raise SetupError(
                f"no {what} compiler found ({', '.join(wanted)}), and the ROS messages are compiled: "
                f"install one (Debian: build-essential) and run make again"
            )
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        raise SetupError(
            f"{header} is missing, and the ROS messages are compiled against it: install it (Debian: python3-dev)"
        )


def _room(folder: Path, needed: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SetupError(
            f"{what} need {needed / 1e9:.1f} GB, the disk of {folder} has {free / 1e9:.1f} GB free: make room first"
        )
