"""What one run has said so far: tokens, the thought, the text, the steps."""

from __future__ import annotations

from ..decoding.loop import DecodeStep
from ..language.plan import Plan, Scene, SkillSet
from ..language.plan_parser import PlanParser
from ..language.stop_text import StopText
from ..language.thinking import answer_start
from ..language.tokenizer import IncrementalDecoder, Tokenizer
from .types import PlanProgress


class Answer:
    """Follows a run step by step. A thought is decoded apart and never reaches the parser.

    Args:
        start: text that the prompt already put at the answer's beginning.
        think_end: token that ends the thought the run begins with; None: there is none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        start: str,
        skills: SkillSet,
        scene: Scene,
        stop: StopText,
        think_end: int | None,
        valid_by_construction: bool,
    ) -> None:
        self.tokens: list[int] = []
        self.thinking = ""
        self._think_end, self._thought_ended = think_end, think_end is None
        self._stop = stop
        self._held = ""  # text that may be the beginning of a stop sequence
        self.parser = PlanParser(skills, scene, eager=valid_by_construction)
        self._decoder = IncrementalDecoder(tokenizer, tokenizer.encode(start))
        self._thought = IncrementalDecoder(tokenizer)
        self.parser.feed(start)

    def take(self, step: DecodeStep) -> PlanProgress:
        """Follow one decoding step; the last one also ends the last line."""
        before = len(self.tokens)
        self.tokens += step.tokens
        fresh = list(step.tokens)
        if not self._thought_ended and self._think_end is not None:
            end = answer_start(self.tokens, self._think_end)
            thought = fresh if end is None else fresh[: end - before - 1]
            fresh = [] if end is None else fresh[end - before :]
            self._thought_ended = end is not None
            self.thinking += self._thought.push(thought) + (self._thought.finish() if end is not None else "")
        text = self._decoder.push(fresh)
        if step.finish:
            text += self._decoder.finish()
        text = self._held + text
        if step.finish == "stop_sequence":
            text = self._stop.cut(text)
        shown = len(text) if step.finish else len(text) - self._stop.held_back(text)
        text, self._held = text[:shown], text[shown:]
        new_steps = self.parser.feed(text)
        if step.finish:
            new_steps += self.parser.finish()
        return PlanProgress(new_steps, self.parser.text, step.metrics, self.thinking)

    def plan(self, ended: bool) -> Plan:
        return self.parser.plan(ended)
