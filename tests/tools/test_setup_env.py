"""Set-up without the network: stamps, interruption, the lock, and the sentences for what a machine lacks."""

from __future__ import annotations

import fcntl
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import lock as lock_file  # noqa: E402
import setup_checks  # noqa: E402
import setup_env  # noqa: E402
import setup_stages  # noqa: E402
from setup_progress import Progress  # noqa: E402
from setup_stages import Stage  # noqa: E402
from setup_state import SetupError, State, hash_files, hash_of  # noqa: E402


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path, None)


@pytest.fixture
def quiet() -> Progress:
    return Progress(io.StringIO())


class Recipe:
    """Stages that only write down that they ran; ``fail_at`` names one that stops half-way."""

    def __init__(self, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.fail_at = ""
        self.keys = {name: "1" for name in setup_stages.NAMES}
        self._state = state
        monkeypatch.setattr(setup_stages, "all_stages", lambda _state: [self._stage(n) for n in setup_stages.NAMES])
        monkeypatch.setattr(setup_checks, "before", lambda _name, _state: None)

    def _stage(self, name: str) -> Stage:
        def action(_: Progress) -> None:
            self.ran.append(name)
            (self._state.venv / name).touch()
            if name == self.fail_at:
                raise KeyboardInterrupt

        return Stage(name, name, self.keys[name], action, name in ("venv", "packages", "torch"))

    def bring_up_to_date(self, until: str | None = None) -> list[str]:
        self.ran.clear()
        setup_env.bring_up_to_date(self._state.root, Progress(io.StringIO()), until, None)
        return self.ran


@pytest.fixture
def recipe(state: State, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    return Recipe(state, monkeypatch)


def test_the_second_run_does_nothing(recipe: Recipe) -> None:
    assert recipe.bring_up_to_date() == list(setup_stages.NAMES)
    assert recipe.bring_up_to_date() == []


def test_a_changed_input_runs_its_stage_again(recipe: Recipe) -> None:
    recipe.bring_up_to_date()
    recipe.keys["package"] = "2"
    assert recipe.bring_up_to_date() == ["package"]


def test_changed_packages_start_from_an_empty_environment(recipe: Recipe, state: State) -> None:
    recipe.bring_up_to_date()
    (state.venv / "left over").touch()
    recipe.keys["packages"] = "2"
    assert recipe.bring_up_to_date() == list(setup_stages.NAMES)
    assert not (state.venv / "left over").exists()


@pytest.mark.parametrize("name", ["venv", "packages", "torch"])
def test_interrupted_pip_starts_from_an_empty_environment(recipe: Recipe, state: State, name: str) -> None:
    recipe.fail_at = name
    with pytest.raises(KeyboardInterrupt):
        recipe.bring_up_to_date()
    (state.venv / "half a package").touch()
    recipe.fail_at = ""
    assert recipe.bring_up_to_date() == list(setup_stages.NAMES)
    assert not (state.venv / "half a package").exists()


@pytest.mark.parametrize("name", ["messages", "package", "model"])
def test_other_interrupted_stages_go_on_from_there(recipe: Recipe, name: str) -> None:
    recipe.fail_at = name
    with pytest.raises(KeyboardInterrupt):
        recipe.bring_up_to_date()
    recipe.fail_at = ""
    names = list(setup_stages.NAMES)
    assert recipe.bring_up_to_date() == names[names.index(name) :]


def test_until_stops_early_and_the_rest_follows_later(recipe: Recipe) -> None:
    assert recipe.bring_up_to_date(until="packages") == ["venv", "packages"]
    assert recipe.bring_up_to_date() == ["torch", "messages", "package", "model"]


def test_somebody_elses_environment_is_left_alone(recipe: Recipe, state: State) -> None:
    (state.venv / "bin").mkdir(parents=True)
    with pytest.raises(SetupError, match="was not made by this set-up"):
        recipe.bring_up_to_date()
    with pytest.raises(SetupError, match="was not made by this set-up"):
        setup_env.clean(state.root)
    assert (state.venv / "bin").is_dir()


def test_clean_removes_what_was_built_and_nothing_else(recipe: Recipe, state: State) -> None:
    recipe.bring_up_to_date()
    for folder in ("build", "src/__pycache__", "src"):
        (state.root / folder).mkdir(parents=True, exist_ok=True)
    (state.root / "src" / "kept.py").touch()
    setup_env.clean(state.root)
    assert sorted(path.name for path in state.root.iterdir()) == ["src"]
    assert [path.name for path in (state.root / "src").iterdir()] == ["kept.py"]


def test_hashes_see_contents_names_and_permissions(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.py").write_text("1")
    (tmp_path / "a" / "__pycache__").mkdir()
    seen = [hash_files(tmp_path, ["a", "absent"])]
    (tmp_path / "a" / "__pycache__" / "one.pyc").write_text("byte code")
    assert hash_files(tmp_path, ["a", "absent"]) == seen[0]
    (tmp_path / "a" / "one.py").write_text("2")
    seen.append(hash_files(tmp_path, ["a", "absent"]))
    (tmp_path / "a" / "one.py").chmod(0o755)
    seen.append(hash_files(tmp_path, ["a", "absent"]))
    (tmp_path / "a" / "one.py").rename(tmp_path / "a" / "two.py")
    seen.append(hash_files(tmp_path, ["a", "absent"]))
    (tmp_path / "absent").write_text("")
    seen.append(hash_files(tmp_path, ["a", "absent"]))
    assert len(set(seen)) == len(seen)
    assert hash_of("ab", "c") != hash_of("a", "bc")


def test_every_package_source_is_part_of_a_key(monkeypatch: pytest.MonkeyPatch, state: State) -> None:
    def keys() -> dict[str, str]:
        return {stage.name: stage.key for stage in setup_stages.all_stages(state)}

    (state.root / "spec_planner").mkdir()
    before = keys()
    (state.root / "spec_planner" / "new.py").touch()
    after = keys()
    assert [name for name in setup_stages.NAMES if before[name] != after[name]] == ["package"]
    (state.root / "requirements").mkdir()
    (state.root / "requirements" / "lock.txt").touch()
    assert [name for name in setup_stages.NAMES if after[name] == keys()[name]] == ["venv"]


def test_a_failing_tool_is_one_sentence_and_its_output_is_kept(state: State, quiet: Progress) -> None:
    script = "print('hello'); print('ERROR: no such version'); print('bye'); raise SystemExit(7)"
    with pytest.raises(SetupError, match="ended with code 7: ERROR: no such version") as caught:
        state.run([sys.executable, "-c", script], quiet)
    assert "\n" not in str(caught.value)
    assert "bye" in state.log.read_text()


def test_a_full_disk_is_named(state: State, quiet: Progress) -> None:
    script = "print('OSError: [Errno 28] No space left on device'); raise SystemExit(1)"
    with pytest.raises(SetupError, match="no space left on the disk"):
        state.run([sys.executable, "-c", script], quiet)


def test_tools_do_not_see_another_ros(state: State, quiet: Progress, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/opt/ros/x")
    monkeypatch.setenv("CMAKE_PREFIX_PATH", "/opt/ros/x")
    script = (
        "import os; print('seen', [v for v in os.environ.values() if '/opt/ros/x' in v], os.environ['VIRTUAL_ENV'])"
    )
    state.run([sys.executable, "-c", script], quiet)
    assert f"seen [] {state.venv}" in state.log.read_text()


HOLDER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import setup_env
from setup_progress import Progress
from setup_state import State
root = Path(sys.argv[2])
descriptor = setup_env.lock(root, Progress(sys.stderr))
State(root, descriptor).run([sys.executable, "-c", "import time; print('at work', flush=True); time.sleep(float(%r))" % sys.argv[3]], Progress(sys.stderr))
"""  # noqa: E501


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A set-up that holds the lock and waits for a child of its own."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(ROOT / "tools"), str(tmp_path), "3"])
    log = tmp_path / ".venv" / ".setup" / "log.txt"
    limit = time.monotonic() + 20
    while not (log.exists() and "at work" in log.read_text().split("\n", 1)[-1]):
        assert time.monotonic() < limit and process.poll() is None
        time.sleep(0.05)
    yield process
    process.kill()
    process.wait()


def is_locked(root: Path) -> bool:
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_the_lock_outlives_a_killed_set_up_until_its_child_ends(
    holder: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert is_locked(tmp_path)
    holder.kill()
    holder.wait()
    assert is_locked(tmp_path)  # pip or a compiler may still be writing
    limit = time.monotonic() + 20
    while is_locked(tmp_path):
        assert time.monotonic() < limit
        time.sleep(0.1)


def test_ctrl_c_ends_the_child_too(holder: subprocess.Popen[bytes], tmp_path: Path) -> None:
    holder.send_signal(signal.SIGINT)
    holder.wait(timeout=20)
    assert not is_locked(tmp_path)


def test_a_second_set_up_says_that_it_waits(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    said = io.StringIO()
    os.close(setup_env.lock(tmp_path, Progress(said)))
    assert "another make is setting up .venv" in said.getvalue()


def test_a_missing_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch, state: State) -> None:
    monkeypatch.setenv("PATH", str(state.root))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(SetupError, match="no C compiler found"):
        setup_checks.before("messages", state)


def test_too_little_disk_is_one_sentence(monkeypatch: pytest.MonkeyPatch, state: State) -> None:
    monkeypatch.setattr(setup_checks, "ENVIRONMENT_BYTES", 10**18)
    with pytest.raises(SetupError, match="the Python packages need"):
        setup_checks.before("venv", state)


def test_a_wrong_python_is_one_sentence(monkeypatch: pytest.MonkeyPatch, state: State) -> None:
    monkeypatch.setattr(setup_checks, "PYTHON", (9, 99))
    monkeypatch.setenv("PATH", str(state.root))
    with pytest.raises(SetupError, match=r"are for Python 3\.11"):
        setup_checks.use_right_python([])


def test_a_missing_venv_module_is_one_sentence(monkeypatch: pytest.MonkeyPatch, state: State) -> None:
    monkeypatch.setattr(
        setup_checks.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else object()
    )
    with pytest.raises(SetupError, match=r"ensurepip.*python3-venv"):
        setup_checks.before("venv", state)


def test_progress_on_a_terminal_is_one_line_redrawn() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    progress = Progress(screen)
    progress.begin("[1/2] one")
    progress.update("x" * 500)
    progress.end(1.5)
    progress.begin("[2/2] two")
    progress.fail()
    lines = screen.getvalue().split("\n")
    assert [line.split("\x1b[K")[-1].split() for line in lines] == [
        ["[1/2]", "one", "1.5", "s"],
        ["[2/2]", "two", "stopped"],
        [],
    ]
    assert all(len(part) < 80 for line in lines for part in line.split("\r\x1b[K"))


def test_the_lock_file_covers_what_is_asked_for() -> None:
    assert lock_file.check() == 0
    assert "torch" not in lock_file.read_pins(ROOT / "requirements" / "lock.txt")
    assert all(lock_file.read_pins(ROOT / "requirements" / "lock.txt").values())
