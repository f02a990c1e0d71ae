"""Prefix reuse: what target and drafter hold of the last prompt, so that the next one starts where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .contracts import Drafter, PromptInput, Target, TargetOutput

CHUNK = 64  # prompt tokens per pass; an interrupt is seen between chunks


class PrefixCache:
    """Feeds prompts chunk by chunk and keeps, in the KV caches, the chunks that two prompts in a row share.

    Only whole chunks are kept, on a grid that starts at position 0, so every key and value stems from the same pass
    over the same rows as after a cold start: a warm start changes no bit. What was decoded after a prompt came from
    passes of another width and is dropped. One object serves all runs on a target, as long as nobody else feeds it.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start the next prompt from nothing."""
        self._fed: list[int] = []  # whole chunks of the last prompt in the target
        self._followed: list[int] = []  # the same in the drafter
        self._follower: Drafter | None = None
        self.reused = 0  # tokens of the current prompt that were there already

    def begin(self, prompt: PromptInput, target: Target, drafter: Drafter | None) -> int:
        """Truncate both to what they may keep of ``prompt``; returns how many tokens that is, at least one too few."""
        kept = 0 if prompt.pixels is not None else _shared(self._fed, prompt.ids)
        if drafter is not None:
            known = _shared(self._followed, prompt.ids) if drafter is self._follower else 0
            if drafter.requirements.feature_layers:
                kept = min(kept, known)  # what it did not see is gone from the target's outputs
            known = min(known, kept)
            drafter.truncate(known)
            if known < kept:
                drafter.observe(prompt.ids[known:kept], None)
            self._follower, self._followed = drafter, list(prompt.ids[:kept])
        target.truncate(kept)
        self._fed = list(prompt.ids[:kept])
        self.reused = kept
        return kept

    def feed(self, chunk: Sequence[int], pixels: Any, target: Target, drafter: Drafter | None) -> TargetOutput:
        """Feed the next tokens of the prompt, at most to the end of a chunk."""
        output = target.extend(PromptInput(tuple(chunk), pixels))
        if drafter is not None:
            drafter.observe(chunk, output.features(range(len(chunk))))
        if len(chunk) == CHUNK and pixels is None:
            self._fed += chunk
            if drafter is not None:
                self._followed += chunk
        return output


def _shared(fed: Sequence[int], ids: Sequence[int]) -> int:
    """Length of the whole chunks that both begin with, leaving at least one of ``ids`` to feed."""
    most = min(len(fed), len(ids) - 1)
    length = next((i for i in range(most) if fed[i] != ids[i]), most)
    return length - length % CHUNK
