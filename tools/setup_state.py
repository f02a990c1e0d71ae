"""What set-up knows about .venv: stamps, "started" marks, input hashes, and how it runs a child process."""

from __future__ import annotations

import hashlib
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from setup_progress import Progress

FORMAT = "1"  # change when a stage's meaning changes in a way no input shows
FOREIGN = (
    *("PYTHONPATH", "PYTHONHOME", "_ROS_WHEELS_BOOTSTRAP_COMPLETE"),
    *("AMENT_PREFIX_PATH", "CMAKE_PREFIX_PATH", "COLCON_PREFIX_PATH", "CFLAGS", "CXXFLAGS"),
)


class SetupError(Exception):
    """Set-up cannot go on; the message is one sentence: what, where, what to do."""


def hash_of(*parts: str) -> str:
    """Hex digest of the parts, order and boundaries included."""
    digest = hashlib.sha256()
    for part in (FORMAT, *parts):
        data = part.encode("utf-8", "surrogateescape")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def hash_files(root: Path, names: Iterable[str]) -> str:
    """Hex digest of the contents and relative paths of files and folders; what is absent counts as absent."""
    parts: list[str] = []
    for name in names:
        for path in files_below(root / name):
            parts += [str(path.relative_to(root)), hashlib.sha256(path.read_bytes()).hexdigest()]
            parts.append("x" if os.access(path, os.X_OK) else "-")
    return hash_of(*parts)


def files_below(path: Path) -> list[Path]:
    """The file itself, or all files below a folder in a fixed order, byte code left out."""
    if path.is_file():
        return [path]
    return [item for item in sorted(path.rglob("*")) if item.is_file() and "__pycache__" not in item.parts]


class State:
    """The environment's folder and its book-keeping in ``.venv/.setup``."""

    def __init__(self, root: Path, lock_descriptor: int | None) -> None:
        self.root = root
        self.venv = root / ".venv"
        self.folder = self.venv / ".setup"
        self.log = self.folder / "log.txt"
        self.python = self.venv / "bin" / "python"
        self._lock = lock_descriptor

    def owned(self) -> bool:
        """False when .venv exists and is not ours."""
        return self.folder.is_dir() or not os.path.lexists(self.venv)

    def done(self, stage: str, key: str) -> bool:
        stamp = self.folder / f"{stage}.stamp"
        return stamp.is_file() and stamp.read_text(encoding="utf-8") == key

    def touched(self, stage: str) -> bool:
        """True when the stage ever began in this environment, finished or not."""
        return (self.folder / f"{stage}.started").exists() or (self.folder / f"{stage}.stamp").exists()

    def start(self, stage: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{stage}.started").touch()
        (self.folder / f"{stage}.stamp").unlink(missing_ok=True)

    def finish(self, stage: str, key: str) -> None:
        """Write the stamp whole or not at all, then drop the mark."""
        new = self.folder / f"{stage}.stamp.new"
        new.write_text(key, encoding="utf-8")
        os.replace(new, self.folder / f"{stage}.stamp")
        (self.folder / f"{stage}.started").unlink(missing_ok=True)

    def reset(self) -> None:
        """Empty the environment. The stamps go first and the ``.setup`` folder stays, so it remains known as ours."""
        for path in sorted(self.folder.glob("*.stamp")):
            path.unlink()
        for path in [p for p in self.venv.iterdir() if p != self.folder] + list(self.folder.iterdir()):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def environment(self) -> dict[str, str]:
        """The caller's environment without another ROS or Python in it, and with .venv in front."""
        kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        kept["PATH"] = f"{self.venv / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}"
        kept.update(
            VIRTUAL_ENV=str(self.venv), AMENT_PREFIX_PATH=str(self.venv), PYTHONUNBUFFERED="1", PIP_NO_INPUT="1"
        )
        return kept

    def run(self, command: list[str], progress: Progress, folder: Path | None = None) -> None:
        """Run to the end, its output in the log and its last line on the progress line.

        Raises:
            SetupError: it exited with another code than 0; the sentence quotes its last error line.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lines: list[str] = []
        with self.log.open("a", buffering=1, encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
            child = subprocess.Popen(  # noqa: S603
                command,
                cwd=folder or self.root,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=() if self._lock is None else (self._lock,),
            )
            try:
                for line in _lines(child, progress):
                    log.write(line + "\n")
                    lines.append(line)
                    progress.update(line)
                code = child.wait()
            except BaseException:
                _stop(child)
                raise
        if code != 0:
            raise SetupError(self._failure(command, code, lines))

    def _failure(self, command: list[str], code: int, lines: list[str]) -> str:
        if any("No space left on device" in line for line in lines):
            return f"no space left on the disk of {self.venv}: free some and run make again"
        said = [line.strip() for line in lines if line.strip()]
        errors = [line for line in said if "error" in line.lower()] or said
        what = f": {errors[-1][:300]}" if errors else ""
        name = " ".join([Path(command[0]).name, *command[1:4]])
        return f"{name} ended with code {code}{what} (all its output: {self.log})"


def _lines(child: subprocess.Popen[bytes], progress: Progress) -> Iterable[str]:
    """Lines of the child's output as they come; the progress line ticks while it is silent."""
    assert child.stdout is not None
    rest = b""
    while True:
        ready, _, _ = select.select([child.stdout], [], [], 0.5)
        if not ready:
            progress.tick()
            continue
        data = os.read(child.stdout.fileno(), 65536)
        if not data:
            break
        *whole, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in whole)
    if rest:
        yield rest.decode("utf-8", "replace")


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End the child: it may have had the terminal's Ctrl-C already, and gets five seconds to act on it."""
    child.terminate()
    until = time.monotonic() + 5.0
    while child.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    child.kill()
    child.wait()
