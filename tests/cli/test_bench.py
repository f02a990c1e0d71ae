"""``spec-planner bench``: its subjects, and the table of drafters from command to exit code."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from spec_planner.cli.bench_drafters import EXAMPLES as DRAFTERS_EXAMPLES
from spec_planner.cli.bench_planner import EXAMPLES as PLANNER_EXAMPLES
from spec_planner.cli.main import make_parser
from spec_planner.tasks.task import read_tasks, write_tasks

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "config" / "tasks" / "held_out_prompts.jsonl"


@pytest.mark.parametrize(
    "line",
    [
        line.split(">")[0].split()[1:]
        for line in (PLANNER_EXAMPLES + DRAFTERS_EXAMPLES).splitlines()
        if line.startswith("  spec-planner")
    ],
    ids=" ".join,
)
def test_every_example_parses(line):
    assert make_parser().parse_args(line).verb == "bench"


def test_the_planners_flags_are_what_they_were():
    words = "bench planner --quick --instructions 3 --tasks a --tasks b --count 2 --random 5 --only quality --identity"
    words += " --temperature 1 --seed 4 --free-text --no-hold-preconditions --show 2 --json --drafter lookup"
    options = make_parser().parse_args(words.split())
    assert options.what == "planner" and options.tasks == ["a", "b"] and options.hold_preconditions is False


def test_a_subject_that_is_none_is_refused_with_those_there_are(capsys):
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(["bench", "weather"])
    assert ended.value.code == 2 and "planner" in capsys.readouterr().err


@pytest.fixture(scope="module")
def small(tiny_model, tmp_path_factory) -> list[str]:
    """A tiny model, short answers, eight prompts."""
    pytest.importorskip("torch")
    pytest.importorskip("llguidance")
    folder = tmp_path_factory.mktemp("bench")
    (folder / "planner.yaml").write_text("engine: torch\nmax_tokens: 12\nnum_draft_tokens: 3\n")
    tasks = [task for index, task in enumerate(read_tasks(SHIPPED)) if index % 9 == 0]
    write_tasks(tasks, folder / "prompts.jsonl")
    return [
        *("bench", "drafters", "--model", str(tiny_model), "--config", str(folder / "planner.yaml")),
        *("--prompts", str(folder / "prompts.jsonl"), "--count", "2"),
    ]


def test_by_default_every_drafter_for_the_model_is_measured(tiny_model, tmp_path, monkeypatch):
    """What was trained for another model is not among them."""
    pytest.importorskip("torch")
    from spec_planner import drafter_choice, shipped_drafters
    from spec_planner.engines.identity import target_identity

    for name, target in (("eagle1", target_identity(tiny_model)), ("medusa", "another model")):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps({"spec_planner": {"target": target}}))

    def shared_files(pattern):
        return sorted(tmp_path.glob(pattern.removeprefix("config/drafters/*/")))

    monkeypatch.setattr(shipped_drafters, "shared_files", shared_files)
    names = drafter_choice.drafters_for(tiny_model)
    assert names == ["none", "lookup", "draft-model", "eagle1"]


class TestDrafters:
    def test_one_row_per_drafter_shape_and_temperature(self, spec_planner, small):
        done = spec_planner(*small, "--drafters", "none,lookup", "--draft-branches", "2", "--json")
        assert done.returncode == 0, done.stderr
        content = json.loads(done.stdout)
        assert [(row["drafter"], row["shape"], row["temperature"]) for row in content["rows"]] == [
            ("none", "-", 0.0),
            ("none", "-", 1.0),
            *(("lookup", shape, t) for shape in ("chain", "tree 2") for t in (0.0, 1.0)),
        ]
        assert all(row["identical"] == row["prompts"] == 2 for row in content["rows"])
        assert all(row["acceptance_length"] == 1.0 for row in content["rows"] if row["drafter"] == "none")
        assert content["machine"] and content["versions"] and content["target"]["engine"] == "torch"
        assert "lookup, tree 2, temperature 1: 2 of 2" in done.stderr

    def test_the_tree_is_chosen_where_none_is_named(self, spec_planner, small):
        done = spec_planner(*small, "--drafters", "lookup")
        assert done.returncode == 0, done.stderr
        assert "choosing among trees of 2, 3, 4" in done.stderr
        rows = [line for line in done.stdout.splitlines() if line.startswith("| lookup")]
        assert len(rows) == 4 and sum("| chain |" in row for row in rows) == 2
        assert all(row.endswith("| 2 of 2 |") for row in rows)

    def test_free_text_forces_nothing(self, spec_planner, small):
        done = spec_planner(*small, "--drafter", "lookup", "--draft-branches", "1", "--free-text", "--json")
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["rows"]
        assert [row["shape"] for row in rows] == ["chain", "chain"] and all(row["forced"] == 0 for row in rows)

    def test_a_token_that_differs_is_an_exit_code(self, spec_planner, small, monkeypatch):
        from spec_planner.bench import drafters

        honest = drafters.answer

        def changed(pipeline, request, budget):
            run = honest(pipeline, request, budget)
            return run if request.plain else dataclasses.replace(run, tokens=(*run.tokens[:-1], 7))

        monkeypatch.setattr(drafters, "answer", changed)
        done = spec_planner(*small, "--drafters", "lookup", "--draft-branches", "1")
        assert done.returncode == 1 and "became" in done.stderr and "0 of 2" in done.stdout

    @pytest.mark.parametrize(
        "words, says",
        [
            (["--count", "0"], "--count must be at least 1"),
            (["--drafters", "lookup,magic"], "no drafter is called 'magic'"),
            (["--drafters", ","], "names no drafter"),
            (["--drafters", "eagle2"], "is the tree of eagle1"),
            (["--draft-budget", "measured"], "leave --draft-budget out"),
            (["--rule", "rejection"], "keeps the law only"),
            (["--prompts", "missing.jsonl"], "missing.jsonl"),
        ],
    )
    def test_bad_input_is_one_sentence_before_anything_is_measured(self, spec_planner, small, words, says):
        done = spec_planner(*small, *words)
        assert done.returncode in (1, 2) and done.stdout == ""
        assert says in done.stderr and len(done.stderr.splitlines()) == 1
