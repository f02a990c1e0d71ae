"""What a target and a drafter are. The first file to read.

One cycle of speculative decoding (Leviathan et al., 2211.17192; Chen et al., 2302.01318):

    tree       = drafter.draft(stem, budget, sampler)     a few guesses, node 0 is the anchor
    output     = target.verify(tree)                      one pass over all weights scores every node
    acceptance = rule(tree, target laws, random stream)   keeps what the target would have said
    target.commit(acceptance.path)                        the accepted branch becomes context
    drafter.observe(committed ids, features)              and the drafter follows

The *anchor* is the last emitted token: already said, not yet in the target's KV cache. Its position is therefore
``target.committed_length``, and the first draft token's position is one more. The *stem* is the anchor and, under a
grammar, the tokens it leaves no choice about: free guesses, which the drafter goes on from. Plain decoding is the same
cycle with a tree of one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .draft_tree import DraftTree
from .sampling import Law


class Incompatible(ValueError):
    """A target, drafter, rule or prompt that do not fit together; raised before anything is decoded."""


class ContextOverflow(Incompatible):
    """The prompt leaves no room to decode in the target's context."""


@dataclass(frozen=True)
class PromptInput:
    """What the target reads before it speaks: token ids and, for a vision target, pixels it alone understands."""

    ids: tuple[int, ...]
    pixels: Any = None


@dataclass(frozen=True)
class TargetInfo:
    """What a target can do. Compared with ``DrafterRequirements`` before decoding, never in the middle of it."""

    name: str
    engine: str  # "torch", "onnx", "openvino", "tensorrt", "table"
    precision: str  # "float32", "bfloat16", "int8", …
    device: str
    vocabulary_size: int
    hidden_size: int
    num_layers: int
    context_length: int  # tokens the KV cache holds
    max_nodes: int  # widest draft tree one verify pass takes
    supports_tree: bool
    lendable: tuple[str, ...] = ()  # names ``lend`` answers to
    weight_bytes: int = 0
    kv_bytes: int = 0
    versions: dict[str, str] = field(default_factory=dict)


class TargetOutput(Protocol):
    """Scores of one pass. Rows may stay on the device until asked for, so only visited nodes are paid for."""

    def argmax(self) -> NDArray[np.int64]:
        """Most likely next token of every node, int64 [n]; ties go to the lowest id."""

    def logits_row(self, node: int) -> NDArray[np.float32]:
        """Logits of the token after ``node``, float32 [V]."""

    def features(self, path: Sequence[int]) -> Any:
        """Tapped hidden states of the nodes on ``path``: an opaque device handle, None where no layer was tapped."""


@runtime_checkable
class Target(Protocol):
    """The model whose words count, with its KV cache. Not thread-safe: one caller at a time."""

    @property
    def info(self) -> TargetInfo:
        """What this target can do."""

    @property
    def committed_length(self) -> int:
        """Tokens in the committed context; also the position of the next token fed."""

    def tap(self, feature_layers: Sequence[int]) -> None:
        """Ask for hidden states (Hugging Face ``hidden_states`` indices) in every later output."""

    def truncate(self, length: int) -> None:
        """Forget all context after the first ``length`` tokens."""

    def extend(self, prompt: PromptInput) -> TargetOutput:
        """Feed and commit prompt tokens; ``logits_row(0)`` of the result follows the last of them.

        ``features(range(len(ids)))`` covers every fed token.
        """

    def verify(self, tree: DraftTree) -> TargetOutput:
        """Score every node in one pass. The committed context stays as it was until ``commit``.

        A verify that is never committed is abandoned and leaves no trace.
        """

    def commit(self, path: Sequence[int]) -> None:
        """Append the nodes of ``path`` (from the root, of the last verified tree) to the context. Once per verify."""

    def lend(self, name: str) -> Any:
        """An opaque handle to weights a drafter may share, by a name from ``info.lendable``."""

    def close(self) -> None:
        """Free device memory; the target cannot be used afterwards."""


@dataclass(frozen=True)
class DrafterRequirements:
    """What a drafter needs from its target."""

    feature_layers: tuple[int, ...] = ()  # Hugging Face hidden_states indices
    vocabulary_size: int | None = None
    hidden_size: int | None = None
    borrows: tuple[str, ...] = ()  # names the target must lend
    draws_trees: bool = False  # drafts are more than chains


class DraftSampler(Protocol):
    """How a drafter turns its laws into tokens. The acceptance rule picks the way, so the label is always true."""

    def law(self, logits: NDArray[np.float32], branch: Sequence[int]) -> Law:
        """The drafter's law from its logits, float32 [V], under the run's sampling parameters and constraint.

        ``branch``: ids from the anchor to the token that the logits follow, both included.
        """

    def pick(self, law: Law, position: int, slot: int) -> int:
        """A token for absolute ``position``; ``slot`` is the index its node will have in the tree being drafted."""

    def pick_siblings(self, law: Law, count: int, position: int, slot: int) -> list[int]:
        """Up to ``count`` tokens for one position, to become adjacent nodes from index ``slot`` on."""

    def tree(self, tokens: Sequence[int], parents: Sequence[int], laws: Sequence[Law | None]) -> DraftTree:
        """Wrap picked tokens; laws[i] is the law that the children of node i were picked from."""


@runtime_checkable
class Drafter(Protocol):
    """Guesses what the target says next. It sees committed ids and features, never the pending target output."""

    name: str
    requirements: DrafterRequirements

    def truncate(self, length: int) -> None:
        """Forget all context after the first ``length`` tokens."""

    def observe(self, committed_ids: Sequence[int], features: Any) -> None:
        """Follow the target: these ids, with these features, were appended to its context (prompt ids included)."""

    def draft(self, stem: Sequence[int], budget: int, sampler: DraftSampler) -> DraftTree:
        """A tree that begins with the chain ``stem``, the anchor first, and at most ``budget`` tokens more.

        ``budget`` is at least 1. With no idea, the stem alone.
        """

    def close(self) -> None:
        """Free what the drafter holds."""


class Constraint(Protocol):
    """What may be said next, given what has been said."""

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_] | None:
        """bool [V], True where a token may follow ``tokens`` (the answer so far, prompt excluded); None allows all.

        Never all False. Of ``tokens`` that break the constraint nothing is used, so None will do.
        """

    def forced(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Tokens sure, or all but sure, to follow ``tokens``: drafted at no cost, verified like any draft."""


def check_compatible(target: TargetInfo, drafter: Drafter | None) -> None:
    """Raise ``Incompatible``, naming the offender, unless ``target`` offers what ``drafter`` needs."""
    if drafter is None:
        return
    name, needs = drafter.name, drafter.requirements
    for what, wanted, offered in (
        ("vocabulary", needs.vocabulary_size, target.vocabulary_size),
        ("hidden size", needs.hidden_size, target.hidden_size),
    ):
        if wanted is not None and wanted != offered:
            raise Incompatible(
                f"drafter {name!r} was made for a {what} of {wanted} but target {target.name!r} has {offered}: "
                "use a drafter trained for this target"
            )
    for layer in needs.feature_layers:
        if not 0 <= layer <= target.num_layers:
            raise Incompatible(
                f"drafter {name!r} reads hidden state {layer}, target {target.name!r} has 0 to {target.num_layers}"
            )
    missing = [handle for handle in needs.borrows if handle not in target.lendable]
    if missing:
        raise Incompatible(f"target {target.name!r} does not lend {', '.join(missing)}, which drafter {name!r} borrows")
    if needs.draws_trees and not target.supports_tree:
        raise Incompatible(f"drafter {name!r} draws trees but target {target.name!r} verifies chains only")
