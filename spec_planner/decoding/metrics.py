"""What a step and a run report. The only definitions of acceptance length and rates in the project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StepMetrics:
    """One draft → verify → accept → commit cycle. Times are milliseconds on a monotonic clock, device synchronised.

    The first step of a run has no cycle: it carries the token sampled from the prefill (``num_nodes`` 0).
    """

    index: int  # 0 is the prefill step
    position: int  # of the anchor, in the target's context
    num_nodes: int  # rows the target was asked to score, anchor included
    num_drafted: int
    num_accepted: int  # draft tokens kept, the target's own token not counted
    draft_ms: float  # drafting, and following the commit
    verify_ms: float
    accept_ms: float
    commit_ms: float
    step_ms: float  # the whole cycle, wall clock
    elapsed_ms: float  # since the run began
    exact: bool

    @property
    def acceptance_length(self) -> int:
        """Tokens this verify pass produced: accepted drafts and the target's own. Plain decoding gives 1."""
        return self.num_accepted + 1

    @property
    def overhead_ms(self) -> float:
        """Time in the step that none of the four phases accounts for."""
        return self.step_ms - self.draft_ms - self.verify_ms - self.accept_ms - self.commit_ms


@dataclass(frozen=True)
class RunMetrics:
    """One run, from prompt to stop. Counts are taken before the last step is cut to the stop."""

    prompt_tokens: int
    reused_tokens: int  # of them, already in the context from the run before
    new_tokens: int  # emitted, after the cut
    verify_passes: int
    num_drafted: int
    num_accepted: int
    acceptance_length: float  # tokens per verify pass; plain decoding is 1; 0 when nothing was verified
    acceptance_rate: float  # accepted ÷ drafted; 0 when nothing was drafted
    acceptance_rate_at_depth: tuple[float, ...]  # share of verify passes that kept at least depth 1, 2, …
    prefill_ms: float
    time_to_first_token_ms: float
    time_per_output_token_ms: float  # after the first; 0 when there was no second
    decode_ms: float  # after the prefill step
    draft_ms: float
    verify_ms: float
    accept_ms: float
    commit_ms: float
    exact: bool


def summarize(steps: Sequence[StepMetrics], prompt_tokens: int, new_tokens: int, reused_tokens: int = 0) -> RunMetrics:
    """Fold the steps of one run; ``steps[0]`` is the prefill step."""
    prefill_ms = steps[0].elapsed_ms if steps else 0.0
    cycles = [step for step in steps if step.num_nodes > 0]
    drafted, accepted = sum(s.num_drafted for s in cycles), sum(s.num_accepted for s in cycles)
    decode_ms = steps[-1].elapsed_ms - prefill_ms if steps else 0.0
    produced = accepted + len(cycles)
    deepest = max((s.num_accepted for s in cycles), default=0)
    return RunMetrics(
        prompt_tokens=prompt_tokens,
        reused_tokens=reused_tokens,
        new_tokens=new_tokens,
        verify_passes=len(cycles),
        num_drafted=drafted,
        num_accepted=accepted,
        acceptance_length=produced / len(cycles) if cycles else 0.0,
        acceptance_rate=accepted / drafted if drafted else 0.0,
        acceptance_rate_at_depth=tuple(
            sum(s.num_accepted >= depth for s in cycles) / len(cycles) for depth in range(1, deepest + 1)
        ),
        prefill_ms=prefill_ms,
        time_to_first_token_ms=prefill_ms,
        time_per_output_token_ms=decode_ms / produced if produced else 0.0,
        decode_ms=decode_ms,
        draft_ms=sum(s.draft_ms for s in cycles),
        verify_ms=sum(s.verify_ms for s in cycles),
        accept_ms=sum(s.accept_ms for s in cycles),
        commit_ms=sum(s.commit_ms for s in cycles),
        exact=all(s.exact for s in steps),
    )
