"""Run the proof: many prompts, temperatures 0 and above, plain against every drafter, on the engine as it is loaded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ..decoding.accept import Rule
from ..decoding.contracts import Drafter, Target
from ..decoding.draft_budget import FixedBudget
from ..decoding.exact_rules import RULES
from ..decoding.metrics import summarize
from ..decoding.sampling import Law, SamplingParams
from .comparison import NOISE_CEILING, NOISE_HEADROOM, Comparison, Divergence, compare, measure_noise
from .enumeration import rule_error
from .law_test import ALPHA, LawTest, detectable_shift
from .recording import InterruptibleTarget, Question, Run, record, score

# Where in the context the engine's noise is measured: kernels sum keys in blocks of some power of two, and logits
# move most when a draft lies across two of them.
NOISE_BLOCKS = (64, 128, 256, 512)
LAW_TOLERANCE = 1e-12  # total variation of an exact rule on an enumerated toy


@dataclass(frozen=True)
class Subject:
    """One way of decoding to hold against plain decoding."""

    name: str  # "lookup, chain"
    drafter: Drafter
    rule: Rule
    num_draft_tokens: int

    @property
    def network(self) -> str | None:
        """What runs the drafter's network, "onnx, int8"; None where it has none.

        It may change what is drafted, and under a rule that keeps the law only, that decides which lawful answer a seed
        gives.
        """
        return getattr(self.drafter, "network", None)


@dataclass(frozen=True)
class Settings:
    """How much to test. ``tokens`` counts speculative tokens over all subjects and temperatures."""

    tokens: int = 20_000
    temperatures: tuple[float, ...] = (0.0, 1.0)
    tokens_per_run: int = 64
    bitwise: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.tokens_per_run < 2:
            raise ValueError("certify needs at least 1 token to compare, in runs of at least 2")
        if not self.temperatures:
            raise ValueError("certify needs at least one temperature")
        for temperature in self.temperatures:
            SamplingParams(temperature, seed=self.seed)  # raises what is out of range


@dataclass
class Cell:
    """What one subject showed at one temperature."""

    subject: str
    rule: str
    temperature: float
    network: str | None = None  # as of ``Subject``
    runs: int = 0
    tokens: int = 0
    rows_equal_in_bits: int = 0
    largest_logit_difference: float = 0.0
    verify_passes: int = 0
    new_tokens: int = 0
    acceptance_length: float = 0.0
    divergences: list[Divergence] = field(default_factory=list)
    law: LawTest | None = None  # where the rule promises the law only
    rule_error: float | None = None  # total variation on enumerated toys

    @property
    def near_ties(self) -> int:
        return sum(divergence.near_tie for divergence in self.divergences)


@dataclass
class Certificate:
    """The outcome of ``certify``: what was compared, and every reason to say no."""

    settings: Settings
    noise: float
    cells: list[Cell]
    problems: list[str]
    wall_s: float

    @property
    def passed(self) -> bool:
        return not self.problems

    @property
    def tokens(self) -> int:
        return sum(cell.tokens for cell in self.cells)

    @property
    def mismatches(self) -> int:
        return sum(len(cell.divergences) for cell in self.cells)


def certify(
    target: Target,
    subjects: Sequence[Subject],
    questions: Sequence[Question],
    stop_ids: frozenset[int],
    settings: Settings,
    report: Callable[[float, str], None] = lambda share, line: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Certificate:
    """Compare every subject with plain decoding until ``settings.tokens`` tokens have been compared.

    Args:
        questions: gone through in turn, with a new seed each time around.
        report: called with the share done (0 … 1) and a line of news.

    Raises:
        ValueError: no subject or no prompt.
        InterruptedError: ``cancelled`` said so; it is asked before every pass over the weights.
    """
    if not subjects or not questions:
        raise ValueError("certify needs at least one drafter and one prompt")
    started = time.monotonic()
    target = InterruptibleTarget(target, cancelled)
    report(0.0, "measuring the engine's rounding noise")
    noise = 0.0 if settings.bitwise else _noise(target, subjects, questions)
    cells = {
        (subject.name, temperature): Cell(subject.name, subject.rule.name, temperature, subject.network)
        for temperature in settings.temperatures
        for subject in subjects
    }
    for cell in cells.values():
        target.check()
        rule = next(subject.rule for subject in subjects if subject.name == cell.subject)
        if not rule.same_tokens and cell.temperature > 0:
            cell.law, cell.rule_error = LawTest(settings.seed), rule_error(rule, SamplingParams(cell.temperature))
    per_cell = -(-settings.tokens // len(cells))
    for turn in range(per_cell * 2):  # a run compares at least one token, so this is enough turns
        if all(cell.tokens >= per_cell for cell in cells.values()):
            break
        question, seed = questions[turn % len(questions)], settings.seed + turn // len(questions)
        for temperature in settings.temperatures:
            sampling = SamplingParams(temperature, seed=seed)
            rule, length = RULES["drafter-invariant"], settings.tokens_per_run
            plain = record(target, None, question, sampling, length, stop_ids, rule)
            for subject in subjects:
                cell = cells[subject.name, temperature]
                if cell.tokens < per_cell:
                    _compare_one(target, subject, cell, plain, question, sampling, stop_ids, settings, noise)
        done = sum(min(cell.tokens, per_cell) for cell in cells.values())
        mismatches = sum(len(cell.divergences) for cell in cells.values())
        compared = sum(cell.tokens for cell in cells.values())
        report(done / (per_cell * len(cells)), f"{compared} tokens compared, {mismatches} mismatches")
    finished = list(cells.values())
    problems = list(_problems(finished, settings, noise, target.info.precision))
    return Certificate(settings, noise, finished, problems, time.monotonic() - started)


def _noise(target: Target, subjects: Sequence[Subject], questions: Sequence[Question]) -> float:
    """The engine's rounding noise over drafts of the subjects' sizes, across and beside the ends of key blocks."""
    text = tuple(token for question in questions[:8] for token in question.ids)
    limit = min(max(NOISE_BLOCKS) + 2 * target.info.max_nodes, target.info.context_length)
    text = (text * (limit // len(text) + 1))[:limit]
    shapes = {
        (min(subject.num_draft_tokens + 1, target.info.max_nodes), 2 if subject.drafter.requirements.draws_trees else 1)
        for subject in subjects
    }
    largest = 0.0
    for nodes, siblings in sorted(shapes):
        starts = {start for block in NOISE_BLOCKS for start in (block - nodes // 2, block + nodes)}
        for start in sorted(start for start in starts if 0 < start <= limit - nodes):
            largest = max(largest, measure_noise(target, text, start, nodes, siblings))
    return largest


def _compare_one(
    target: Target,
    subject: Subject,
    cell: Cell,
    plain: Run,
    question: Question,
    sampling: SamplingParams,
    stop_ids: frozenset[int],
    settings: Settings,
    noise: float,
) -> None:
    drafted = record(
        target,
        subject.drafter,
        question,
        sampling,
        settings.tokens_per_run,
        stop_ids,
        subject.rule,
        FixedBudget(subject.num_draft_tokens),
    )
    cell.runs += 1
    totals = summarize(drafted.steps, len(question.ids), len(drafted.tokens))
    cell.verify_passes += totals.verify_passes
    cell.new_tokens += totals.num_accepted + totals.verify_passes
    cell.acceptance_length = cell.new_tokens / max(cell.verify_passes, 1)
    if cell.law is None:
        _take(cell, compare(plain, drafted, len(question.ids), sampling, noise))
        return
    # Other tokens than plain decoding's are right here, if their law is the target's as plain passes compute it.
    rows = score(target, question, drafted.tokens)
    _take(cell, compare(Run(drafted.tokens, rows), drafted, len(question.ids), sampling, noise))
    for row, token, draft_law in zip(rows, drafted.tokens, drafted.draft_laws, strict=True):
        cell.law.add(Law.from_logits(row, sampling), token, draft_law)


def _take(cell: Cell, comparison: Comparison) -> None:
    cell.tokens += comparison.tokens
    cell.rows_equal_in_bits += comparison.rows_equal_in_bits
    cell.largest_logit_difference = max(cell.largest_logit_difference, comparison.largest_difference)
    if comparison.divergence:
        cell.divergences.append(comparison.divergence)


def _problems(cells: Sequence[Cell], settings: Settings, noise: float, precision: str) -> Iterable[str]:
    """Every reason for a verdict of fail, one sentence each."""
    ceiling = NOISE_CEILING.get(precision, 1e-2)
    if noise > ceiling:
        yield (
            f"passes of different width disagree by up to {noise:.3g} in a logit, more than rounding explains in "
            f"{precision} ({ceiling:g})"
        )
    for cell in cells:
        where = f"{cell.subject}, {cell.rule}, temperature {cell.temperature:g}"
        hard = len(cell.divergences) - cell.near_ties
        if hard:
            yield f"{where}: {hard} divergences by more than a near tie"
        if cell.tokens == 0:
            yield f"{where}: nothing was compared"
        if settings.bitwise:
            if cell.divergences and not hard:
                yield f"{where}: {len(cell.divergences)} divergences where bits were promised"
            if cell.rows_equal_in_bits != cell.tokens:
                yield f"{where}: {cell.tokens - cell.rows_equal_in_bits} of {cell.tokens} logit rows differ in bits"
        elif cell.largest_logit_difference > NOISE_HEADROOM * noise:
            yield (
                f"{where}: a logit differs by {cell.largest_logit_difference:.3g} from plain decoding's, against a "
                f"measured noise of {noise:.3g}"
            )
        if cell.rule_error is not None and cell.rule_error > LAW_TOLERANCE:
            yield f"{where}: the rule is off by {cell.rule_error:.3g} in total variation on an enumerated toy"
        if cell.law is not None and cell.law.rejected:
            yield f"{where}: the tokens do not follow the target's law (false alarms: one in {1 / ALPHA:.0e})"


def law_power(cell: Cell) -> float | None:
    """Smallest shift of probability the cell's law test would have revealed with power 0.99."""
    return detectable_shift(cell.law.tokens) if cell.law else None
