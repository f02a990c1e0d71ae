"""Engines against each other: every competitor answers every prompt, in turn, and ratios are taken prompt by prompt.

    prompt 0   A C B D        all greedy, the same token ids in, the same number of tokens out,
    prompt 1   C D A B        timed from the first token to the last: the prompt's own passes are not in it

The first place goes round and the others are shuffled, by a seed: nobody always follows the same neighbour, whose
weights fill the caches and whose threads may still be spinning.

The number of tokens is that of the reference's answer: our float32 torch target, plain, up to its stop token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..pipeline.types import PlanRequest
from .latency import spread

REFERENCE = ("torch", "float32")  # engine and precision that the others are compared with
LLAMA = "llama.cpp"


@dataclass(frozen=True)
class Reply:
    """One answer.

    Attributes:
        timed: tokens that ``seconds`` covers, the first of the answer not among them.
        passes: over the target's weights, in that time; None where the competitor does not say.
    """

    tokens: tuple[int, ...]
    timed: int
    seconds: float
    passes: int | None = None

    @property
    def tokens_per_second(self) -> float:
        return self.timed / self.seconds


@dataclass(frozen=True)
class Question:
    """A prompt, and the reference's answer to it."""

    ids: tuple[int, ...]
    request: PlanRequest
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Competitor:
    """Something that decodes.

    Attributes:
        engine: "torch", "onnx", "openvino", "llama.cpp" or "transformers".
        precision: as its engine calls it.
        family: what it is compared with: our name of the precision.
        decoding: "plain", or the name of what drafts.
        answers: "free text", or "grammar": as users run it.
        settings: what was chosen for it, for people.
    """

    engine: str
    precision: str
    family: str
    decoding: str
    ask: Callable[[Question], Reply]
    answers: str = "free text"
    settings: str = ""

    @property
    def label(self) -> str:
        return f"{self.engine} {self.precision}, {self.decoding}, {self.answers}"

    @property
    def plain(self) -> bool:
        return self.decoding == "plain"


Round = Mapping[str, Reply]  # one prompt's replies by competitor's label


def in_turns(competitors: Sequence[Competitor], questions: Sequence[Question]) -> Iterator[Round]:
    """Every question to every competitor: another one is first each time, the others are shuffled by a seed."""
    for index, question in enumerate(questions):
        first = index * len(competitors) // len(questions)
        others = [*competitors[:first], *competitors[first + 1 :]]
        random.Random(index).shuffle(others)
        yield {competitor.label: competitor.ask(question) for competitor in (*competitors[first : first + 1], *others)}


def rows(competitors: Sequence[Competitor], rounds: Sequence[Round], questions: Sequence[Question]) -> list[dict]:
    """The table: one row per competitor, over as many questions as have a round.

    ``tokens_per_second`` and the ratios are medians with quartiles over prompts. A round in which anybody said nothing
    after its first pass cannot be timed and is dropped from them for all, so that all are of the same prompts; its
    tokens are compared all the same. A ratio above 1 is faster than what it is a ratio to: ``to_llama`` is llama.cpp
    plain in the weights' family, by the first that was named where several types are of one, ``to_fastest_llama`` plain
    at its fastest, ``to_fastest_llama_speculation`` its fastest speculation. Answers under the grammar are others, of
    another length: they have no ratios (None). ``as_plain`` and ``as_reference`` count answers equal, token by token,
    to those of plain decoding by the same engine in the same precision, and to the reference's.
    """
    timed = [round_ for round_ in rounds if all(reply.timed > 0 for reply in round_.values())]
    fastest = _fastest(competitors, timed)
    return [_row(competitor, competitors, rounds, timed, questions, fastest) for competitor in competitors]


def _row(
    competitor: Competitor,
    competitors: Sequence[Competitor],
    rounds: Sequence[Round],
    timed: Sequence[Round],
    questions: Sequence[Question],
    fastest: Mapping[bool, str | None],
) -> dict:
    label, free = competitor.label, competitor.answers == "free text"
    replies = [round_[label] for round_ in rounds]
    passes = sum(reply.passes or 0 for reply in replies)
    beside = next(
        (c.label for c in competitors if c.plain and (c.engine, c.family) == (LLAMA, competitor.family)), None
    )
    itself = (competitor.engine, competitor.precision)
    own = next((c.label for c in competitors if c.plain and (c.engine, c.precision) == itself), None)
    return {
        "engine": competitor.engine,
        "precision": competitor.precision,
        "decoding": competitor.decoding,
        "answers": competitor.answers,
        "settings": competitor.settings,
        "prompts": len(replies),
        "tokens": sum(len(reply.tokens) for reply in replies),
        "tokens_per_second": spread([round_[label].tokens_per_second for round_ in timed], 1) if timed else None,
        "tokens_per_pass": round(sum(reply.timed for reply in replies) / passes, 2) if passes else None,
        "to_llama": _ratio(timed, label, beside) if free else None,
        "to_fastest_llama": _ratio(timed, label, fastest[True]) if free else None,
        "to_fastest_llama_speculation": _ratio(timed, label, fastest[False]) if free else None,
        "as_plain": sum(round_[label].tokens == round_[own].tokens for round_ in rounds) if own and free else None,
        "as_reference": sum(
            reply.tokens == question.answer for reply, question in zip(replies, questions, strict=False)
        )
        if free
        else None,
    }


def _fastest(competitors: Sequence[Competitor], timed: Sequence[Round]) -> dict[bool, str | None]:
    """llama.cpp's fastest by the median of tokens per second: {True: plain, False: speculative}."""
    found: dict[bool, str | None] = {True: None, False: None}
    for plain in found:
        labels = [c.label for c in competitors if c.engine == LLAMA and c.plain == plain]
        if labels and timed:
            found[plain] = max(
                labels, key=lambda label: spread([r[label].tokens_per_second for r in timed], 3)["median"]
            )
    return found


def _ratio(timed: Sequence[Round], label: str, other: str | None) -> dict[str, float] | None:
    if other is None or not timed:
        return None
    return spread([r[label].tokens_per_second / r[other].tokens_per_second for r in timed], 2)
