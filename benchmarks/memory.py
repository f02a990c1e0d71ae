"""Peak memory of loading a target and filling its context, beside what was predicted, per engine and precision.

    python benchmarks/memory.py [--engine onnx] [--precision int8] [--drafter none eagle3] [--context-length 2048]

Each row is a process of its own. It first runs a planner whose network is a toy but whose tokenizer is the target's:
what that holds is the *process*, and is not counted again. Then it loads the target and the drafter and decodes twice,
from a prompt of nearly the whole context to its end. The prompts' tokens are spread over the whole vocabulary, so that
every page of the embedding is met.

    anonymous   peak, over all of it, of what cannot be given back (RssAnon, read by the parent every 2 ms)
    mapped      pages of the weights' files that the second decoding touched: it starts with none of them in its page
                tables. A page that was read only while loading is not counted, because the system takes it back when it
                is wanted; one that passes read is, because a machine without room for it would read it again and again.
    measured    both together, against the budget's lines but the process
    peak RSS    all that the process ever held (VmHWM), pages that were read once among it
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from spec_planner.config import PRECISIONS_OF, PlannerConfig
from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.loop import decode
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.decoding.stopping import Stopping
from spec_planner.drafter_choice import drafter_checkpoint
from spec_planner.engines.checkpoint import expected_tensors
from spec_planner.engines.decoder_config import read_decoder_config
from spec_planner.engines.default_model import model_directory
from spec_planner.factory import build_drafter, build_pipeline, find_rule
from spec_planner.graphs.block_quant import stored_precision
from spec_planner.memory.budget import memory_budget
from spec_planner.target_loading import load_target

CASES = [(engine, precision) for engine in ("torch", "onnx", "openvino") for precision in PRECISIONS_OF[engine]]
ANSWER = 64  # tokens decoded after each prompt
_DONT_NEED = 4  # MADV_DONTNEED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--engine")
    parser.add_argument("--precision")
    parser.add_argument("--drafter", nargs="+", default=["none", "eagle3"])
    parser.add_argument("--context-length", type=int, default=2048)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", metavar="TOY", help=argparse.SUPPRESS)
    options = parser.parse_args()
    configs = [
        PlannerConfig(
            model=options.model,
            engine=engine,
            precision=precision,
            drafter=drafter,
            device="cpu",
            context_length=options.context_length,
        )
        for drafter in options.drafter
        for engine, precision in CASES
        if options.engine in (None, engine) and options.precision in (None, precision) and precision != "float16"
    ]
    if options.child:
        run(configs[0], Path(options.child))
        return
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        toy = make_toy(Path(scratch) / "toy", model_directory(options.model))
        for config in configs:
            export(config, toy)
            rows.append(watch(config, toy))
            if not options.json:
                print(as_line(rows[-1]) if len(rows) > 1 else f"{_HEADER}\n{as_line(rows[-1])}", flush=True)
    if options.json:
        print(json.dumps(rows))


def export(config: PlannerConfig, toy: Path) -> None:
    """Make the graphs that the child will run: to make them takes memory of its own, once."""
    if config.engine == "torch":
        return
    from spec_planner.engines.onnx_graphs import ensure_graph

    precision = stored_precision(config.precision)
    ensure_graph(model_directory(config.model), precision)
    with cache_at(toy.parent / "cache"):
        ensure_graph(toy, precision)


def watch(config: PlannerConfig, toy: Path) -> dict:
    """Run one case in a process of its own and watch its memory; MB."""
    command = [sys.executable, __file__, "--child", str(toy), "--model", config.model, "--drafter", config.drafter]
    command += ["--engine", config.engine, "--precision", config.precision]
    command += ["--context-length", str(config.context_length)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    samples: list[tuple[float, int]] = []
    watcher = threading.Thread(target=_poll, args=(child, samples))
    watcher.start()
    assert child.stdout is not None
    output = child.stdout.read()
    watcher.join()
    if child.returncode:
        sys.exit(f"{' '.join(command)} ended with code {child.returncode}")
    report = json.loads(output.splitlines()[-1])
    began, base = report.pop("began"), report.pop("base")
    anonymous = max(value for at, value in samples if at >= began) - base
    measured = anonymous + report["mapped"]
    predicted = report["predicted"]
    expected = sum(predicted[name] for name in _LINES)
    return {
        **{name: getattr(config, name) for name in ("engine", "precision", "drafter", "context_length")},
        "process": report["process"],
        "anonymous": anonymous,
        "mapped": report["mapped"],
        "peak_rss": report["peak_rss"],
        "measured": measured,
        "predicted": expected,
        "ratio": measured / expected,
        "lines": predicted,
    }


_LINES = ("weights", "copies", "kv", "drafter", "restored", "activations", "workspace")
_HEADER = (
    "| engine | precision | drafter | process | anonymous | mapped | measured | predicted | ratio | peak RSS |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def as_line(row: dict) -> str:
    """A row of the table, in MB."""
    numbers = (row[name] / 1e6 for name in ("process", "anonymous", "mapped", "measured", "predicted"))
    cells = [row["engine"], row["precision"], row["drafter"], *(f"{number:.0f}" for number in numbers)]
    cells += [f"{row['ratio']:.3f}", f"{row['peak_rss'] / 1e6:.0f}"]
    return f"| {' | '.join(cells)} |"


def _poll(child: subprocess.Popen, samples: list[tuple[float, int]]) -> None:
    while child.poll() is None:
        anonymous = status(child.pid).get("RssAnon")
        if anonymous is not None:
            samples.append((time.monotonic(), anonymous))
        time.sleep(0.002)


def run(config: PlannerConfig, toy: Path) -> None:
    """In the child: the toy planner, then the target; the last line of what it prints is the report, in bytes."""
    with cache_at(toy.parent / "cache"):
        pipeline = build_pipeline(replace(config, model=str(toy), drafter="none", context_length=1024))
    pipeline.warm_up()
    pipeline.close()
    directory = model_directory(config.model)
    if drafter_checkpoint(config, directory) is not None:
        import torch

        import drafters.registry  # noqa: F401

        torch.nn.functional.linear(torch.zeros(64, 64), torch.zeros(64, 64))
    del pipeline
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # of the toy
    predicted = asdict(memory_budget(config, directory))
    now = status()
    report = {"began": time.monotonic(), "base": now["RssAnon"], "process": now["RssAnon"] + now["RssFile"]}
    target = load_target(config, directory)
    drafter = build_drafter(config, target)
    fill(target, drafter, config, 0)
    unmap_weights()
    fill(target, drafter, config, 1)
    report |= {"mapped": mapped_weights(), "peak_rss": status()["VmHWM"], "predicted": predicted}
    print(json.dumps(report))


def fill(target, drafter, config: PlannerConfig, first: int) -> None:
    """Decode from a prompt of nearly the whole context to its end."""
    count = config.context_length - ANSWER - 1
    ids = np.linspace(first, target.info.vocabulary_size - 1, count).astype(int)
    prompt = PromptInput(tuple(int(token) for token in np.random.default_rng(first).permutation(ids)))
    stopping, rule = Stopping(config.context_length), find_rule(config.rule)
    for _ in decode(target, drafter, prompt, SamplingParams(), stopping, rule, FixedBudget(config.num_draft_tokens)):
        pass


@contextlib.contextmanager
def cache_at(directory: Path) -> Iterator[None]:
    """Keep what is made of the toy out of the user's cache."""
    before = os.environ.get("SPEC_PLANNER_CACHE")
    os.environ["SPEC_PLANNER_CACHE"] = str(directory)
    try:
        yield
    finally:
        del os.environ["SPEC_PLANNER_CACHE"]
        if before is not None:
            os.environ["SPEC_PLANNER_CACHE"] = before


def status(pid: int | str = "self") -> dict[str, int]:
    """Sizes in ``/proc/<pid>/status``, in bytes; nothing of a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}


def _weight_maps() -> list[dict]:
    """The mappings of weights' files in this process."""
    found: list[dict] = []
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ \d+\s*(.*)", line)
        if head:
            start, end, offset = (int(part, 16) for part in head.groups()[:3])
            found.append({"start": start, "length": end - start, "offset": offset, "path": head.group(4)})
        elif line.startswith(("Rss:", "Anonymous:")):
            found[-1][line.split(":")[0]] = int(line.split()[1]) * 1024
    return [one for one in found if one["path"].endswith((".safetensors", ".bin"))]


def unmap_weights() -> None:
    """Empty the page tables of the mapped weights, so that a pass has to ask for every page again."""
    advise = ctypes.CDLL(None, use_errno=True).madvise
    for one in _weight_maps():
        if not one["Anonymous"]:  # pages written to would be lost
            advise(ctypes.c_void_p(one["start"]), ctypes.c_size_t(one["length"]), _DONT_NEED)


def mapped_weights() -> int:
    """Bytes of the weights' files in the page tables; a part of a file that is mapped twice counts once."""
    total, end, last = 0, {}, {}
    for one in sorted(_weight_maps(), key=lambda one: (one["path"], one["offset"])):
        path = one["path"]
        if one["offset"] < end.get(path, 0):
            total += max(one["Rss"] - last[path], 0)
        else:
            total += one["Rss"]
        last[path] = max(one["Rss"], last.get(path, 0) if one["offset"] < end.get(path, 0) else 0)
        end[path] = max(end.get(path, 0), one["offset"] + one["length"])
    return total


def make_toy(directory: Path, model: Path) -> Path:
    """A network of next to nothing with the tokenizer of ``model``."""
    from safetensors.numpy import save_file

    skipped = shutil.ignore_patterns("*.safetensors*", "*.bin")
    shutil.copytree(model, directory, ignore=skipped)
    raw = json.loads((model / "config.json").read_text(encoding="utf-8"))
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 32}
    raw |= {**sizes, "num_attention_heads": 2, "num_key_value_heads": 1}
    (directory / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    generator = np.random.default_rng(0)
    shapes = dict(expected_tensors(read_decoder_config(directory)))
    tensors = {name: generator.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors")
    return directory


if __name__ == "__main__":
    main()
