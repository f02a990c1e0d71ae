"""Instructions: one phrase for each clause, put into a frame. Phrases multiply; some are kept out of training."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .domain import Clause, Domain, read_data
from .draft import Dead, Draft

SENTENCES = "config/tasks/sentences.yaml"
_SLOT = re.compile(r"\{(in |a )?([a-z]+)(?::([^}/]+)/([^}]+))?\}")
_SHORT = 0.12  # how often "the red cup" is just "the cup", where that is clear


@dataclass(frozen=True)
class Said:
    """A clause to be said: its roles filled with the names of one or more things."""

    clause: Clause
    names: dict[str, tuple[str, ...]]
    source: str  # where its thing ``x`` is; "" where that is not one known place


@dataclass(frozen=True)
class Instruction:
    """The text, which phrases it is made of, and for each clause whether it says where the thing is."""

    text: str
    wording: str
    says_source: tuple[bool, ...]


@dataclass(frozen=True)
class _Frame:
    text: str
    tag: str


@dataclass(frozen=True)
class _Part:
    """A clause in words. ``states``: it is a statement, not an imperative. ``thing``: what "it" would stand for."""

    text: str
    states: bool
    tag: str
    says_source: bool
    thing: str


class Speaker:
    """Words clauses. ``held_out`` uses phrases that are never used otherwise, at least one in every instruction."""

    def __init__(self, domain: Domain, draft: Draft, held_out: bool, blind: bool = False) -> None:
        self.domain, self.draft, self.random = domain, draft, draft.random
        self.held_out, self.blind = held_out, blind
        self._short: dict[str, str] = {}

    def say(self, clauses: Sequence[Said]) -> Instruction:
        """Raises ``Dead`` where no phrase fits."""
        data = read_data(SENTENCES)
        novel, frame = self._plan(len(clauses), data)
        in_order = frame is None or re.findall(r"\{(\d)\}", frame.text) == [str(i) for i in range(1, len(clauses) + 1)]
        parts: list[_Part] = []
        for said, new in zip(clauses, novel, strict=True):
            before = parts[-1].thing if parts and in_order else ""  # "it" only after what it stands for
            parts.append(self._clause(said, new, statements=frame is None, before=before))
        if frame is None:
            text, tag = self._sentences(parts, data), f"sentences{len(parts)}"
        else:
            text = re.sub(r"\{(\d)\}", lambda match: parts[int(match.group(1)) - 1].text, frame.text)
            tag = frame.tag
        wording = " ".join([tag, *(part.tag for part in parts)])
        return Instruction(_polish(text), wording, tuple(part.says_source for part in parts))

    def _plan(self, count: int, data: Mapping[str, Any]) -> tuple[list[bool], _Frame | None]:
        """Which clauses get a held-out phrase, and the frame; None for sentences in a row."""
        novel = [self.held_out and self.random.random() < 0.6 for _ in range(count)]
        frames = count in data["say"]
        novel_frame = frames and self.held_out and (self.random.random() < 0.5 or not any(novel))
        if self.held_out and not novel_frame and not any(novel):
            novel[0] = True
        if not frames or (not novel_frame and self.random.random() < 0.3):
            return novel, None
        choices = (data["held_out"] if novel_frame else data)["say"][count]
        number = self.random.randrange(len(choices))
        return novel, _Frame(choices[number], f"frame{count}.{'h' if novel_frame else ''}{number}")

    def _clause(self, said: Said, novel: bool, statements: bool, before: str) -> _Part:
        clause, phrases = said.clause, said.clause.held_out if novel else said.clause.phrases
        fits = self._fits(said)
        states = statements and self.random.random() < 0.6 and any(map(fits, phrases.state))
        choices = [phrase for phrase in (phrases.state if states else phrases.say) if fits(phrase)]
        if not choices:
            raise Dead
        phrase = self.random.choice(choices)
        number = [*phrases.say, *phrases.state].index(phrase)
        main = next(iter(said.names.values()), ("",))
        source = "{s}" in phrase or "{in s}" in phrase
        fluent = main == (before,) and not states and not source and not phrase.startswith("{")
        text = self._render(phrase, said, before if fluent and self.random.random() < 0.6 else "")
        thing = main[0] if len(main) == 1 and main[0] in self.draft.objects else ""
        return _Part(text, states, f"{clause.name}.{'h' if novel else ''}{number}", source, thing)

    def _sentences(self, parts: Sequence[_Part], data: Mapping[str, Any]) -> str:
        sentences = []
        for index, part in enumerate(parts):
            joints = data["last_joints" if index == len(parts) - 1 else "joints"]
            joint = self.random.choice(joints) if index and not part.states else ""
            sentences.append(joint + part.text)
        return str(self.random.choice(data["openings"])) + ". ".join(sentences)

    def _fits(self, said: Said) -> Callable[[str], bool]:
        def fits(phrase: str) -> bool:
            roles = {match.group(2) for match in _SLOT.finditer(phrase)}
            if "s" in roles and "s" not in said.names and not said.source:
                return False
            return not (roles - {"s", *said.names})

        return fits

    def _render(self, phrase: str, said: Said, again: str) -> str:
        def replace(match: re.Match[str]) -> str:
            inside, role, one, many = match.groups()
            names = said.names.get(role) or (said.source,)
            if one:
                return many if len(names) > 1 or names[0] in self.domain.plural or self._noun(names[0]) else one
            if inside == "a ":
                return f"{'an' if names[0][0] in 'aeiou' else 'a'} {names[0]}"
            if inside:
                return f"{self._preposition(names[0])} {self._the(names[0])}"
            if names == (again,):
                return "them" if self._plural(again) else "it"
            return _listed([self._the(name) for name in names])

        return _SLOT.sub(replace, phrase)

    def _plural(self, name: str) -> bool:
        return name in self.domain.plural or self._noun(name)

    def _noun(self, name: str) -> bool:
        return name.split(" ", 1)[-1] in self.domain.plural

    def _preposition(self, name: str) -> str:
        return self.draft.places[name].preposition_of(name) if name in self.draft.places else "with"

    def _the(self, name: str) -> str:
        if name not in self.draft.objects and name not in self.draft.places:
            return name  # a number or a choice
        place = self.draft.places.get(name)
        person = place is not None and place.kind == "person"
        return self.domain.the(self._short.get(name) or self._shorten(name), person)

    def _shorten(self, name: str) -> str:
        """Sometimes the noun alone, where only one thing can be meant."""
        self._short[name] = name
        adjective, _, noun = name.partition(" ")
        known = adjective in self.domain.adjectives.get(self.draft.objects.get(name, ""), ())
        others = [n for n in (*self.draft.objects, *self.draft.places) if n != name]
        clear = noun and not any(noun in other.split() or other.endswith(noun) for other in others)
        if known and clear and not self.blind and self.random.random() < _SHORT:
            self._short[name] = noun
        return self._short[name]


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _polish(text: str) -> str:
    """Capitals at sentence starts, one stop at the end."""
    text = re.sub(r"\?\.", "?", text.strip())
    if text[-1] not in ".?!":
        text += "."
    return re.sub(r"(^|[.?!] )([a-z])", lambda match: match.group(1) + match.group(2).upper(), text)
