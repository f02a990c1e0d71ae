"""The certificate as files: one JSON object for machines, one page of Markdown for the reviewer."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..decoding.contracts import TargetInfo
from ..machine import cpu_model
from .certificate import Cell, Certificate, law_power


def to_json(
    certificate: Certificate,
    target: TargetInfo,
    model: Path,
    drafters: Mapping[str, tuple[str, Sequence[Path]]],
    cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Everything the certificate rests on: counts, margins, settings, versions, hashes, device, time, verdict.

    Args:
        drafters: kind and files of those that come from files, by the name they were given.

    Raises:
        InterruptedError: ``cancelled`` said so; hashing a large model takes a while.
    """
    return {
        "verdict": "pass" if certificate.passed else "fail",
        "problems": certificate.problems,
        "exactness": "bitwise" if certificate.settings.bitwise else "tokens",
        "tokens": certificate.tokens,
        "mismatches": certificate.mismatches,
        "near_ties": sum(cell.near_ties for cell in certificate.cells),
        "divergences": [
            {"subject": cell.subject, "rule": cell.rule, "temperature": cell.temperature}
            | {name: _finite(value) for name, value in asdict(divergence).items()}
            for cell in certificate.cells
            for divergence in cell.divergences
        ],
        "engine_noise": _finite(certificate.noise),
        "rows": [_row(cell) for cell in certificate.cells],
        "settings": asdict(certificate.settings),
        "target": asdict(target),
        "hashes": model_hashes(model, cancelled),
        "drafters": [
            {"name": name, "kind": kind, "hashes": file_hashes(files, cancelled)}
            for name, (kind, files) in drafters.items()
        ],
        "machine": machine(),
        "versions": versions(target),
        "finished_utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "wall_s": round(certificate.wall_s, 1),
    }


def to_markdown(content: dict[str, Any]) -> str:
    """One page a reviewer can file. ``content`` is what ``to_json`` returned."""
    target = content["target"]
    lines = [
        f"# Certificate of exactness: {content['verdict'].upper()}",
        "",
        f"{content['tokens']} tokens of speculative decoding were compared with plain decoding on this machine, engine "
        f"and model: {content['mismatches']} mismatches, of which {content['near_ties']} near ties.",
        "",
        f"- Target: {target['name']}, engine {target['engine']}, {target['precision']} on {target['device']}",
        f"- Promise: {content['exactness']}"
        + (
            ""
            if content["exactness"] == "bitwise"
            else f"; engine noise between pass widths {_shown(content['engine_noise'])}"
        ),
        f"- Finished {content['finished_utc']} after {content['wall_s']} s",
        "",
        "| drafter | rule | temperature | runs | tokens | mismatches | near ties | logit rows equal in bits "
        "| largest logit difference | tokens per verify pass | law test |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in content["rows"]:
        law = row["law_test"]
        said = "tokens compared instead" if law is None else f"{'REJECTED' if law['rejected'] else 'not rejected'}"
        if law and law["detectable_shift"] is not None:
            said += f"; a shift of {law['detectable_shift']:g} would show with power 0.99"
        lines.append(
            f"| {row['drafter']} | {row['rule']} | {row['temperature']:g} | {row['runs']} | {row['tokens']} "
            f"| {row['mismatches']} | {row['near_ties']} | {row['rows_equal_in_bits']} "
            f"| {_shown(row['largest_logit_difference'])} "
            f"| {row['acceptance_length']:.2f} | {said} |"
        )
    if content["problems"]:
        lines += ["", "## Why it failed", "", *(f"- {problem}" for problem in content["problems"])]
    lines += ["", "## What it rests on", ""]
    lines += [f"- {name}: `{digest}`" for name, digest in content["hashes"].items()]
    for drafter in content["drafters"]:
        of = f"drafter {drafter['name']} ({drafter['kind']})"
        lines += [f"- {of}, {name}: `{digest}`" for name, digest in drafter["hashes"].items()]
    ran = {row["drafter"]: row["network"] for row in content["rows"] if row["network"]}
    lines += [f"- network of drafter {name}: {network}" for name, network in ran.items()]
    lines += [f"- {name}: {value}" for name, value in {**content["machine"], **content["versions"]}.items()]
    lines += [f"- settings: `{json.dumps(content['settings'])}`", ""]
    return "\n".join(lines)


def write(content: dict[str, Any], directory: Path) -> tuple[Path, Path]:
    """Write ``certificate.json`` and ``certificate.md``, each atomically; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in (
        ("certificate.json", json.dumps(content, indent=2) + "\n"),
        ("certificate.md", to_markdown(content)),
    ):
        scratch = directory / f".{name}.{os.getpid()}"
        scratch.write_text(text, encoding="utf-8")
        written.append(scratch.rename(directory / name))
    return written[0], written[1]


def model_hashes(model: Path, cancelled: Callable[[], bool] = lambda: False) -> dict[str, str]:
    """SHA-256 of every file that decides what the target says.

    Raises:
        InterruptedError: ``cancelled`` said so.
    """
    paths = [*sorted(model.glob("*.safetensors")), model / "config.json", model / "tokenizer.json"]
    return file_hashes(filter(Path.is_file, paths), cancelled)


def file_hashes(paths: Iterable[Path], cancelled: Callable[[], bool] = lambda: False) -> dict[str, str]:
    """SHA-256 of files by their names.

    Raises:
        InterruptedError: ``cancelled`` said so.
    """
    return {path.name: _sha256(path, cancelled) for path in paths}


def machine() -> dict[str, str]:
    """Where the proof was run."""
    return {"cpu": cpu_model(), "cores": str(os.cpu_count()), "system": platform.platform()}


def versions(target: TargetInfo) -> dict[str, str]:
    return {"spec_planner": __version__, "python": sys.version.split()[0], "numpy": np.__version__, **target.versions}


def _row(cell: Cell) -> dict[str, Any]:
    law = None
    if cell.law is not None:
        law = {
            "tokens": cell.law.tokens,
            "largest_log_bayes_factor": round(cell.law.largest, 2) if math.isfinite(cell.law.largest) else None,
            "rejected": cell.law.rejected,
            "detectable_shift": law_power(cell),
            "rule_error": cell.rule_error,
        }
    return {
        "drafter": cell.subject,
        "network": cell.network,
        "rule": cell.rule,
        "temperature": cell.temperature,
        "runs": cell.runs,
        "tokens": cell.tokens,
        "mismatches": len(cell.divergences),
        "near_ties": cell.near_ties,
        "rows_equal_in_bits": cell.rows_equal_in_bits,
        "largest_logit_difference": _finite(cell.largest_logit_difference),
        "acceptance_length": round(cell.acceptance_length, 3),
        "law_test": law,
    }


def _finite(value: Any) -> Any:
    """JSON has no infinity: None stands for it."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shown(number: float | None) -> str:
    return "infinite" if number is None else f"{number:.3g}"


def _sha256(path: Path, cancelled: Callable[[], bool]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            if cancelled():
                raise InterruptedError("the certificate was cancelled; nothing was written")
            digest.update(block)
    return digest.hexdigest()
