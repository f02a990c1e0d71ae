"""``spec-planner bench engines`` from command to table, on a tiny model: rows, refusals, an interrupted run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from spec_planner.cli.bench_engines import EXAMPLES, _different
from spec_planner.cli.main import make_parser
from spec_planner.tasks.task import read_tasks, write_tasks

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "line",
    [line.split()[1:] for line in EXAMPLES.splitlines() if line.startswith("  spec-planner")],
    ids=" ".join,
)
def test_every_example_parses(line):
    assert make_parser().parse_args(line).what == "engines"


@pytest.fixture(scope="module")
def small(tiny_model, tmp_path_factory):
    """A tiny model, short answers, eight prompts, one thread; graphs and GGUF files kept out of the user's cache."""
    pytest.importorskip("torch")
    pytest.importorskip("llguidance")
    folder = tmp_path_factory.mktemp("bench")
    (folder / "planner.yaml").write_text("max_tokens: 12\nnum_draft_tokens: 3\nthreads: 1\nengine: onnx\n")
    tasks = [
        task for index, task in enumerate(read_tasks(ROOT / "config/tasks/held_out_prompts.jsonl")) if not index % 9
    ]
    write_tasks(tasks, folder / "prompts.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPEC_PLANNER_CACHE", str(folder / "cache"))
        yield [
            *("bench", "engines", "--model", str(tiny_model), "--config", str(folder / "planner.yaml"), "--quick"),
            *("--prompts", str(folder / "prompts.jsonl"), "--context", "64"),
        ]


def test_everything_that_is_there_has_its_rows(spec_planner, small, tmp_path):
    pytest.importorskip("onnxruntime")
    out = tmp_path / "engines.json"
    words = ["--engines", "torch:float32,onnx:int8", "--drafters", "auto", "--llama", "none", "--json"]
    done = spec_planner(*small, *words, "--out", str(out))
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content == json.loads(out.read_text()) and content["complete"]
    decodings = [("plain", "free text"), ("lookup", "free text"), ("lookup", "grammar")]
    assert [(row["engine"], row["precision"], row["decoding"], row["answers"]) for row in content["rows"]] == [
        *(("torch", "float32", *decoding) for decoding in decodings),
        *(("onnx", "int8", *decoding) for decoding in decodings),
        *(("transformers", "float32", name, "free text") for name in ("plain", "prompt lookup")),
    ]
    free = [row for row in content["rows"] if row["answers"] == "free text"]
    assert all(row["as_plain"] == row["prompts"] == 2 for row in free)
    assert all(row["as_reference"] == 2 for row in free if row["precision"] == "float32")
    assert [(row["engine"], row["precision"]) for row in content["accuracy"]] == [
        ("torch", "float32"),
        ("onnx", "int8"),
    ]
    assert content["accuracy"][0]["agreement"] == 1.0
    assert {(cell["engine"], cell["context"], cell["width"]) for cell in content["passes"]} == {
        (engine, 64, width) for engine in ("torch", "onnx") for width in (1, 4, 8, 16, 32)
    }
    assert content["machine"]["cpu"] and {"torch", "onnxruntime", "transformers"} <= set(content["versions"])
    assert {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(content["environment"])
    assert "answers in turns: 2 of 2" in done.stderr and content["bandwidth"] > 0


def test_without_llama_cpp_a_line_says_how_to_get_it(spec_planner, small, monkeypatch):
    pytest.importorskip("gguf")
    from spec_planner.bench.engines_run import EngineBench

    monkeypatch.setattr(EngineBench, "cycles", None)  # no part of the speed
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    words = [
        "--engines",
        "torch:float32",
        "--llama",
        "F32",
        "--transformers",
        "none",
        "--only",
        "speed",
        "--count",
        "1",
    ]
    done = spec_planner(*small, *words)
    assert done.returncode == 0, done.stderr
    assert "- llama.cpp F32: not installed: pip install llama-cpp-python" in done.stdout
    assert "| torch | float32 | plain | free text |" in done.stdout


def test_what_was_measured_before_an_interrupt_is_printed(spec_planner, small, monkeypatch, tmp_path):
    from spec_planner.bench.engines_run import EngineBench

    def interrupted(self, questions):
        raise KeyboardInterrupt

    monkeypatch.setattr(EngineBench, "accuracy", interrupted)
    out = tmp_path / "engines.json"
    words = ["--engines", "torch:float32", "--llama", "none", "--transformers", "none", "--out", str(out)]
    done = spec_planner(*small, *words)
    assert done.returncode == 130 and done.stderr.splitlines()[-1] == "spec-planner: interrupted"
    assert "| torch | float32 | lookup | grammar |" in done.stdout and "Stopped before" in done.stdout
    content = json.loads(out.read_text())
    assert content["complete"] is False and len(content["rows"]) == 3 and content["passes"] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--count", "0"], "--count must be at least 1"),
        (["--engines", "onnx"], "such as onnx:int8"),
        (["--engines", "onnx:bfloat16"], "does not run in precision 'bfloat16'"),
        (["--engines", ","], "--engines names nothing"),
        (["--drafters", "none,lookup"], "plain decoding is always measured"),
        (["--out", "missing/engines.json"], "--out cannot write missing/engines.json"),
        (["--drafters", "magic"], "no drafter is called 'magic'"),
        (["--llama", "Q9"], "--llama does not know 'Q9'"),
        (["--transformers", "int8"], "--transformers does not know 'int8'"),
        (["--context", "5000"], "--context must be between 1 and 4000"),
        (["--prompts", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_measured(spec_planner, small, words, says):
    done = spec_planner(*small, *words)
    assert done.returncode in (1, 2) and done.stdout == ""
    assert says in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_plot_needs_its_library_and_its_figures(spec_planner, small, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = spec_planner(*small, "--plot", str(tmp_path / "a.svg"))
    assert done.returncode == 2 and "pip install matplotlib" in done.stderr
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    done = spec_planner(*small, "--plot", str(tmp_path / "a.svg"))
    assert done.returncode == 2 and "add --context-cost" in done.stderr
    done = spec_planner(*small, "--context-cost", "--plot", str(tmp_path / "missing" / "a.svg"))
    assert done.returncode == 2 and "--plot cannot write" in done.stderr and len(done.stderr.splitlines()) == 1


def test_rows_that_differ_from_plain_are_named(capsys):
    row = {"engine": "onnx", "precision": "int8", "decoding": "eagle3", "prompts": 4, "as_plain": 3}
    same = [{**row, "as_plain": 4}, {**row, "as_plain": None}, {**row, "engine": "llama.cpp"}]
    assert _different(same) == 0 and capsys.readouterr().err == ""
    assert _different([*same, row]) == 1
    assert capsys.readouterr().err == "spec-planner: onnx int8, eagle3: 1 of 4 answers differ from its plain ones\n"


def test_what_was_measured_is_printed_where_it_cannot_be_saved(spec_planner, small, monkeypatch, tmp_path):
    from spec_planner.bench.engines_run import EngineBench

    out = tmp_path / "there" / "engines.json"
    out.parent.mkdir()

    monkeypatch.setattr(EngineBench, "load", lambda self, tried_on: None)
    monkeypatch.setattr(EngineBench, "accuracy", lambda self, questions: _note_and_remove(self, out))
    words = ["--engines", "torch:float32", "--llama", "none", "--transformers", "none", "--only", "accuracy"]
    done = spec_planner(*small, *words, "--out", str(out))
    assert done.returncode == 1 and "engines.json" in done.stderr.splitlines()[-1]
    assert "| torch | float32 | 1.5000 | 100.00% | 3 |" in done.stdout


def _note_and_remove(bench, out):
    found = {"engine": "torch", "precision": "float32", "perplexity": 1.5, "agreement": 1.0, "positions": 3}
    bench.content["accuracy"].append(found)
    for path in (*out.parent.iterdir(), out.parent):
        path.rmdir() if path.is_dir() else path.unlink()
