"""A loaded planner as the subject of a certificate: what the command line and the node have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import ConfigError, PlannerConfig
from ..decoding.accept import Rule
from ..decoding.contracts import Drafter
from ..pipeline.plan_pipeline import PlanPipeline
from ..pipeline.types import PlanRequest
from ..resources import shared_file
from .certificate import Certificate, Settings, Subject, certify
from .document import to_json
from .recording import Question

DEFAULT_TOKENS = 2000
DEFAULT_TEMPERATURES = (0.0, 1.0)


def settings_for(
    config: PlannerConfig, tokens: int | None = None, temperatures: Iterable[float] = (), seed: int = 0
) -> Settings:
    """How much to test; what is not given takes the defaults above.

    Raises:
        ValueError: a value is out of range.
    """
    return Settings(
        tokens=DEFAULT_TOKENS if tokens is None else tokens,
        temperatures=tuple(dict.fromkeys(temperatures)) or DEFAULT_TEMPERATURES,
        bitwise=config.exactness == "bitwise",
        seed=seed,
    )


def subject_for(config: PlannerConfig, drafter: Drafter | None, rule: Rule) -> Subject:
    """``drafter`` as ``config`` describes it.

    Raises:
        ConfigError: there is none.
    """
    if drafter is None:
        raise ConfigError("drafter 'none' is what the others are compared with: set drafter to lookup or draft-model")
    shape = "tree" if config.draft_branches > 1 or drafter.requirements.draws_trees else "chain"
    return Subject(f"{config.drafter}, {shape}", drafter, rule, config.num_draft_tokens)


def read_instructions(path: str | Path | None = None) -> list[str]:
    """Non-empty lines of a prompt file, by default the installed one; lines that begin with # are comments.

    Raises:
        ValueError: the file cannot be read or is empty.
    """
    file = Path(path) if path else shared_file("config/instructions.txt")
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"prompt file {file} cannot be read ({error}): give a text file, one instruction per line"
        ) from error
    instructions = [line for line in lines if line and not line.startswith("#")]
    if not instructions:
        raise ConfigError(f"prompt file {file} holds no instruction: write one per line")
    return instructions


def question_for(pipeline: PlanPipeline, request: PlanRequest) -> Question:
    """``request`` as the target meets it.

    Raises:
        ValueError: no prompt can be made of it.
    """
    return Question(*pipeline.asked(request))


def certify_planner(
    pipeline: PlanPipeline,
    subjects: Sequence[Subject],
    requests: Sequence[PlanRequest],
    settings: Settings,
    model: Path,
    drafters: Mapping[str, tuple[str, Sequence[Path]]],
    report: Callable[[float, str], None] = lambda share, line: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> tuple[Certificate, dict[str, Any]]:
    """Compare ``subjects`` with plain decoding on the pipeline's target, over the questions that ``requests`` put.

    Args:
        model: a directory whose files the certificate names by hash.
        drafters: kind and files of those subjects that come from files, by the setting ``drafter``; likewise.
        report, cancelled: as for ``certify``.

    Returns: the certificate, and the same as JSON for ``document.to_markdown`` and ``document.write``.

    Raises:
        ValueError: there is nothing to compare, or a request gives no prompt.
        InterruptedError: ``cancelled`` said so.
    """
    questions = [question_for(pipeline, request) for request in requests]
    certificate = certify(pipeline.target, subjects, questions, pipeline.stop_ids, settings, report, cancelled)
    return certificate, to_json(certificate, pipeline.info, model, drafters, cancelled)
