"""What every target over a transformer does, whichever library runs its passes.

    SessionTarget   the committed context: its length, the tree that waits for its commit, widths and extents of passes
    Session         one library's loaded network and the KV cache it runs over

``verify`` leaves the committed context as it was; ``commit`` makes the accepted branch's keys and values follow it and
raises the length. Widths and extents: ``passes.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from ..decoding.contracts import Incompatible, PromptInput, TargetInfo, TargetOutput
from ..decoding.draft_tree import DraftTree
from .decoder_config import DecoderConfig
from .heap import give_back
from .passes import Extents, PassRows, rows_of

LENDABLE = ("embedding", "head", "final_norm")


class Session(Protocol):
    """A library's loaded network and its KV cache. Passes may have any number of rows, one at a time."""

    @property
    def weight_bytes(self) -> int:
        """Of the network as it was loaded."""

    @property
    def kv_bytes(self) -> int:
        """Of the cache at capacity."""

    @property
    def versions(self) -> Mapping[str, str]:
        """What a certificate says of library and network."""

    def make_room(self, needed: int, keep: int) -> int:
        """The extent of a pass that needs ``needed`` slots, the cache and its first ``keep`` slots laid out for it."""

    def run(self, rows: PassRows, scored: Sequence[int], hidden_layers: Sequence[int], wanted: int) -> TargetOutput:
        """One pass; logits of the first ``wanted`` of the rows ``scored``, hidden states of all rows.

        The output is its own memory: it stays as it is through later passes.
        """

    def keep(self, start: int, path: Sequence[int]) -> None:
        """Make the keys and values of rows ``path`` of the last pass, which began at ``start``, those of the slots
        start, start + 1, …"""

    def clear(self) -> None:
        """Put zeros into the whole cache. A masked slot still enters the matrix product, and NaN × 0 is NaN."""

    def lend(self, name: str) -> Any:
        """The embedding or head [V, d], or the final norm [d]."""


class SessionTarget:
    """A ``Target`` (see ``decoding.contracts``); subclasses load a ``Session`` of their library.

    Args:
        widths: of verify passes; a draft is padded up to the next.
    """

    engine: ClassVar[str]

    def __init__(self, session: Session, config: DecoderConfig, name: str, precision: str, device: str,
                 context_length: int, widths: Sequence[int], extents: Extents) -> None:  # fmt: skip
        self._session, self._widths, self._extents = session, tuple(sorted(widths)), extents
        self._length, self._used = 0, False
        self._pending: DraftTree | None = None
        self._feature_layers: tuple[int, ...] = ()
        self.info = TargetInfo(
            name=name,
            engine=self.engine,
            precision=precision,
            device=device,
            vocabulary_size=config.vocabulary_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
            context_length=context_length,
            max_nodes=self._widths[-1],
            supports_tree=True,
            lendable=LENDABLE,
            weight_bytes=session.weight_bytes,
            kv_bytes=session.kv_bytes,
            versions=dict(session.versions),
        )

    @property
    def committed_length(self) -> int:
        return self._length

    def tap(self, feature_layers: Sequence[int]) -> None:
        self._feature_layers = tuple(feature_layers)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot truncate a context of {self._length} tokens to {length}")
        self._length, self._pending = length, None
        if not length and self._used:  # a pass that overflowed must not reach the next run
            self._session.clear()
            self._used = False

    def extend(self, prompt: PromptInput) -> TargetOutput:
        if prompt.pixels is not None:
            raise Incompatible(f"target {self.info.name!r} reads text only")
        count = len(prompt.ids)
        output = self._pass(DraftTree.chain(prompt.ids), width=count, scored=[count - 1], wanted=1)
        self._session.keep(self._length, range(count))
        self._length += count
        self._pending = None
        return output

    def verify(self, tree: DraftTree) -> TargetOutput:
        n = tree.num_nodes
        if n > self.info.max_nodes:
            raise Incompatible(f"a draft of {n} nodes exceeds the {self.info.max_nodes} one pass takes")
        width = next(w for w in self._widths if w >= n)
        # The padding is scored too: the head's product has one shape per width.
        output = self._pass(tree, width, scored=range(width), wanted=n)
        self._pending = tree
        return output

    def commit(self, path: Sequence[int]) -> None:
        if self._pending is None:
            raise RuntimeError("commit needs a verified tree that was neither committed nor dropped")
        self._pending.check_path(path)
        self._pending = None
        self._session.keep(self._length, path)
        self._length += len(path)

    def lend(self, name: str) -> Any:
        if name not in self.info.lendable:
            raise Incompatible(f"target {self.info.name!r} lends {', '.join(self.info.lendable)}, not {name!r}")
        return self._session.lend(name)

    def close(self) -> None:
        del self._session
        give_back()

    def _pass(self, tree: DraftTree, width: int, scored: Sequence[int], wanted: int) -> TargetOutput:
        """Run the tree's nodes, padded to ``width`` rows, after the committed context."""
        extent = self._session.make_room(self._extents.of(self._length, width), keep=self._length)
        rows = rows_of(tree, width, self._length, self.info.context_length, extent)
        self._used = True
        return self._session.run(rows, scored, self._feature_layers, wanted)


def first_moved(path: Sequence[int]) -> int:
    """How many rows at the start of ``path`` already lie where a commit wants them; all of them in a chain."""
    return next((index for index, row in enumerate(path) if row != index), len(path))
