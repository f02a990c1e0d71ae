"""What the demo concludes: medians, the table, and whether the tokens are identical. Plain data in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Run:
    """One goal, seen from the client. Times are milliseconds; ``total_ms`` (full plan) includes the way over DDS."""

    tokens: tuple[int, ...]
    num_steps: int
    acceptance_length: float
    verify_passes: int
    time_per_output_token_ms: float
    time_to_first_token_ms: float
    time_to_first_step_ms: float | None
    total_ms: float
    exact: bool
    prompt_tokens: int
    reused_tokens: int  # of the prompt, kept from the goal before


def first_difference(plain: Sequence[Run], speculative: Sequence[Run]) -> str:
    """Empty when every run has the very same tokens, else one sentence on where the first differing pair parts."""
    runs = [("plain", index, run) for index, run in enumerate(plain, 1)]
    runs += [("speculative", index, run) for index, run in enumerate(speculative, 1)]
    reference = plain[0].tokens
    for name, index, run in runs[1:]:
        if run.tokens != reference:
            shorter = min(len(reference), len(run.tokens))
            position = next((i for i in range(shorter) if reference[i] != run.tokens[i]), shorter)
            return (
                f"{name} run {index} differs from plain run 1 at token {position} "
                f"({_at(run.tokens, position)} instead of {_at(reference, position)})"
            )
    return ""


def table(plain: Sequence[Run], speculative: Sequence[Run]) -> str:
    """Medians side by side, at most 72 columns."""
    rows = [
        ("", "plain", "speculative", "speed-up"),
        _counts("tokens", [len(r.tokens) for r in plain], [len(r.tokens) for r in speculative], "{:.0f}"),
        _counts("verify passes", [r.verify_passes for r in plain], [r.verify_passes for r in speculative], "{:.0f}"),
        _counts(
            "tokens per verify pass",
            [r.acceptance_length for r in plain],
            [r.acceptance_length for r in speculative],
            "{:.2f}",
        ),
        _times(
            "ms per token",
            [r.time_per_output_token_ms for r in plain],
            [r.time_per_output_token_ms for r in speculative],
        ),
        _times(
            "time to first token, ms",
            [r.time_to_first_token_ms for r in plain],
            [r.time_to_first_token_ms for r in speculative],
        ),
        _times(
            "time to first step, ms",
            [r.time_to_first_step_ms for r in plain],
            [r.time_to_first_step_ms for r in speculative],
        ),
        _times("time to full plan, ms", [r.total_ms for r in plain], [r.total_ms for r in speculative]),
    ]
    return "\n".join(f"  {name:<25}{left:>12}{right:>14}{ratio:>11}".rstrip() for name, left, right, ratio in rows)


def warm_start(first: Run, later: Sequence[Run]) -> str:
    """What a goal gains from the prompt of the one before."""
    cold, warm = first.time_to_first_token_ms, median(run.time_to_first_token_ms for run in later)
    kept = median(run.reused_tokens for run in later)
    return (
        f"time to first token on the first goal (cold): {cold:.1f} ms; on the others (warm):\n"
        f"  {warm:.1f} ms, because {kept:.0f} of their {later[0].prompt_tokens} prompt tokens were kept"
    )


def _counts(name: str, plain: Sequence[float], speculative: Sequence[float], form: str) -> tuple[str, str, str, str]:
    return name, form.format(median(plain)), form.format(median(speculative)), ""


def _times(name: str, plain: Sequence[float | None], speculative: Sequence[float | None]) -> tuple[str, str, str, str]:
    left = [value for value in plain if value is not None]
    right = [value for value in speculative if value is not None]
    if not left or not right:
        return name, "-", "-", ""
    before, after = median(left), median(right)
    return name, f"{before:.1f}", f"{after:.1f}", f"{before / after:.2f} x" if after else ""


def _at(tokens: Sequence[int], position: int) -> str:
    return str(tokens[position]) if position < len(tokens) else "the end"
