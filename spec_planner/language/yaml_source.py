"""YAML, or parsed JSON, as a tree that knows where each piece was written, so that errors can say so.

Scalars stay text: ``no``, ``1.10`` and ``2024-05-01`` are names here, not a truth value, a number and a date. What
PyYAML takes silently (a key given twice, a tag, an anchor that contains itself) is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAX_PIECES = 100_000  # aliases can multiply a small file without end
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {
    _TAG + name for name in ("null", "bool", "int", "float", "timestamp", "str", "seq", "map", "merge", "value")
}


class SourceError(ValueError):
    """A document that cannot be read; one sentence with the place."""


@dataclass(frozen=True)
class Piece:
    """A part of a document.

    Attributes:
        value: text, a list, a mapping, or None for nothing (``key:``, ``~``, ``null``); from JSON perhaps another
            scalar, which no reader takes.
        where: "scenes/home.yaml, line 3", or the path of keys where there are no lines.
    """

    value: Any
    where: str

    def plain(self) -> Any:
        """The value without its places, for messages."""
        if isinstance(self.value, list):
            return [piece.plain() for piece in self.value]
        if isinstance(self.value, dict):
            return {key: piece.plain() for key, piece in self.value.items()}
        return self.value

    def fail(self, problem: str) -> SourceError:
        return SourceError(f"{self.where}: {problem}")

    def text(self, what: str) -> str:
        if not isinstance(self.value, str):
            raise self.fail(f"{what} must be text, got {shown(self.plain())}")
        return self.value

    def items(self, what: str) -> list[Piece]:
        """Entries of a list; none for nothing."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.fail(f"{what} must be a list, got {shown(self.plain())}")
        return self.value

    def keys(self, what: str, known: tuple[str, ...]) -> dict[str, Piece]:
        """Entries of a mapping whose keys are all ``known``; keys without a value are left out."""
        if not isinstance(self.value, dict):
            raise self.fail(f"{what} is a mapping with {listing(known)}, got {shown(self.plain())}")
        unknown = [key for key in self.value if key not in known]
        if unknown:
            raise self.value[unknown[0]].fail(f"unknown key {shown(unknown[0])}; {what} has {listing(known)}")
        return {key: piece for key, piece in self.value.items() if piece.value is not None}


def shown(value: Any) -> str:
    """``value`` as an error quotes it: short, on one line."""
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def listing(words: tuple[str, ...] | list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "nothing"


def read_text(path: str | os.PathLike[str], what: str, remedy: str) -> str:
    """The text of a UTF-8 file. Raises ``SourceError``, which calls the file ``what`` and ends in ``remedy``."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or "it cannot be opened") if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SourceError(f"{what} {path} cannot be read ({reason}): {remedy}") from error


def read_yaml(text: str, source: str) -> Piece:
    """Parse YAML ``text``; ``source`` is what errors call it. Raises ``SourceError``."""
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        return Piece(None, source) if root is None else _Reader(source).piece(root)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}, line {mark.line + 1}" if mark else source
        problem = " ".join(str(getattr(error, "problem", None) or "unreadable character").split())
        raise SourceError(f"{where}: not valid YAML ({problem})") from error
    except RecursionError as error:
        raise SourceError(f"{source}: nested too deeply to be read: flatten it") from error


class _Reader:
    """Turns PyYAML's nodes into pieces."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.pieces = 0
        self.open: set[int] = set()  # the nodes we are inside of

    def piece(self, node: Any) -> Piece:
        import yaml

        where = f"{self.source}, line {node.start_mark.line + 1}"
        self.pieces += 1
        if self.pieces > _MAX_PIECES:
            raise SourceError(f"{where}: more than {_MAX_PIECES} entries, aliases counted as written out: shorten it")
        if node.tag not in _PLAIN_TAGS:
            raise SourceError(f"{where}: not valid YAML here (the tag {shown(node.tag)}): remove the tag")
        if isinstance(node, yaml.ScalarNode):
            nothing = node.tag == _TAG + "null" and node.style is None
            return Piece(None if nothing else _join_surrogates(node.value), where)
        if id(node) in self.open:
            raise SourceError(f"{where}: an anchor that contains itself: write the entry out")
        self.open.add(id(node))
        value = list(map(self.piece, node.value)) if isinstance(node, yaml.SequenceNode) else self.mapping(node)
        self.open.remove(id(node))
        return Piece(value, where)

    def mapping(self, node: Any) -> dict[str, Piece]:
        import yaml

        pieces: dict[str, Piece] = {}
        for key, value in node.value:
            where = f"{self.source}, line {key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise SourceError(f"{where}: a key must be one word, not a list or a mapping")
            if key.value in pieces:
                raise SourceError(f"{where}: the key {shown(key.value)} is given twice: keep one of them")
            piece = self.piece(value)
            # A value's line, except where there is none: then its key's.
            pieces[key.value] = Piece(piece.value, where) if piece.value is None else piece
        return pieces


def _join_surrogates(text: str) -> str:
    """JSON writes an emoji as two escapes, which PyYAML takes for two characters."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:  # half a pair: no name, whoever reads it refuses it
        return text


def from_plain(value: Any, where: str, depth: int = 0) -> Piece:
    """Parsed JSON as pieces; errors name the path of keys, such as ``line 3's scene, objects entry 2``.

    Raises:
        SourceError: a key that is not text, or nesting deeper than any document of ours.
    """
    if depth > 20:
        raise SourceError(f"{where}: nested too deeply")
    if isinstance(value, (list, tuple)):
        entries = enumerate(value, start=1)
        return Piece([from_plain(entry, f"{where} entry {index}", depth + 1) for index, entry in entries], where)
    if isinstance(value, Mapping):
        return Piece(dict(_plain_items(value, where, depth)), where)
    return Piece(value, where)


def _plain_items(value: Mapping[Any, Any], where: str, depth: int) -> Iterator[tuple[str, Piece]]:
    for key, entry in value.items():
        if not isinstance(key, str):
            raise SourceError(f"{where}: a key must be text, got {shown(key)}")
        yield key, from_plain(entry, f"{where}, {key}" if key.isidentifier() else f"{where}, {shown(key)}", depth + 1)
