"""Plans in which every step can be done when its turn comes, by construction.

Where a scene says where everything is, the skills' preconditions decide which steps are possible, and each step's
effects decide about the next: so each line of an answer has a grammar of its own, made when the one before it is over.
Like every constraint it is a function of the answer so far and nothing else, and part of p.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..language.grammar import MAX_STEPS, GrammarError, line_grammar
from ..language.plan import Scene, SkillSet
from ..language.plan_constraint import GrammarConstraint
from ..language.tokenizer import Tokenizer
from .applicable import applicable
from .execution import read_step
from .state import State, WorldError, apply, start


class _Line:
    """One line of an answer: where it starts, the state before its step, and what it may say."""

    def __init__(self, offset: int, number: int, state: State, grammar: GrammarConstraint | None) -> None:
        self.offset, self.number, self.state, self.grammar = offset, number, state, grammar  # None: only the end


class ExecutableConstraint:
    """The ``Constraint`` of one run. Not thread-safe; it keeps the lines of the answer it was last asked about."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        skills: SkillSet,
        scene: Scene,
        vocabulary_size: int | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        """``scene`` is one that ``is_told``; ``vocabulary_size`` as for ``GrammarConstraint``.

        Raises:
            GrammarError: llguidance is missing or cannot use this tokenizer, or no step can be done in this scene.
        """
        self._tokenizer, self._skills, self._scene = tokenizer, skills, scene
        self._size, self._max_steps = vocabulary_size, max_steps
        self._asked: tuple[int, ...] = ()  # what the lines below were read from
        first = self._line(0, 1, start(scene, skills))
        if first.grammar is None:
            raise GrammarError("no step can be done in this scene: every skill lacks what its preconditions ask for")
        self._only_end = first.grammar.only_end
        self._lines = [first]

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_]:
        """bool [V], never all False; after tokens that are no beginning of such a plan, only the end is allowed."""
        line = self._line_of(tuple(tokens))
        return self._only_end if line.grammar is None else line.grammar.allowed(tokens[line.offset :])

    def forced(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Tokens that must follow ``tokens``; it does not look past the end of a line."""
        line = self._line_of(tuple(tokens))
        return () if line.grammar is None else line.grammar.forced(tokens[line.offset :])

    def _line_of(self, tokens: tuple[int, ...]) -> _Line:
        """The line that ``tokens`` end in."""
        most = min(len(tokens), len(self._asked))
        shared = next((i for i in range(most) if tokens[i] != self._asked[i]), most)
        while self._lines[-1].offset > shared:
            self._lines.pop()
        self._asked = tokens
        for end in range(max(shared, self._lines[-1].offset) + 1, len(tokens) + 1):
            line = self._lines[-1]
            if line.grammar is None:
                break
            mark = f"\n{line.number + 1}."
            text = self._tokenizer.decode(tokens[line.offset : end])
            if text.endswith(mark):
                self._lines.append(self._next_line(line, end, text[: -len(mark)]))
        return self._lines[-1]

    def _next_line(self, line: _Line, offset: int, text: str) -> _Line:
        try:
            step = read_step(text, self._skills, line.number - 1)
            return self._line(offset, line.number + 1, apply(line.state, step, self._skills, self._scene))
        except WorldError:  # a draft branch below a token that the grammar forbids: nothing of it is ever used
            return _Line(offset, line.number + 1, line.state, None)

    def _line(self, offset: int, number: int, state: State) -> _Line:
        calls = list(applicable(state, self._skills, self._scene))
        if not calls:
            return _Line(offset, number, state, None)
        text = line_grammar(calls, number, number >= self._max_steps, self._skills, self._scene)
        return _Line(offset, number, state, GrammarConstraint(self._tokenizer, text, self._size))
