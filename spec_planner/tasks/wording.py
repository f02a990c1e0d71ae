"""Instructions: one phrase for each clause, put into a frame. Phrases multiply; some are kept out of training."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


class Speaker:
    """Words clauses. ``held_out`` uses phrases that are never used otherwise, at least one in every instruction."""

    def __init__(self, domain: Domain, draft: Draft, held_out: bool, blind: bool = False) -> None:
        self.domain, self.draft, self.random = domain, draft, draft.random
        self.held_out, self.blind = held_out, blind
        self._short: dict[str, str] = {}

    def say(self, clauses: Sequence[Said]) -> Instruction:
        """Raises ``Dead`` where no phrase fits."""
        data = read_data(SENTENCES)
        count = len(clauses)
        novel = [self.held_out and self.random.random() < 0.6 for _ in clauses]
        novel_frame = self.held_out and (self.random.random() < 0.5 or not any(novel)) and count in data["say"]
        if self.held_out and not novel_frame and not any(novel):
            novel[0] = True
        statements = not novel_frame and (self.random.random() < 0.3 or count not in data["say"])
        texts: list[str] = []
        moods: list[bool] = []
        tags: list[str] = []
        sources: list[bool] = []
        before = ""
        for index, said in enumerate(clauses):
            phrases = said.clause.held_out if novel[index] else said.clause.phrases
            states = statements and self.random.random() < 0.6
            fits = self._fits(said)
            choices = [p for p in (phrases.state if states else phrases.say) if fits(p)]
            if states and not choices:
                states, choices = False, [p for p in phrases.say if fits(p)]
            if not choices:
                raise Dead
            phrase = self.random.choice(choices)
            all_phrases = [*said.clause.phrases.say, *said.clause.phrases.state]
            number = f"h{[*phrases.say, *phrases.state].index(phrase)}" if novel[index] else all_phrases.index(phrase)
            tags.append(f"{said.clause.name}.{number}")
            main = next(iter(said.names.values()), ("",))
            source = "{s}" in phrase or "{in s}" in phrase
            fluent = len(main) == 1 and not states and not source and not phrase.startswith("{")
            again = main[0] if fluent and main[0] == before else ""
            texts.append(self._render(phrase, said, again if self.random.random() < 0.6 else ""))
            moods.append(states)
            sources.append(source)
            before = main[0] if len(main) == 1 and len(said.names) and main[0] in self.draft.objects else ""
        if statements:
            text, tag = self._sentences(texts, moods, data)
        else:
            frames = data["held_out"]["say"][count] if novel_frame else data["say"][count]
            number = self.random.randrange(len(frames))
            text = re.sub(r"\{(\d)\}", lambda match: texts[int(match.group(1)) - 1], frames[number])
            tag = f"frame{count}.{'h' if novel_frame else ''}{number}"
        return Instruction(_polish(text), f"{tag} {' '.join(tags)}", tuple(sources))

    def _sentences(self, texts: list[str], moods: list[bool], data: dict[str, list[str]]) -> tuple[str, str]:
        parts = []
        for index, (text, states) in enumerate(zip(texts, moods, strict=True)):
            last = index == len(texts) - 1
            joint = self.random.choice(data["last_joints" if last else "joints"]) if index and not states else ""
            parts.append(joint + text)
        opening = self.random.choice(data["openings"])
        return opening + ". ".join(parts), f"sentences{len(texts)}"

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
