"""Whole runs on a tiny target: a drafter that loads and is exact, the same bits after every interruption, refusals."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from drafters.registry import load_drafter  # noqa: E402
from spec_planner.engines.torch_target import TorchTarget  # noqa: E402
from spec_planner.learning.corpus import CorpusError  # noqa: E402
from spec_planner.learning.files import alone  # noqa: E402
from tests.finetune.corpora import write_tasks  # noqa: E402
from tests.train.conftest import WEIGHTS, run  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def test_a_run_leaves_a_drafter_a_card_and_its_measure(finished):
    settings, summary = finished
    losses = [record["validation_loss"] for record in summary["evaluations"]]
    assert losses[-1] < losses[0] and [record["step"] for record in summary["evaluations"]] == [0, 4, 6]
    assert summary["identical"] and summary["acceptance_length"] >= 1 and summary["lookup_acceptance_length"] >= 1
    assert summary["steps"] == 6 and len(summary["evaluations"][0]["by_depth"]) == 2
    target = TorchTarget.load(settings.target, context_length=256)
    assert load_drafter(settings.out / "drafter", target, 1).name == "medusa"
    config = json.loads((settings.out / "drafter" / "config.json").read_text())
    note = config["spec_planner"]
    assert [len(row) for row in config["medusa_rank_accuracy"]] == [10, 10]  # measured when it had learnt
    assert note["steps"] == 6 and note["recipe"]["option num_heads"] == "2"
    card = (settings.out / "README.md").read_text()
    assert "| toy | 15 | 2 |" in card and "plain decoding: yes" in card and str(settings.out.parent) not in card
    assert "- option decay: " in card and "at temperatures 0, 1 in turn" in card
    left = [".lock", "README.md", "drafter", "state.safetensors"]
    assert sorted(path.name for path in settings.out.iterdir()) == left


def test_a_run_stopped_and_continued_ends_in_the_same_bits(finished, settings, tmp_path):
    whole, summary = finished
    parts, lines = replace(settings, out=tmp_path / "parts"), []
    for passes in (5, 6):
        asked = iter([False] * passes)
        assert run(parts, passes == 6, stop=lambda asked=asked: next(asked, True)) is None
    rest = run(parts, resume=True, lines=lines)
    assert any(line.startswith("continuing after step") and not line.endswith("step 0") for line in lines)
    assert (parts.out / WEIGHTS).read_bytes() == (whole.out / WEIGHTS).read_bytes()
    assert rest["by_depth"] == summary["by_depth"] and rest["tokens"] == summary["tokens"]
    numbers = [{**record, "seconds": 0} for record in summary["evaluations"]]
    assert [{**record, "seconds": 0} for record in rest["evaluations"]] == numbers


def test_a_run_stopped_in_every_stage_gives_the_same_drafter(finished, settings, tmp_path):
    whole, _ = finished
    fresh = replace(settings, out=tmp_path / "fresh", cache=tmp_path / "cache")
    for end in ("answers 5/", "features, ", "step 3/6", "decoding held-out prompts with drafter lookup"):
        lines: list[str] = []
        stop = lambda lines=lines, end=end: any(line.startswith(end) for line in lines)  # noqa: E731
        assert run(fresh, fresh.out.exists(), stop, lines) is None
    run(fresh, resume=True)
    assert (fresh.out / WEIGHTS).read_bytes() == (whole.out / WEIGHTS).read_bytes()


def test_another_drafter_learns_from_the_same_cache(finished, settings, tmp_path):
    def times():
        return {path.name: path.stat().st_mtime_ns for path in settings.cache.glob("features-*/shard-*")}

    before, lines = times(), []
    other = replace(settings, out=tmp_path / "other", options={"num_heads": "1"}, also_layers=(0, 1), steps=1)
    assert run(other, lines=lines)["identical"]
    after = times()
    assert not any(line.startswith("answers") for line in lines)
    assert before.items() <= after.items() and {name.split(".")[1] for name in after} == {
        *("rows", "layer-0", "layer-1", "layer-2"),
    }


def test_more_answers_are_learned_beside_the_features_there_are(finished, settings, tmp_path):
    before = set(settings.cache.glob("features-*"))
    more = replace(settings, out=tmp_path / "more", responses=17, steps=1)
    assert run(more)["responses"]["toy"]["train"] == 17
    after = set(settings.cache.glob("features-*"))
    assert before < after and len(after) == len(before) + 1
    with pytest.raises(ValueError, match="was begun with answers"):
        run(replace(more, responses=16), resume=True)
    assert set(settings.cache.glob("features-*")) == after  # refused before they were computed


def test_a_prompt_that_cannot_be_asked_is_found_before_the_first_answer(settings, tmp_path):
    tasks = write_tasks(tmp_path / "tasks", 18)
    lines = [json.loads(line) for line in (tasks / "toy.jsonl").read_text().splitlines()]
    lines[-1]["split"] = "wording_held_out"  # it is decoded at the very end
    lines[-1]["instruction"] = "word " * 3000
    (tasks / "toy.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    long = replace(settings, prompts=tasks, out=tmp_path / "out", cache=tmp_path / "cache")
    with pytest.raises(ValueError, match=r"prompt toy/toy-17 cannot be asked: it has \d+ tokens and the context \d+"):
        run(long)
    assert not list(long.cache.glob("responses*"))


def test_a_gradient_that_is_not_finite_leaves_the_state_as_it_was(finished, settings, tmp_path):
    from spec_planner.learning.run_state import FILE

    parts, lines = replace(settings, out=tmp_path / "parts"), []
    asked = lambda: any(line.startswith("step 3/6") for line in lines)  # noqa: E731
    assert run(parts, stop=asked, lines=lines) is None
    before = (parts.out / FILE).read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spec_planner.train.learner.DrafterLearner.loss", _no_number)
        with pytest.raises(ValueError, match="the gradient of step 4 is not finite: add --resume to go on from the"):
            run(parts, resume=True)
    assert (parts.out / FILE).read_bytes() == before
    summary = run(replace(parts, learning_rate=5e-3), resume=True, lines=lines)
    assert "continuing after step 3, with learning rate 0.005 instead of 0.01" in lines
    assert summary["rates"] == [[3, 1e-2]]
    assert "- learning_rate before step 4: 0.01" in (parts.out / "README.md").read_text()


def _no_number(learner, pack):
    return sum(parameter.sum() for parameter in learner.parameters.values()) * float("nan"), 1.0


def test_a_drafter_beyond_float16_is_not_put_in_its_place(finished, tmp_path):
    import shutil

    from safetensors.torch import save_file

    from spec_planner.train.result import write_drafter

    whole, _ = finished

    class Wild:
        def save(self, directory, note):
            save_file({"weight": torch.full((2,), 1e5).half()}, directory / "model.safetensors")

    shutil.copytree(whole.out / "drafter", tmp_path / "drafter")
    with pytest.raises(ValueError, match="tensor weight has values beyond float16"):
        write_drafter(Wild(), tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]
    assert (tmp_path / WEIGHTS).read_bytes() == (whole.out / WEIGHTS).read_bytes()


def test_an_out_has_one_run_at_a_time_and_is_swept(settings, finished, tmp_path):
    out = tmp_path / "out"
    (out / ".drafter.77" / "new").mkdir(parents=True)
    (out / ".state.safetensors.77").write_bytes(b"torn")
    with alone(out), pytest.raises(ValueError, match="another run is writing to .*out: wait for it"):
        run(replace(settings, out=out, steps=1))
    run(replace(settings, out=out, steps=1))
    assert not list(out.glob("*.77")) and not list(out.glob(".*.77"))


def test_plain_prompts_train_a_drafter_for_free_text(settings, tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text("".join(f"Say something about item {number}.\n" for number in range(22)))
    plain = replace(settings, prompts=path, out=tmp_path / "out", cache=tmp_path / "cache", steps=2, max_tokens=8)
    summary = run(plain)
    assert summary["identical"] and summary["responses"] == {"plain": {"train": 21, "validation": 1}}


def test_what_cannot_be_run_is_refused_before_any_work(finished, settings, tmp_path):
    whole, _ = finished
    for changed, resume, sentence in (
        ({}, False, "already holds a run: add --resume"),
        ({"learning_rate": 0.02}, True, "was begun with learning_rate 0.01, not 0.02"),
        ({"options": {"num_heads": "1"}}, True, "was begun with option num_heads '2', not '1'"),
        ({"max_tokens": 25}, True, "were made with max_tokens 24, not 25"),
        ({"pack_tokens": 500}, True, "was begun with pack_tokens 400, not 500"),
        ({"out": tmp_path / "none"}, True, "holds no run to continue"),
        ({"out": tmp_path / "none", "options": {"heads": "2"}}, False, "has no option 'heads'; it has num_heads"),
        ({"out": tmp_path / "none", "also_layers": (3,)}, False, "there is no hidden state 3: target tiny has 0 to 2"),
        ({"out": tmp_path / "none", "save_seconds": float("nan")}, False, "--save-seconds must be 0 or greater"),
        ({"out": tmp_path / "none", "cache": tmp_path / "none"}, False, "--out and --cache are both .*: name two"),
        ({"out": tmp_path / "none", "steps": 0}, False, "--steps must be greater than 0"),
        ({"out": tmp_path / "none", "temperatures": (-1.0,)}, False, "--temperatures must be 0 or greater"),
        ({"out": tmp_path / "none", "temperatures": (0.0,), "responses": 99}, False, "greedy answers there are"),
    ):
        with pytest.raises(ValueError, match=sentence):
            run(replace(whole, **changed), resume)
    assert not (tmp_path / "none").exists()
    lines = (settings.prompts / "toy.jsonl").read_text().splitlines()
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "toy.yaml").write_bytes((settings.prompts / "skills" / "toy.yaml").read_bytes())
    one = tmp_path / "train.jsonl"
    one.write_text("".join(line + "\n" for line in lines if '"train"' in line))
    with pytest.raises(CorpusError, match="has 15 prompts to learn from and 0 to validate with: name the directory"):
        run(replace(settings, prompts=one, out=tmp_path / "none"))


def test_several_processes_share_a_run(finished, settings, tmp_path):
    whole, _ = finished
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    out, cache = tmp_path / "out", tmp_path / "cache"
    options = {
        **{"drafter": "medusa", "target": settings.target, "prompts": settings.prompts, "out": out, "cache": cache},
        **{"set": "num_heads=2", "validation-responses": 2, "max-tokens": 24, "pack-tokens": 400, "steps": 6},
        **{"learning-rate": 0.01, "evaluate-every": 4, "final-prompts": 2, "precision": "float32"},
        "engine": "torch",
    }
    command = [sys.executable, "-m", "spec_planner", "train", *(f"--{name}={value}" for name, value in options.items())]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(command, cwd=ROOT, env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    assert [process.wait(300) for process in processes] == [0, 0]
    assert sorted(path.name for path in cache.glob("responses*")) == ["responses-1.jsonl", "responses.jsonl"]
    ours, theirs = load_file(out / WEIGHTS), load_file(whole.out / WEIGHTS)
    for name, tensor in theirs.items():  # sums are in another order, so not the same bits
        torch.testing.assert_close(ours[name].float(), tensor.float(), rtol=0.05, atol=5e-3)
