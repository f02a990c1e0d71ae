"""The planner node over a target that says a fixed plan; the tests run it as a process and hold its passes.

It starts in half a second, because it needs neither torch nor transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from drafters.lookup import LookupDrafter
from spec_planner.config import PlannerConfig
from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.factory import find_rule
from spec_planner.language.skills import load_skills
from spec_planner.nodes.planner_node import main
from spec_planner.pipeline.plan_pipeline import PlanPipeline
from tests.fakes import ScriptedOutput, ScriptedTarget
from tests.nodes import control

ANSWER = " go_to(kitchen)\n2. pick(red cup)\n3. go_to(table)\n4. put(red cup, table)"
THOUGHT = "The cup is in the kitchen, s\u00ed."
END, THINK_END = 256, 257
PASS_SECONDS = 0.002
CONTEXT_LENGTH = 32_768  # of bytes: five hundred skills take eight thousand


class ByteTokenizer:
    """A token per byte of UTF-8, one for the end, and one for the end of a thought, if it thinks."""

    vocabulary_size = THINK_END + 1
    stop_ids = frozenset({END})

    def __init__(self, thinks: bool = False) -> None:
        """``backend`` says the same to the grammar's library."""
        self.think_end = THINK_END if thinks else None
        self.backend = Tokenizer(models.BPE(vocab={_written(byte): byte for byte in range(END)}, merges=[]))
        self.backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self.backend.decoder = decoders.ByteLevel()
        self.backend.add_special_tokens(["<end>", "</think>"])

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], answer_start: str = "", thinking: bool = False
    ) -> tuple[int, ...]:
        return tuple(self.encode("\n".join([*(message["content"] for message in messages), answer_start])))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < END).decode(errors="replace")


def _written(byte: int) -> str:
    """The character by which byte-level vocabularies write a byte: itself if it shows, else one from U+0100 on."""
    shows = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte if byte in shows else 0x100 + sum(other not in shows for other in range(byte)))


class HeldTarget(ScriptedTarget):
    """Stands still where a test says so."""

    def extend(self, prompt: PromptInput) -> ScriptedOutput:
        control.wait_while_held(-1)
        return super().extend(prompt)

    def verify(self, tree: DraftTree) -> ScriptedOutput:
        control.wait_while_held(len(self.context) - self._prompt_length)
        return super().verify(tree)


class FaultyTarget(HeldTarget):
    """Off by one: after a draft was accepted it believes to stand one position further than it does."""

    def commit(self, path: Sequence[int]) -> None:
        super().commit(path)
        self._prompt_length -= len(path) > 1


def build_scripted(config: PlannerConfig, report: Callable[[str], None]) -> PlanPipeline:
    if not Path(config.model).is_dir():  # the certificate names its files
        raise ValueError(f"model {config.model!r} is not a directory: give the scripted node one")
    tokenizer = ByteTokenizer(thinks=config.thinking_tokens > 0)
    thought = [*tokenizer.encode(THOUGHT), THINK_END, *tokenizer.encode("\n\n1.")] if tokenizer.think_end else []
    kind = FaultyTarget if control.is_faulty() else HeldTarget
    target = kind(
        [*thought, *tokenizer.encode(ANSWER), END],
        tokenizer.vocabulary_size,
        context_length=CONTEXT_LENGTH,
        pass_seconds=PASS_SECONDS,
    )
    drafter = LookupDrafter() if config.drafter in ("auto", "lookup") else None
    return PlanPipeline(
        target,
        drafter,
        tokenizer,
        find_rule(config.rule),
        FixedBudget(config.num_draft_tokens),
        load_skills(config.skills_file),
    )


if __name__ == "__main__":
    sys.exit(main(build=build_scripted))
