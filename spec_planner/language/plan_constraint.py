"""Which token may come next so that the answer is a valid plan: the grammar, run over tokens by llguidance.

A mask is a function of the tokens said so far and of nothing else, so a constrained law is as well defined as a free
one, and every acceptance rule is as exact on it. Where the grammar leaves no choice of text, it leaves none of
tokens either: only the tokenizer's own spelling of that text is allowed, which is also what ``forced`` returns. (It is
spelled on its own, without what stands before it. In rare names, such as a word of punctuation, the whole line would
have been cut elsewhere: the text is the same then, and drafts of that line are turned down at that place.)
"""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .grammar import ANY_SCENE, MAX_STEPS, GrammarError, plan_grammar
from .plan import Scene, SkillSet
from .tokenizer import Tokenizer

_MASKS_KEPT = 64  # more nodes than a cycle visits, few enough for a vocabulary of 150,000 (10 MB)
_GRAMMARS_KEPT = 8  # scenes a robot comes back to


class GrammarConstraint:
    """The ``Constraint`` of one run that a grammar of the answer's text makes.

    Asked about a draft tree it walks one matcher from node to node, taking back and adding only what differs. Not
    thread-safe; build one per run, which is cheap (the tokenizer and the compiled grammar are kept between runs).
    """

    def __init__(self, tokenizer: Tokenizer, grammar: str, vocabulary_size: int | None = None) -> None:
        """``vocabulary_size``: the target's, which may exceed the tokenizer's; the rest is never allowed.

        Raises:
            GrammarError: llguidance is missing, or cannot use this tokenizer or grammar.
        """
        library = _library(tokenizer)
        self.vocabulary_size = tokenizer.vocabulary_size if vocabulary_size is None else vocabulary_size
        self.text = grammar
        self._matcher = library.matcher(self.text)
        self._consumed: tuple[int, ...] = ()
        self._masks: OrderedDict[tuple[int, ...], NDArray[np.bool_]] = OrderedDict()
        self.only_end = np.zeros(self.vocabulary_size, np.bool_)
        self.only_end[[i for i in tokenizer.stop_ids if i < self.vocabulary_size]] = True
        self.only_end.flags.writeable = False

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_]:
        """bool [V], read-only, never all False: what may follow ``tokens``, the answer behind the prompt's "1.".

        After an end token, and after tokens that are no beginning of a plan (a draft branch below a token that the
        grammar forbids; no rule can accept it, but some look at it), only the end is allowed.
        """
        key = tuple(tokens)
        mask = self._masks.get(key)
        if mask is None:
            mask = self._mask() if self._move_to(key) else self.only_end
            self._masks[key] = mask
            if len(self._masks) > _MASKS_KEPT:
                self._masks.popitem(last=False)
        return mask

    def forced(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Tokens that must follow ``tokens``, as the tokenizer spells them; empty where there is a choice."""
        if not self._move_to(tuple(tokens)) or self._matcher.is_stopped():
            return ()
        return tuple(self._matcher.compute_ff_tokens())

    def _move_to(self, tokens: tuple[int, ...]) -> bool:
        """Bring the matcher behind ``tokens``; False if the grammar does not let all of them through."""
        shared = min(len(self._consumed), len(tokens))
        while self._consumed[:shared] != tokens[:shared]:
            shared -= 1
        if shared < len(self._consumed):
            self._matcher.rollback(len(self._consumed) - shared)
        taken = self._matcher.try_consume_tokens(list(tokens[shared:])) if shared < len(tokens) else 0
        self._consumed = tokens[: shared + taken]
        if self._matcher.is_error():
            raise GrammarError(f"the grammar failed in the answer: {_first_line(self._matcher.get_error())}")
        return len(self._consumed) == len(tokens)

    def _mask(self) -> NDArray[np.bool_]:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise GrammarError(f"the grammar failed in the answer: {_first_line(self._matcher.get_error())}")
        mask = np.unpackbits(bits, count=self.vocabulary_size, bitorder="little").view(np.bool_)
        mask.flags.writeable = False
        return mask if mask.any() else self.only_end


class PlanConstraint(GrammarConstraint):
    """Every answer it lets through is a plan of known skills over known things."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        skills: SkillSet,
        scene: Scene = ANY_SCENE,
        vocabulary_size: int | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        """As its base; also raises ``GrammarError`` where no plan can be written in this scene."""
        super().__init__(tokenizer, plan_grammar(skills, scene, max_steps), vocabulary_size)


class _Library:
    """What outlives a run: llguidance's view of one tokenizer, and the grammars last compiled for it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        try:
            import llguidance
        except ImportError as error:
            raise GrammarError(
                "a constrained plan needs the package llguidance: install it, or turn the constraint off"
            ) from error
        if not tokenizer.stop_ids:
            raise GrammarError("the tokenizer has no end-of-turn token, so no plan could end: name its eos_token")
        self._new_matcher = llguidance.LLMatcher
        try:
            backend = copy.copy(tokenizer.backend)  # a copy: padding is turned off in it
            backend.no_padding()
            backend.no_truncation()
            self._tokenizer = llguidance.LLTokenizer(backend.to_str(), eos_token=sorted(tokenizer.stop_ids))
        except Exception as error:  # noqa: BLE001  (the library raises what its parsers raise)
            raise GrammarError(f"llguidance cannot use this model's tokenizer ({_first_line(str(error))})") from error
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    def matcher(self, grammar: str) -> Any:
        """A matcher of its own at the start of ``grammar``."""
        compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = self._new_matcher(self._tokenizer, grammar, log_level=0)
            if compiled.is_error():
                raise GrammarError(f"the grammar cannot be compiled: {_first_line(compiled.get_error())}")
            self._compiled[grammar] = compiled
            if len(self._compiled) > _GRAMMARS_KEPT:
                self._compiled.popitem(last=False)
        return compiled.deep_copy()


_LIBRARIES: weakref.WeakKeyDictionary[Tokenizer, _Library] = weakref.WeakKeyDictionary()


def _library(tokenizer: Tokenizer) -> _Library:
    library = _LIBRARIES.get(tokenizer)
    if library is None:
        library = _LIBRARIES[tokenizer] = _Library(tokenizer)
    return library


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0].rstrip(".:")[:200] if lines else "unknown error"
