"""``spec-planner bench engines``: every engine and precision, plain and speculative, against llama.cpp and generate."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .settings import read_settings

if TYPE_CHECKING:
    from ..bench.engines import Question
    from ..bench.engines_run import EngineBench, Selection
    from ..config import PlannerConfig
    from ..pipeline.types import PlanRequest

HELP = "Every engine and precision, plain and speculative, against llama.cpp and Hugging Face generate, in one run."
PROMPTS = "config/tasks/held_out_prompts.jsonl"
QUICK, FULL, CALIBRATION = 2, 8, 4
REPEATS_QUICK, REPEATS = 3, 5
NUM_DRAFT_TOKENS = 15
LLAMA, TRANSFORMERS = "F32,BF16,Q8_0,Q4_0", "float32"
PARTS = ("speed", "accuracy", "passes")
_THREAD_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "OMP_PROC_BIND")
EXAMPLES = """\
Tokens per second, tokens compared, what passes cost by their width and accuracy, on the same weights, prompts and
threads. All competitors are loaded at once (some 9 GB for the default model) and answer every prompt in turn. llama.cpp
needs `pip install llama-cpp-python`, the plot `pip install matplotlib`; what cannot be loaded is listed as left out.
Ctrl-C prints what was measured until then. docs/performance.md shows the tables and says how to read them.

examples:
  spec-planner bench engines --quick
  spec-planner bench engines --engines onnx:int8,openvino:int8 --llama Q8_0 --transformers none
  spec-planner bench engines --context-cost --plot cost.svg --out engines.json
  spec-planner bench engines --only passes --context-cost --plot cost.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} prompts instead of {FULL}, fewer repeats")
    parser.add_argument("--engines", metavar="LIST", help="engine:precision, with commas between (all of the CPU's)")
    parser.add_argument("--drafters", metavar="LIST", help="with commas between (the best for the model)")
    parser.add_argument("--llama", metavar="LIST", default=LLAMA, help=f"GGUF types, or none ({LLAMA})")
    parser.add_argument(
        "--transformers", metavar="LIST", default=TRANSFORMERS, help=f"precisions, or none ({TRANSFORMERS})"
    )
    parser.add_argument("--only", choices=PARTS, help="measure one part")
    parser.add_argument("--model", metavar="DIR", help="target: a local Hugging Face model directory, or 'default'")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads for everybody (one per core)")
    parser.add_argument("--num-draft-tokens", type=int, metavar="K", help=f"longest draft ({NUM_DRAFT_TOKENS})")
    parser.add_argument("--draft-budget", metavar="B", help="measured (as many as pay, the default), or fixed")
    parser.add_argument("--context-length", type=int, metavar="N", help="tokens of prompt and answer a cache holds")
    parser.add_argument("--prompts", metavar="FILE", help=f"task file ({PROMPTS}, made by `spec-planner tasks`)")
    parser.add_argument("--count", type=int, metavar="N", help=f"prompts to measure on ({FULL})")
    parser.add_argument("--context", type=int, default=512, metavar="N", help="context of the table of widths (512)")
    parser.add_argument("--context-cost", action="store_true", help="passes after 128 to 4096 tokens too")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw cost against context and width; with --context-cost")
    parser.add_argument(
        "--out", metavar="FILE.json", help="write the JSON here too, brought up to date while measuring"
    )
    parser.add_argument("--config", metavar="YAML", help="settings from a file; flags take precedence over it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 when every speculative answer of ours was the plain one's; 1, with a line for each row, otherwise.

    Raises:
        ValueError: bad input; one sentence, before anything is measured.
    """
    from ..bench.drafters import hold_back, requests_for
    from ..bench.engines_plot import check_plotting, plot
    from ..bench.quality import read_split
    from ..engines.default_model import model_directory
    from ..engines.threads import share_the_cpu
    from ..resources import shared_file

    if options.plot:
        check_plotting()
        if not options.context_cost:
            raise ValueError("--plot draws cost against context: add --context-cost")
    count = options.count if options.count is not None else QUICK if options.quick else FULL
    if count < 1:
        raise ValueError(f"--count must be at least 1, got {count}")
    for flag, name in (("--out", options.out), ("--plot", options.plot)):
        _check_writable(flag, name)
    say = _with_seconds()
    share_the_cpu()  # before anything imports torch
    config = _config(options)
    tasks = read_split(Path(options.prompts) if options.prompts else shared_file(PROMPTS), sys.maxsize)
    measured, tried_on = hold_back(tasks, count, min(CALIBRATION, max(len(tasks) // 4, 1)))
    with contextlib.redirect_stdout(sys.stderr):
        from ..bench.engines_run import EngineBench
        from ..factory import make_request

        directory = model_directory(config.model, say)
        selection, left_out = _selection(options, config, directory)
        contexts = _contexts(options, directory)

        def asked(of: Any) -> list[PlanRequest]:
            return requests_for(
                of, lambda text, scene, skills, task: make_request(config, text, scene, skills, task.history)
            )

        requests, to_try = asked(measured), asked(tried_on)
        bench = EngineBench(config, directory, selection, say)
    bench.content.update(_about(options, config, len(requests)), complete=False)
    bench.content["left_out"] += left_out
    try:
        with contextlib.redirect_stdout(sys.stderr):
            for _ in _measure(bench, options, requests, to_try, contexts, say):
                _save(options, bench)
        bench.content["complete"] = True
    finally:
        with contextlib.closing(bench):
            if any(bench.content[part] for part in ("complete", "rows", "accuracy", "passes")):  # of a stopped run, too
                try:
                    _print(options, bench)  # first: what is printed cannot be lost with a full disk
                finally:
                    _save(options, bench)
            if options.plot and bench.content["passes"]:
                plot(bench.content, Path(options.plot))
    return _different(bench.content["rows"])


def _measure(
    bench: EngineBench,
    options: argparse.Namespace,
    requests: list[PlanRequest],
    to_try: list[PlanRequest],
    contexts: list[int],
    say: Callable[[str], None],
) -> Iterator[None]:
    """All parts that were asked for; a yield is a good moment to save."""
    from ..bench.engines_passes import CONTEXT_WIDTHS, WIDTHS

    parts = PARTS if options.only is None else (options.only,)
    questions: list[Question] = bench.ask_reference(requests)
    tried_on = bench.ask_reference(to_try) if options.only != "passes" else []
    if options.only != "passes":
        bench.load(tried_on)
        yield
    if "speed" in parts:
        for done in bench.speed(questions):
            say(f"answers in turns: {done} of {len(questions)}")
            yield
    if options.only is None:  # the table of passes shows them, in plain steps of the table of speeds
        bench.cycles(tried_on)
        yield
    if "accuracy" in parts:
        bench.accuracy([*questions, *tried_on])
        yield
    if "passes" in parts:
        ids = [token for question in questions for token in (*question.ids, *question.answer)]
        grid = {context: WIDTHS if context == options.context else CONTEXT_WIDTHS for context in contexts}
        yield from bench.passes(ids, grid, REPEATS_QUICK if options.quick else REPEATS)


def _config(options: argparse.Namespace) -> PlannerConfig:
    """Settings from file and flags; engine and precision are each competitor's own."""
    from ..config import PlannerConfig

    values = read_settings(Path(options.config)) if options.config else {}
    for name in ("model", "threads", "num_draft_tokens", "draft_budget", "context_length"):
        if getattr(options, name) is not None:
            values[name] = getattr(options, name)
    values.setdefault("num_draft_tokens", NUM_DRAFT_TOKENS)
    for name in ("engine", "precision", "engine_file", "drafter"):
        values.pop(name, None)
    config = PlannerConfig.from_mapping({**values, "device": "cpu"})
    if config.temperature or config.rule != "drafter-invariant":
        raise ValueError("bench engines compares greedy answers: leave temperature and rule out of the config file")
    return dataclasses.replace(config, threads=config.threads or len(os.sched_getaffinity(0)))


def _selection(
    options: argparse.Namespace, config: PlannerConfig, directory: Path
) -> tuple[Selection, list[dict[str, str]]]:
    """What competes, and what does not by itself.

    Raises:
        ValueError: a list names something that there is not.
    """
    from ..bench.engines_run import Selection, engines_of_this_cpu
    from ..bench.gguf_model import TYPES
    from ..drafter_choice import check_fits, chosen
    from ..factory import find_rule

    engines, emulated = engines_of_this_cpu()
    left_out = []
    if options.engines is not None:
        engines = [(part.partition(":")[0], part.partition(":")[2]) for part in _listed(options.engines, "--engines")]
        for engine, precision in engines:
            if not precision or engine == "auto":
                raise ValueError(f"--engines takes engine:precision, such as onnx:int8, got {engine!r}")
            dataclasses.replace(config, engine=engine, precision=precision)  # refuses what is not offered
    else:
        left_out = [{"engine": e, "precision": p, "reason": reason} for (e, p), reason in emulated.items()]
    names = _listed(options.drafters, "--drafters") if options.drafters is not None else ["auto"]
    drafters = []
    for name in names:
        if name == "none":
            raise ValueError("--drafters does not take none: plain decoding is always measured, leave it out")
        with_it = chosen(dataclasses.replace(config, drafter=name), directory)
        check_fits(with_it, find_rule(config.rule))
        drafters.append(with_it.drafter)
    types = [] if options.llama == "none" else _listed(options.llama, "--llama")
    precisions = [] if options.transformers == "none" else _listed(options.transformers, "--transformers")
    for name, known, flag in (
        *((kind, TYPES, "--llama") for kind in types),
        *((precision, ("float32", "bfloat16", "float16"), "--transformers") for precision in precisions),
    ):
        if name not in known:
            raise ValueError(f"{flag} does not know {name!r}: choose among {', '.join(known)}, or none")
    return Selection(tuple(engines), tuple(dict.fromkeys(drafters)), tuple(types), tuple(precisions)), left_out


def _contexts(options: argparse.Namespace, directory: Path) -> list[int]:
    """Contexts to time passes after; the model's own limit cuts the list.

    Raises:
        ValueError: the context of the table of widths is beyond that limit.
    """
    from ..bench.engines_passes import CONTEXTS, WIDTHS
    from ..engines.decoder_config import read_decoder_config

    limit = read_decoder_config(directory).context_length
    if not 1 <= options.context <= limit - max(WIDTHS) - 64:
        raise ValueError(f"--context must be between 1 and {limit - max(WIDTHS) - 64}, got {options.context}")
    wanted = {options.context, *(CONTEXTS if options.context_cost else ())}
    return sorted(context for context in wanted if context + max(WIDTHS) + 64 <= limit)


def _about(options: argparse.Namespace, config: PlannerConfig, count: int) -> dict[str, Any]:
    return {
        "prompts": {"file": Path(options.prompts or PROMPTS).name, "planned": count},
        "threads": config.threads,
        "num_draft_tokens": config.num_draft_tokens,
        "draft_budget": config.draft_budget,
        "context": options.context,
        "plot": options.plot and Path(options.plot).name,
        "environment": {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ},
    }


def _check_writable(flag: str, name: str | None) -> None:
    """Raise ``ValueError`` where ``name`` could not be written at the end."""
    if name is None:
        return
    path = Path(name)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"{flag} cannot write {name}: name a file in a directory that exists and can be written to")


def _different(rows: list[dict[str, Any]]) -> int:
    """The exit code; says which of our rows has answers that are not the same engine's plain ones."""
    from ..config import PRECISIONS_OF

    wrong = [row for row in rows if row["engine"] in PRECISIONS_OF and row["as_plain"] not in (None, row["prompts"])]
    for row in wrong:
        print(
            f"spec-planner: {row['engine']} {row['precision']}, {row['decoding']}: "
            f"{row['prompts'] - row['as_plain']} of {row['prompts']} answers differ from its plain ones",
            file=sys.stderr,
        )
    return 1 if wrong else 0


def _with_versions(bench: EngineBench) -> dict[str, Any]:
    from ..certify.document import machine, versions

    found: dict[str, str] = {}
    for info in bench.infos.values():
        found |= {name: version for name, version in versions(info).items() if name != "onnx graph"}
    found |= bench.content["libraries"]
    content = {name: value for name, value in bench.content.items() if name != "libraries"}
    return {**content, "machine": machine(), "versions": found}


def _save(options: argparse.Namespace, bench: EngineBench) -> None:
    if options.out:
        path = Path(options.out)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.write_text(json.dumps(_with_versions(bench), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        scratch.replace(path)


def _print(options: argparse.Namespace, bench: EngineBench) -> None:
    from ..bench.engines_table import tables

    content = _with_versions(bench)
    print(json.dumps(content, ensure_ascii=False) if options.json else tables(content), flush=True)


def _listed(text: str, flag: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise ValueError(f"{flag} names nothing: give names with commas between, or leave it out")
    return names


def _with_seconds() -> Callable[[str], None]:
    """Says a line of progress on standard error, with the seconds since now before it."""
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:5.0f} s  {line}", file=sys.stderr, flush=True)

    return say
