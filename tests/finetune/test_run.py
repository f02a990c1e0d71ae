"""Whole runs on a tiny model: they end, learn, survive being killed, and refuse what cannot be continued."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from spec_planner.engines.checkpoint import load_weights  # noqa: E402
from spec_planner.engines.decoder_config import read_decoder_config  # noqa: E402
from spec_planner.finetune.adapted_model import AdaptedModel  # noqa: E402
from spec_planner.finetune.general import general_examples  # noqa: E402
from spec_planner.finetune.run import Settings, finetune  # noqa: E402
from spec_planner.language.tokenizer import Tokenizer  # noqa: E402
from spec_planner.learning.corpus import Encoder  # noqa: E402
from spec_planner.learning.files import RunError, alone  # noqa: E402
from tests.finetune.corpora import write_tasks  # noqa: E402
from tests.models import make_tiny_model  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> Settings:
    folder = tmp_path_factory.mktemp("finetune")
    return Settings(
        target=make_tiny_model(folder / "tiny"),
        tasks=write_tasks(folder / "tasks"),
        out=folder / "unset",
        steps=12,
        rank=4,
        learning_rate=1e-2,
        batch_tokens=1200,
        pack_tokens=600,
        general_share=0.2,
        evaluate_every=5,
        precision="float32",
    )


def run(settings, resume=False, stop=lambda: False, lines=None):
    report = (lambda share, line: None) if lines is None else (lambda share, line: lines.append(line))
    return finetune(settings, resume, report, stop, ["spec-planner", "finetune"])


@pytest.fixture(scope="module")
def finished(settings):
    """An uninterrupted run: its settings and its summary."""
    whole = dataclasses.replace(settings, out=settings.out.parent / "whole")
    return whole, run(whole)


def test_a_run_learns_and_leaves_adapter_and_card(finished):
    settings, summary = finished
    losses = [record["validation_loss"] for record in summary["evaluations"]]
    assert losses[-1] < 0.8 * losses[0]
    tensors = load_file(settings.out / WEIGHTS)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    config = json.loads((settings.out / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny" and (config["r"], config["lora_alpha"]) == (4, 8)
    card = (settings.out / "README.md").read_text()
    assert "| toy | 20 | 4 |" in card and "spec-planner finetune" in card and str(settings.out.parent) not in card


def test_tasks_without_a_validation_split_are_trained_on(settings, tmp_path):
    import shutil

    tasks = shutil.copytree(settings.tasks, tmp_path / "tasks")
    lines = (tasks / "toy.jsonl").read_text().splitlines()
    (tasks / "toy.jsonl").write_text("".join(line + "\n" for line in lines if '"train"' in line))
    out = tmp_path / "out"
    summary = run(dataclasses.replace(settings, tasks=tasks, out=out, steps=1, general_share=0.0))
    assert list(summary["numbers"]) == ["perplexity of general prose"] and (out / WEIGHTS).is_file()


def test_everyday_answers_are_those_of_this_model_and_seed(finished, tmp_path):
    settings, _ = finished
    device, place = torch.device("cpu"), tmp_path / "general.json"
    model, encoder = AdaptedModel(settings.target, 4, 8, 0, device, torch.float32), Encoder(Tokenizer(settings.target))
    place.write_text("[]")  # without a word of what it was made of

    def made(identity, seed):
        general_examples(model, encoder, tmp_path, identity, seed)
        return place.read_bytes()

    first = made("weights-a", 0)
    changed = place.stat().st_mtime_ns
    assert made("weights-a", 0) == first and place.stat().st_mtime_ns == changed
    others = [made(*of) for of in (("weights-b", 0), ("weights-a", 1))]
    assert json.loads(others[0])["answers"] == json.loads(first)["answers"] != json.loads(others[1])["answers"]


def test_peft_loads_the_adapter(finished):
    import peft
    import transformers

    settings, _ = finished
    base = transformers.AutoModelForCausalLM.from_pretrained(settings.target)
    model = peft.PeftModel.from_pretrained(base, settings.out)
    stored = load_file(settings.out / WEIGHTS)
    assert peft.get_peft_model_state_dict(model, save_embedding_layers=False).keys() == stored.keys()


def test_a_run_stopped_and_continued_ends_in_the_same_bits(finished, settings, tmp_path):
    whole, summary = finished
    parts = dataclasses.replace(settings, out=tmp_path / "parts")
    asked = iter([False] * 9)
    assert run(parts, stop=lambda: next(asked, True)) is None
    asked = iter([False] * 10)
    assert run(parts, resume=True, stop=lambda: next(asked, True)) is None
    rest = run(parts, resume=True)
    assert (parts.out / WEIGHTS).read_bytes() == (whole.out / WEIGHTS).read_bytes()
    assert rest["numbers"] == summary["numbers"] and rest["tokens"] == summary["tokens"]
    for ours, theirs in zip(rest["evaluations"], summary["evaluations"], strict=True):
        assert (ours["step"], ours["validation_loss"]) == (theirs["step"], theirs["validation_loss"])


def command(settings: Settings) -> list[str]:
    options = {
        **{"target": settings.target, "tasks": settings.tasks, "out": settings.out, "steps": settings.steps},
        **{"rank": settings.rank, "learning-rate": settings.learning_rate, "batch-tokens": settings.batch_tokens},
        **{"pack-tokens": settings.pack_tokens, "general": settings.general_share, "precision": "float32"},
        **{"evaluate-every": settings.evaluate_every, "save-seconds": settings.save_seconds},
    }
    return [sys.executable, "-m", "spec_planner", "finetune", *(f"--{name}={value}" for name, value in options.items())]


def start(arguments: list[str], **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(arguments, env={**environment, **options.pop("env", {})}, cwd=ROOT, **options)


def wait_for(path: Path, process: subprocess.Popen) -> None:
    limit = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None and time.monotonic() < limit, f"{path.name} was not written"
        time.sleep(0.02)


def test_a_killed_run_continues_in_the_same_bits(finished, settings, tmp_path):
    whole, _ = finished
    killed = dataclasses.replace(settings, out=tmp_path / "killed", save_seconds=0.0)
    with start(command(killed)) as process:
        wait_for(killed.out / "state.safetensors", process)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL and not (killed.out / WEIGHTS).exists()
    merged = tmp_path / "merged"
    with start([*command(killed), "--resume", "--json", f"--merge={merged}"], stdout=subprocess.PIPE) as process:
        printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and json.loads(printed)["steps"] == settings.steps
    assert (killed.out / WEIGHTS).read_bytes() == (whole.out / WEIGHTS).read_bytes()
    assert json.loads((merged / "spec_planner.json").read_text())["prompt_examples"] is False
    load_weights(merged, read_decoder_config(merged))


def test_an_interrupt_saves_and_says_so_in_one_line(settings, tmp_path):
    long = dataclasses.replace(settings, out=tmp_path / "long", steps=100_000, save_seconds=0.0)
    with start(command(long), stderr=subprocess.PIPE, text=True) as process:
        wait_for(long.out / "state.safetensors", process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors
    assert errors.strip().splitlines()[-1].startswith("interrupted; the same command with --resume continues")


def test_several_processes_learn_what_one_does(finished, settings, tmp_path):
    whole, summary = finished
    pair = dataclasses.replace(settings, out=tmp_path / "pair")
    with socket_port() as port:
        address = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = [start(command(pair), env={**address, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in (0, 1)]
    assert [process.wait(180) for process in processes] == [0, 0]
    ours, theirs = load_file(pair.out / WEIGHTS), load_file(whole.out / WEIGHTS)
    for name, tensor in theirs.items():  # sums are in another order, so not the same bits
        torch.testing.assert_close(ours[name].float(), tensor.float(), rtol=0.05, atol=5e-3)


def socket_port():
    import contextlib
    import socket

    @contextlib.contextmanager
    def free():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            yield probe.getsockname()[1]

    return free()


def test_what_cannot_be_continued_is_refused(finished, settings, tmp_path):
    whole, _ = finished
    with pytest.raises(RunError, match="already holds a run: add --resume"):
        run(whole)
    with pytest.raises(RunError, match="was begun with learning_rate 0.01, not 0.02"):
        run(dataclasses.replace(whole, learning_rate=0.02), resume=True)
    with pytest.raises(RunError, match="holds no run to continue"):
        run(dataclasses.replace(settings, out=tmp_path / "none"), resume=True)
    with pytest.raises(ValueError, match="holds no task file"):
        run(dataclasses.replace(settings, out=tmp_path / "none", tasks=tmp_path))
    for changed, sentence in (
        ({"steps": 0}, "--steps must be greater than 0"),
        ({"evaluate_every": 0}, "--evaluate-every must be greater than 0"),
        ({"save_seconds": float("nan")}, "--save-seconds must be 0 or greater, got nan"),
        ({"vary_share": 1.5}, "--vary-skills must be a share from 0 to 1, got 1.5"),
        ({"general_share": 0.6}, "--general must be a share from 0 to 0.5, got 0.6"),
    ):
        with pytest.raises(RunError, match=sentence):
            run(dataclasses.replace(settings, **changed))
    with alone(tmp_path / "busy"), pytest.raises(RunError, match="another run is writing to .*busy"):
        run(dataclasses.replace(settings, out=tmp_path / "busy"))
    torn = tmp_path / "torn"
    torn.mkdir()
    with safe_open(whole.out / "state.safetensors", framework="pt") as file:
        kept = {name: file.get_tensor(name) for name in file.keys() if "lora_A" not in name}  # noqa: SIM118
        save_file(kept, torn / "state.safetensors", file.metadata())
    with pytest.raises(RunError, match=r"torn/state.safetensors cannot be read \('parameter/.*: start the run again"):
        run(dataclasses.replace(whole, out=torn), resume=True)


def test_a_run_by_the_clock_ends(settings, tmp_path):
    summary = run(dataclasses.replace(settings, out=tmp_path / "short", steps=None, minutes=0.02))
    assert summary["steps"] >= 1 and summary["minutes"] < 1
