"""docs/add_a_drafter.md is true: its files are there, its commands parse, its example learns, loads and conforms.

And docs/drafters.md has room for every drafter.
"""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from drafters.checkpoint import detect
from drafters.registry import CHECKPOINTS, DRAFTERS, load_drafter
from drafters.training.batch import Batch, Score, TargetWeights
from drafters.training.batch import Path as AnswerPath
from drafters.training.trainee import make_trainee
from spec_planner.cli.bench_drafters import TITLES
from spec_planner.cli.main import make_parser
from spec_planner.engines.table_target import TableTarget
from tests.conformance.drafter_suite import VOCABULARY, DrafterSuite, sampler_at
from tests.decoding.toys import logits_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "add_a_drafter.md"
TEXT = PAGE.read_text(encoding="utf-8")
OVERVIEW = (ROOT / "docs" / "drafters.md").read_text(encoding="utf-8")
BUILT = "medusa"  # a drafter that has every file the page asks for
FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
DRAFTER, TRAINEE, LINES = (body for language, body in FENCES if language == "python")
COMMANDS = [line for language, body in FENCES if not language for line in body.splitlines() if line]


def paths() -> list[str]:
    """Whatever in the page's prose is written like a file or folder of this repository."""
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    quoted = {word for word in re.findall(r"`([^`\s]+)`", prose) if "/" in word}
    linked = {f"docs/{target}" for target in re.findall(r"\]\(([^)#:]+)\)", prose)}
    return sorted(quoted | linked)


@pytest.mark.parametrize("path", paths())
def test_every_file_is_there(path):
    assert (ROOT / path.replace("NAME", BUILT)).exists(), f"{PAGE.name} names {path}"


def test_the_page_names_its_files():
    assert len(paths()) >= 15 and sum("NAME" in path for path in paths()) >= 5


@pytest.mark.parametrize("command", re.findall(r"^spec-planner .*", f"{TEXT}\n{OVERVIEW}", re.MULTILINE))
def test_every_command_parses(command):
    words = shlex.split(command.replace("NAME", BUILT))
    assert make_parser().parse_args(words[1:]).verb == words[1]


def test_the_tests_it_says_to_run_are_there():
    (command,) = (line for line in COMMANDS if line.startswith("python -m pytest "))
    words = command.replace("NAME", BUILT).split()[1:]
    done = subprocess.run(
        [sys.executable, *words, "--collect-only", "-p", "no:cacheprovider"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_other_command_goes_unchecked():
    left = [line for line in COMMANDS if not line.startswith(("spec-planner ", "python -m pytest "))]
    assert left == ["make lint"] and "\nlint:" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_every_drafter_has_its_part_on_the_overview():
    assert set(re.findall(r"^### `([\w-]+)`", OVERVIEW, re.MULTILINE)) == {*DRAFTERS, *CHECKPOINTS}
    layouts = re.findall(r"^\| `([\w-]+)` \|", OVERVIEW, re.MULTILINE)
    assert set(layouts) >= set(CHECKPOINTS)


def test_the_overviews_table_is_the_commands():
    assert f"| {' | '.join(TITLES)} |" in OVERVIEW


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)\)", OVERVIEW))
def test_the_overviews_links_lead_somewhere(target):
    assert (ROOT / "docs" / target).exists()


@pytest.fixture(scope="module")
def example() -> types.ModuleType:
    """The page's python, as the module it would be."""
    module = types.ModuleType("drafters.bigram")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        for block in (DRAFTER, TRAINEE):
            exec(compile(block, str(PAGE), "exec"), module.__dict__)
        yield module
    finally:
        del sys.modules[module.__name__]


@pytest.fixture
def registered(example, monkeypatch) -> types.ModuleType:
    """With the page's lines in the tables it puts them in."""
    monkeypatch.setitem(sys.modules, "drafters.training.bigram", example)
    entries = re.findall(r"^# ([\w/]+)\.py: (\w+)\n(.*)\n", LINES, re.MULTILINE)
    assert len(entries) == LINES.count("# ") == 4
    for place, name, entry in entries:
        module = importlib.import_module(place.replace("/", "."))
        table = getattr(module, name)
        new = {**table, **eval("{" + entry + "}")} if isinstance(table, dict) else (*table, *eval("(" + entry + ")"))
        monkeypatch.setattr(module, name, new)
    return example


@pytest.mark.parametrize("siblings", [1, 3], ids=["chain", "tree"])
class TestExample(DrafterSuite):
    @pytest.fixture
    def make_drafter(self, example, siblings):
        torch.manual_seed(0)
        net = example.BigramNet(VOCABULARY, 6)
        return lambda: example.BigramDrafter(net, siblings)


def walk(length: int) -> Batch:
    """One answer in which every token is followed by the one two further on, after a prompt of three."""
    rows = torch.arange(length)
    ids = (2 * rows) % VOCABULARY
    return Batch(ids, rows, rows - 1, torch.ones(length, length, dtype=torch.bool).tril(), {}, [AnswerPath(rows, 3)])


def test_the_example_learns_and_loads_as_any_other_drafter(registered, tmp_path):
    torch.manual_seed(1)
    embedding = torch.zeros(VOCABULARY, 8)
    target = TargetWeights(
        "toy", {"num_hidden_layers": 2}, embedding, embedding, torch.ones(8), lambda number: {},
        torch.ones(VOCABULARY, dtype=torch.int64),
    )  # fmt: skip
    trainee = make_trainee("bigram", target, {"rank": "6"})
    batch, before, after = walk(20), Score(), Score()
    before.add(trainee.loss(batch))
    optimizer = torch.optim.Adam(trainee.net.parameters(), 0.1)
    for _ in range(60):
        optimizer.zero_grad()
        trainee.loss(batch).sum.backward()
        optimizer.step()
    after.add(trainee.loss(batch))
    assert before.acceptance_length < 3 and after.by_depth == [1.0] * trainee.depth

    trainee.save(tmp_path, {"made_for": "toy"})
    assert detect(tmp_path) == "bigram"
    drafter = load_drafter(tmp_path, TableTarget(logits_of(1, 1.0, VOCABULARY), VOCABULARY), 1)
    drafter.observe([0, 2], None)
    assert drafter.draft((4,), 4, sampler_at(2, 0.0, 0)).tokens.tolist() == [4, 6, 8, 10, 0]
    assert drafter.own_bytes == 2 * VOCABULARY * 6 * 4


def test_a_checkpoint_that_is_none_of_it_says_so(registered, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="no bigram's"):
        registered.BigramDrafter.load(tmp_path, TableTarget(logits_of(1, 1.0, VOCABULARY), VOCABULARY))
