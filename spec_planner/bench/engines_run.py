"""One run over all engines: load them, let them answer in turns, read the answers again, time passes.

What is found goes into one dictionary as it is found, so that a run that is stopped loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..config import DEVICES_OF, PRECISIONS_OF, PlannerConfig
from ..decoding.contracts import TargetInfo
from ..engines.decoder_config import read_decoder_config
from ..pipeline.types import PlanRequest
from ..target_loading import load_target
from . import engines_llama as llama
from .engines import LLAMA, REFERENCE, Competitor, Question, Round, in_turns, rows
from .engines_accuracy import read_answers
from .engines_ours import AnyWidth, OurEngine, cycle_figures
from .engines_passes import Cell, bandwidth, fastest_cells, floor_milliseconds, measure_passes
from .gguf_model import gguf_file

Report = Callable[[str], None]
Named = tuple[str, str]  # engine, precision
_TRIED_ON, _TRIED_TOKENS = 2, 32  # prompts, and tokens of each, that settings of the others are chosen on
# What a processor must say of itself to compute in a precision rather than emulate it: x86-64, aarch64.
_NATIVE = {"bfloat16": {"avx512_bf16", "amx_bf16", "bf16"}, "float16": {"avx512_fp16", "amx_fp16", "asimdhp"}}


@dataclass(frozen=True)
class Selection:
    """What competes.

    Attributes:
        engines: ours, as (engine, precision).
        drafters: by name.
        llama: GGUF types.
        transformers: precisions.
    """

    engines: tuple[Named, ...]
    drafters: tuple[str, ...]
    llama: tuple[str, ...]
    transformers: tuple[str, ...]


def engines_of_this_cpu() -> tuple[list[Named], dict[Named, str]]:
    """Every engine and precision that the CPU runs, and why others are left out."""
    offered = [(e, p) for e, precisions in PRECISIONS_OF.items() if "cpu" in DEVICES_OF[e] for p in precisions]
    flags = _cpu_flags()
    emulated = {
        (engine, precision): f"this processor has no {precision} arithmetic and would emulate it"
        for engine, precision in offered
        if precision in _NATIVE and flags and not flags & _NATIVE[precision]
    }
    return [named for named in offered if named not in emulated], emulated


class EngineBench:
    """Everything loaded for one run. ``close`` when done.

    Attributes:
        content: what was found so far: ``rows``, ``left_out``, ``cycles``, ``accuracy``, ``passes``; ``libraries`` are
            the others' versions.
    """

    def __init__(self, config: PlannerConfig, directory: Path, selection: Selection, report: Report) -> None:
        self._config, self._directory, self._selection, self._report = config, directory, selection, report
        self._ours: dict[Named, OurEngine] = {}
        self._llama: dict[str, llama.LlamaTarget] = {}
        self._competitors: list[Competitor] = []
        self.infos: dict[Named, TargetInfo] = {}
        lists: dict[str, Any] = {part: [] for part in ("rows", "left_out", "cycles", "accuracy", "passes")}
        self.content: dict[str, Any] = {**lists, "libraries": {}}

    def ask_reference(self, requests: Sequence[PlanRequest]) -> list[Question]:
        """Every request with the reference's answer; loads the reference.

        Raises:
            ValueError: it cannot be loaded: nothing can be compared.
        """
        engine = self._ours.get(REFERENCE) or self._load(REFERENCE)
        questions = []
        for number, request in enumerate(requests, 1):
            ids, _ = engine.pipeline.asked(replace(request, free_text=True))
            questions.append(Question(ids, request, engine.reference(ids, request.max_tokens)))
            self._report(f"reference answers: {number} of {len(requests)}")
        return questions

    def load(self, tried_on: Sequence[Question]) -> None:
        """Load all that competes, the others with what is fastest on a few prompts; what cannot be loaded is noted."""
        tried_on = tried_on[:_TRIED_ON]
        for named in self._selection.engines:
            ours = self._or_left_out(*named, lambda named=named: self._ours.get(named) or self._load(named))
            self._competitors += ours.competitors(grammar=True) if ours else ()
        for kind in self._selection.llama:
            self._competitors += (
                self._or_left_out(LLAMA, kind, lambda kind=kind: self._load_llama(kind, tried_on)) or ()
            )
        for precision in self._selection.transformers:
            made = self._or_left_out(
                "transformers", precision, lambda precision=precision: self._load_transformers(precision, tried_on)
            )
            self._competitors += made or ()
        own = [competitor for competitor in self._competitors if competitor.engine in PRECISIONS_OF]
        self._report(f"warming up {len(own)} competitors")
        for _ in in_turns(own, tried_on[:1]):
            pass  # what is lazy is done now, and budgets have learnt; the others answered when settings were chosen

    def speed(self, questions: Sequence[Question]) -> Iterator[int]:
        """Everybody answers every question, by turns; yields how many are done, ``rows`` being up to date."""
        rounds: list[Round] = []
        for round_ in in_turns(self._competitors, questions):
            rounds.append(round_)
            self.content["rows"] = rows(self._competitors, rounds, questions)
            yield len(rounds)

    def cycles(self, questions: Sequence[Question]) -> None:
        """What a draft-and-verify cycle of full length costs on each of our engines, in plain steps of the fastest."""
        count = self._config.num_draft_tokens
        fastest = plain_step(self.content["rows"])
        for (engine, precision), ours in self._chosen():
            figures = cycle_figures(ours.cycles(questions, count), count)
            if figures:
                steps = round(figures["cycle_ms"]["median"] / fastest["milliseconds"], 2) if fastest else None
                self.content["cycles"].append(
                    {
                        **{"engine": engine, "precision": precision, "drafter": self._selection.drafters[0]},
                        **{"width": count + 1, **figures, "plain_steps": steps},
                    }
                )
        self.content["plain_step"] = fastest

    def accuracy(self, questions: Sequence[Question]) -> None:
        """Perplexity of the reference's answers and agreement with its likeliest tokens."""
        reference = read_answers(self._ours[REFERENCE].target, questions)
        targets = [(*named, ours.target) for named, ours in self._chosen()]
        targets += [(LLAMA, kind, target) for kind, target in self._llama.items()]
        for engine, precision, target in targets:
            self._report(f"accuracy: {engine} {precision}")
            reading = read_answers(target, questions)
            self.content["accuracy"].append(
                {
                    **{"engine": engine, "precision": precision, "positions": len(reading.likeliest)},
                    "perplexity": round(reading.perplexity, 4),
                    "agreement": round(reading.agreement(reference), 4),
                }
            )

    def passes(self, ids: Sequence[int], grid: Mapping[int, Sequence[int]], repeats: int) -> Iterator[None]:
        """Milliseconds of passes of widths ``grid[context]``, with their floor. Yields after each engine.

        Each is loaded by itself, with room for the longest context; what was loaded before is freed. llama.cpp's are
        timed with flash attention and without, and each cell keeps the faster, with its ``settings``.
        """
        decoder = read_decoder_config(self._directory)
        self.content["bandwidth"] = found = bandwidth(self._config.threads)
        self._report(f"memory bandwidth with {self._config.threads} threads: {found / 1e9:.1f} GB/s")
        self.close()
        room = -(-max(context + max(widths) for context, widths in grid.items()) // 64) * 64
        for engine, precision, ways in self._passers(room):
            timed: list[tuple[str, Cell]] = []
            try:
                for settings, load in ways.items():
                    target = self._or_left_out(engine, precision, load)
                    if target is None:
                        break
                    self._report(f"passes: {engine} {precision}{', ' if settings else ''}{settings}")
                    info = target.info
                    self._note_versions((engine, precision), info)
                    try:
                        for cell in measure_passes(target, ids, grid, repeats):
                            timed.append((settings, cell))
                    finally:
                        target.close()
            finally:  # of a run that is stopped, too
                self.content["passes"] += [
                    {
                        **{"engine": engine, "precision": precision, "settings": settings, **asdict(cell)},
                        "floor_ms": round(floor_milliseconds(info, decoder, cell.context, found), 2),
                    }
                    for settings, cell in fastest_cells(timed)
                ]
            yield

    def close(self) -> None:
        """Free what is loaded; may be called again."""
        self._competitors.clear()
        for loaded in (*self._ours.values(), *self._llama.values()):
            loaded.close()
        self._ours.clear()
        self._llama.clear()

    def _chosen(self) -> list[tuple[Named, OurEngine]]:
        """Those of our engines that compete: the reference may be loaded only to be compared with."""
        return [(named, ours) for named, ours in self._ours.items() if named in self._selection.engines]

    def _load(self, named: Named) -> OurEngine:
        config = replace(self._config, engine=named[0], precision=named[1])
        self._ours[named] = engine = OurEngine(config, self._selection.drafters, self._report)
        self._note_versions(named, engine.pipeline.info)
        return engine

    def _load_llama(self, kind: str, tried_on: Sequence[Question]) -> list[Competitor]:
        path = self._gguf(kind)
        self._report(f"loading llama.cpp {kind}, choosing its settings")
        prompts = [question.ids for question in tried_on]
        config = self._config
        target, flash, length = llama.load_fastest(
            path, kind, config.context_length, config.threads, prompts, _TRIED_TOKENS
        )
        self._llama[kind] = target
        self._note_versions((LLAMA, kind), target.info)
        return llama.competitors(target, flash, length)

    def _load_transformers(self, precision: str, tried_on: Sequence[Question]) -> list[Competitor]:
        from .engines_transformers import Generator

        self._report(f"loading transformers {precision}, choosing its settings")
        model = Generator(self._directory, precision, self._config.threads)
        self.content["libraries"]["transformers"] = model.version
        length = model.fastest_lookup([question.ids for question in tried_on], _TRIED_TOKENS)
        return [
            Competitor(
                *("transformers", precision, precision, "plain"),
                lambda question: model.answer(question.ids, len(question.answer)),
            ),
            Competitor(
                *("transformers", precision, precision, "prompt lookup"),
                lambda question: model.answer(question.ids, len(question.answer), length),
                settings=f"lookup of {length} tokens",
            ),
        ]

    def _passers(self, room: int) -> Iterator[tuple[str, str, dict[str, Callable[[], Any]]]]:
        """What passes are timed of, and how to load it with a context of ``room`` tokens, by settings to try."""
        settings = {**asdict(self._config), "context_length": room, "drafter": "none"}
        for engine, precision in self._selection.engines:
            config = AnyWidth(**{**settings, "engine": engine, "precision": precision})
            yield engine, precision, {"": partial(load_target, config, self._directory, self._report)}
        for kind in self._selection.llama:
            ways = {llama.flash_words(flash): partial(self._llama_target, kind, room, flash) for flash in (False, True)}
            yield LLAMA, kind, ways

    def _llama_target(self, kind: str, room: int, flash: bool) -> llama.LlamaTarget:
        path, threads = self._gguf(kind), self._config.threads
        return llama.LlamaTarget(path, kind, context_length=room, threads=threads, flash_attention=flash)

    def _note_versions(self, named: Named, info: Any) -> None:
        if named[0] == LLAMA:
            self.content["libraries"].update(info.versions)
        else:
            self.infos[named] = info

    def _gguf(self, kind: str) -> Path:
        llama.library()  # before a file is made that nobody reads
        return gguf_file(self._directory, kind, self._report)

    def _or_left_out(self, engine: str, precision: str, load: Callable[[], Any]) -> Any:
        """What ``load`` returns; None, noted with the reason, where it cannot be had here."""
        try:
            return load()
        except ValueError as error:  # a library that is missing, a model it does not take, too little memory
            note = {"engine": engine, "precision": precision, "reason": str(error)}
            if note not in self.content["left_out"]:
                self.content["left_out"].append(note)
                self._report(f"left out: {engine} {precision}: {error}")
            return None


def plain_step(found: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The fastest plain decoding among ``rows``: engine, precision and milliseconds per token."""
    plain = [row for row in found if row["decoding"] == "plain" and row["tokens_per_second"]]
    if not plain:
        return None
    best = max(plain, key=lambda row: row["tokens_per_second"]["median"])
    milliseconds = round(1e3 / best["tokens_per_second"]["median"], 2)
    return {"engine": best["engine"], "precision": best["precision"], "milliseconds": milliseconds}


def _cpu_flags() -> set[str]:
    """What the processor says it can do; empty where the system does not tell."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    return next((set(line.split(":")[1].split()) for line in lines if line.startswith(("flags", "Features"))), set())
