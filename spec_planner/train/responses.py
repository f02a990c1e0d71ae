"""Stage 1: the target answers the prompts, each answer a line that is kept.

Which prompts are answered, how often, at which temperature and with which seed is a pure function of the settings, so
a run that was killed goes on where it was, and one that asks for more answers keeps those there are.
"""

from __future__ import annotations

import hashlib
import json
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..decoding.sampling import SamplingParams
from ..learning.files import RunError
from ..learning.trainer import Report
from ..tasks.task import TRAIN, VALIDATION
from .deployment import Deployment
from .expert_drafter import ExpertDrafter
from .prompts import Prompt, Prompts

DRAFT_TOKENS = 31  # the widest draft of the expert's answer


@dataclass(frozen=True)
class Job:
    """An answer to be written: the ``turn``-th to its prompt, counted from 0."""

    prompt: Prompt
    turn: int
    temperature: float
    seed: int

    @property
    def key(self) -> tuple[str, int]:
        return self.prompt.key, self.turn


@dataclass(frozen=True)
class Response:
    """An answer of the target, up to and with the token that ends it.

    Attributes:
        prompt: its key.
        prompt_ids, answer_ids: as read from the file, ``array("i")``, which takes 4 bytes a token.
    """

    prompt: str
    turn: int
    domain: str
    split: str
    temperature: float
    seed: int
    prompt_ids: Sequence[int]
    answer_ids: Sequence[int]


def plan_jobs(
    prompts: Prompts, count: int | None, validation: int, temperatures: Sequence[float], seed: int
) -> list[Job]:
    """``count`` answers to learn from (None: one to each prompt) and at most ``validation`` others.

    Prompts are taken in an order that the seed decides, once each before one comes again; the temperatures alternate.

    Raises:
        RunError: more answers than can differ, greedy decoding giving one to each prompt.
    """
    jobs = []
    warm = [temperature for temperature in temperatures if temperature > 0]
    for split, wanted in ((TRAIN, count), (VALIDATION, validation)):
        order = sorted(prompts.of(split), key=lambda prompt: _number(f"{seed}/{prompt.key}"))
        if split == VALIDATION or wanted is None:
            wanted = min(wanted or len(order), len(order))
        for number in range(wanted):
            turn, place = divmod(number, len(order))
            choice = temperatures if turn < len(temperatures) else warm
            if not choice:
                raise RunError(
                    f"--responses {count} is more than the {len(order) * len(temperatures)} greedy answers there are: "
                    f"ask for fewer, or add a temperature above 0"
                )
            prompt = order[place]
            jobs.append(Job(prompt, turn, choice[(place + turn) % len(choice)], _number(f"{seed}/{prompt.key}/{turn}")))
    return sorted(jobs, key=lambda job: (job.prompt.order, job.key))


class ResponseFile:
    """``responses.jsonl``: a header, then an answer per line; a line that a kill tore is dropped.

    Args:
        number: 0, or which one it is of several processes, each with a file of its own.
    """

    def __init__(self, directory: Path, header: dict[str, Any], number: int = 0) -> None:
        """Raises ``RunError`` where the answers there are came about otherwise."""
        self._directory, self._header = directory, header
        self._path = directory / ("responses.jsonl" if number == 0 else f"responses-{number}.jsonl")

    def repair(self) -> None:
        """Cut torn lines off, of the files of all processes; to be called by one, before anybody writes.

        Raises:
            RunError: a file was begun with other prompts, another target or other settings.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in self._files():
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if whole != content:
                with path.open("r+b") as file:
                    file.truncate(len(whole))
            self._check(path, whole.split(b"\n", 1)[0])

    def read(self) -> dict[tuple[str, int], Response]:
        """Every answer there is, by prompt and turn."""
        found = {}
        for path in self._files():
            with path.open("rb") as file:
                file.readline()  # the header
                for number, line in enumerate(file, 2):
                    response = _response(line, path, number)
                    found[response.prompt, response.turn] = response
        return found

    def append(self, response: Response) -> None:
        new = not self._path.exists() or self._path.stat().st_size == 0
        with self._path.open("a", encoding="utf-8") as file:
            if new:
                file.write(json.dumps(self._header) + "\n")
            ids = {"prompt_ids": list(response.prompt_ids), "answer_ids": list(response.answer_ids)}
            file.write(json.dumps(asdict(response) | ids) + "\n")

    def _files(self) -> list[Path]:
        return sorted(self._directory.glob("responses*.jsonl"))

    def _check(self, path: Path, line: bytes) -> None:
        if not line:
            return
        try:
            begun = json.loads(line)
        except ValueError as error:
            raise RunError(f"{path} is no file of answers ({error}): name another --cache") from error
        for key in sorted({*self._header, *begun}):
            if begun.get(key) != self._header.get(key):
                raise RunError(
                    f"the answers in {path} were made with {key} {begun.get(key)!r}, not {self._header.get(key)!r}: "
                    f"give the same, or name another --cache"
                )


def check_prompts(prompts: Sequence[Prompt], deployment: Deployment, report: Report, stop: Callable[[], bool]) -> None:
    """Make every prompt as it will be asked, so that hours of answers do not end at one that cannot be.

    Raises:
        RunError: a prompt cannot be asked; the message names it.
    """
    for number, prompt in enumerate(prompts):
        if stop():
            return
        try:
            length = len(deployment.ask(prompt).ids)
        except ValueError as error:
            raise RunError(f"prompt {prompt.key} cannot be asked: {error}") from error
        room = deployment.info.context_length
        if length >= room:
            raise RunError(
                f"prompt {prompt.key} cannot be asked: it has {length} tokens and the context {room}, at least one of "
                f"them for the answer: leave it out, or raise --context-length"
            )
        report((number + 1) / len(prompts), f"prompts checked {number + 1}/{len(prompts)}")


def write_responses(
    jobs: Sequence[Job], file: ResponseFile, deployment: Deployment, report: Report, stop: Callable[[], bool]
) -> bool:
    """Do ``jobs`` in order, each answer in the file before the next is begun; False if stopped early.

    Raises:
        ValueError: a prompt cannot be asked; the message names it.
    """
    drafter = ExpertDrafter(deployment.drafter("lookup"))
    begun, tokens, passes = time.monotonic(), 0, 0
    for number, job in enumerate(jobs):
        if stop():
            return False
        try:
            asked = deployment.ask(job.prompt)
            drafter.expect(len(asked.ids), deployment.expert_answer(job.prompt))
            sampling = SamplingParams(job.temperature, seed=job.seed)
            answered = deployment.answer(asked, sampling, drafter, DRAFT_TOKENS, stop)
        except ValueError as error:
            raise RunError(f"prompt {job.prompt.key} cannot be asked: {error}") from error
        if answered is None:
            return False
        said, steps = answered
        prompt = job.prompt
        file.append(Response(*job.key, prompt.domain, prompt.split, job.temperature, job.seed, asked.ids, said))
        tokens, passes = tokens + len(said), passes + len(steps)
        rate = tokens / (time.monotonic() - begun)
        report(
            (number + 1) / len(jobs),
            f"answers {number + 1}/{len(jobs)}, {rate:.0f} tokens/s, {tokens / passes:.1f} tokens per pass",
        )
    return True


def _response(line: bytes, path: Path, number: int) -> Response:
    try:
        content = json.loads(line)
        return Response(**content | {name: array("i", content[name]) for name in ("prompt_ids", "answer_ids")})
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise RunError(
            f"{path}, line {number} is no answer ({error}): delete the line, and it is written again"
        ) from error


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
