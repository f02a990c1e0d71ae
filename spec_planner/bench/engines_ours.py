"""Our engines as competitors: the loop on the same prompt ids as everybody, and the pipeline as users run it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ..config import PlannerConfig
from ..decoding.contracts import Drafter, PromptInput, Target
from ..decoding.draft_budget import DraftBudget, FixedBudget
from ..decoding.draft_tree import DraftTree
from ..decoding.loop import DecodeStep, decode
from ..decoding.metrics import StepMetrics
from ..decoding.prefix_cache import PrefixCache
from ..decoding.sampling import SamplingParams
from ..decoding.stopping import Stopping
from ..factory import build_budget, build_drafter, build_pipeline
from ..pipeline.plan_pipeline import PlanPipeline
from ..target_loading import Report
from .engines import Competitor, Question, Reply
from .latency import spread


@dataclass(frozen=True)
class AnyWidth(PlannerConfig):
    """A configuration whose verify passes take the width of their draft, also where planning has a single one.

    For measuring what a pass of each width costs, never for planning: see ``PlannerConfig.pass_width``.
    """

    @property
    def pass_width(self) -> None:
        return None


class OurEngine:
    """One engine in one precision, with every drafter that is to be compared on it.

    The first drafter is also that of the pipeline, for answers under the grammar.
    """

    def __init__(self, config: PlannerConfig, drafters: Sequence[str], report: Report = lambda line: None) -> None:
        """
        Args:
            drafters: by name, "auto" resolved already; at least one.

        Raises:
            ValueError: the engine or a drafter cannot be loaded; one sentence.
        """
        self.config, self._drafter_under_the_grammar = config, drafters[0]
        self._pipeline = build_pipeline(replace(config, drafter=drafters[0]), report)
        self._prefix_cache = PrefixCache()
        self._drafters: dict[str, tuple[Drafter, DraftBudget]] = {}
        try:
            target = self._pipeline.target
            for name in drafters:
                first = self._pipeline.drafter if name == drafters[0] else None
                drafter = first or build_drafter(replace(config, drafter=name), target, report)
                if drafter is not None:
                    self._drafters[name] = drafter, build_budget(config, drafter)
            self._warm_up(target)
        except BaseException:
            self.close()
            raise

    @property
    def pipeline(self) -> PlanPipeline:
        return self._pipeline

    @property
    def target(self) -> Target:
        """For somebody else's use: our next answer starts cold."""
        self._prefix_cache.forget()
        return self._pipeline.target

    def competitors(self, grammar: bool) -> Iterator[Competitor]:
        """Plain, with each drafter, and, with ``grammar``, as users run it."""
        engine, precision = self.config.engine, self.config.precision
        width = self.config.pass_width
        settings = f"all passes {width} rows wide" if width else ""
        yield Competitor(engine, precision, precision, "plain", self._plain, settings=settings)
        for name in self._drafters:
            yield Competitor(
                *(engine, precision, precision, name),
                lambda question, name=name: self._answer(question.ids, len(question.answer), *self._drafters[name]),
                settings=settings,
            )
        if grammar:
            yield Competitor(
                *(engine, precision, precision, self._drafter_under_the_grammar, self._under_the_grammar),
                answers="grammar",
                settings=settings,
            )

    def reference(self, ids: tuple[int, ...], most: int) -> tuple[int, ...]:
        """The plain greedy answer to ``ids``, up to its stop token or ``most`` tokens."""
        steps = self._steps(ids, Stopping(most, self._pipeline.stop_ids), None, None)
        return tuple(token for step in steps for token in step.tokens)

    def cycles(self, questions: Sequence[Question], num_draft_tokens: int) -> list[StepMetrics]:
        """Every cycle of answering ``questions`` with drafts of always the same length, by the first drafter."""
        found: list[StepMetrics] = []
        for drafter, _ in list(self._drafters.values())[:1]:
            for question in questions:
                stopping, budget = Stopping(len(question.answer)), FixedBudget(num_draft_tokens)
                steps = self._steps(question.ids, stopping, drafter, budget)
                found += [step.metrics for step in steps if step.metrics.num_nodes]
        return found

    def close(self) -> None:
        own = self._pipeline.drafter
        for drafter, _ in self._drafters.values():
            if drafter is not own:  # which the pipeline closes
                drafter.close()
        self._pipeline.close()

    def _plain(self, question: Question) -> Reply:
        return self._answer(question.ids, len(question.answer), None, None)

    def _answer(self, ids: tuple[int, ...], count: int, drafter: Drafter | None, budget: DraftBudget | None) -> Reply:
        steps = list(self._steps(ids, Stopping(count), drafter, budget))
        tokens = tuple(token for step in steps for token in step.tokens)
        seconds = (steps[-1].metrics.elapsed_ms - steps[0].metrics.elapsed_ms) / 1e3
        return Reply(tokens, len(tokens) - 1, seconds, sum(step.metrics.num_nodes > 0 for step in steps))

    def _under_the_grammar(self, question: Question) -> Reply:
        _ = self.target  # what our own answers left in the caches is not the pipeline's
        result = self._pipeline.run(question.request)
        metrics = result.metrics
        return Reply(result.tokens, len(result.tokens) - 1, metrics.decode_ms / 1e3, metrics.verify_passes)

    def _steps(
        self, ids: tuple[int, ...], stopping: Stopping, drafter: Drafter | None, budget: DraftBudget | None
    ) -> Iterator[DecodeStep]:
        pipeline, cache = self._pipeline, self._prefix_cache
        target = pipeline.target  # asked for, so that the pipeline trusts nothing it holds
        return decode(
            target, drafter, PromptInput(ids), SamplingParams(), stopping, pipeline.rule, budget, prefix_cache=cache
        )

    def _warm_up(self, target: Target) -> None:
        """As the pipeline does for itself, for the budgets of ours."""
        self._pipeline.warm_up()
        info, most = target.info, self.config.num_draft_tokens
        widest = min(most + 1, info.max_nodes)
        target.extend(PromptInput((0,)))
        for width in sorted({widest, *(2**k for k in range(widest.bit_length()))}):
            seconds = _pass_seconds(target, width)
            for _, budget in self._drafters.values():
                budget.time_pass(width, seconds)
        target.truncate(0)


def cycle_figures(cycles: Sequence[StepMetrics], num_draft_tokens: int) -> dict[str, Any] | None:
    """What a cycle costs; None where none was of full length.

    ``draft_ms`` and ``verify_ms`` are medians over cycles with ``num_draft_tokens`` drafted tokens, ``cycle_ms`` the
    median and quartiles of their sum; ``overhead`` is the share of all cycles' time that is neither.
    """
    full = [cycle for cycle in cycles if cycle.num_drafted == num_draft_tokens]
    if not full:
        return None
    total = sum(cycle.step_ms for cycle in cycles)
    return {
        "draft_ms": round(median(cycle.draft_ms for cycle in full), 2),
        "verify_ms": round(median(cycle.verify_ms for cycle in full), 2),
        "cycle_ms": spread([cycle.draft_ms + cycle.verify_ms for cycle in full], 2),
        "overhead": round(sum(cycle.step_ms - cycle.draft_ms - cycle.verify_ms for cycle in cycles) / total, 4),
        "cycles": len(full),
    }


def _pass_seconds(target: Target, width: int) -> float:
    for _ in range(2):  # the first of a kind may be slow
        started = time.perf_counter()
        target.verify(DraftTree.chain([0] * width))
        seconds = time.perf_counter() - started
    return seconds
