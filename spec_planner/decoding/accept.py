"""What an acceptance rule is: it decides which draft tokens the target would have said itself.

A rule is a pure function of (tree, the target's law at each node, a random source, the anchor's position) and visits
only the nodes it needs. It is exact under a condition on how the draft was made; ``Rule`` refuses a tree that does not
meet it, because the output would silently follow another law. The exact rules are in ``exact_rules.py``, the others in
``relaxed.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .contracts import Incompatible
from .draft_tree import DraftTree, Proposal
from .random_stream import RandomSource
from .sampling import Law

TargetLaws = Callable[[int], Law]  # node → law of the token after it


@dataclass(frozen=True)
class Acceptance:
    """What one verify pass yields.

    Attributes:
        path: accepted nodes from the root; the root (the anchor) is always among them.
        next_token: the token the target adds.
        kind: ``bonus`` after a fully accepted branch, ``correction`` where a draft was turned down.
    """

    path: tuple[int, ...]
    next_token: int
    kind: Literal["bonus", "correction"]

    @property
    def num_accepted(self) -> int:
        return len(self.path) - 1

    @property
    def acceptance_length(self) -> int:
        return len(self.path)


@dataclass(frozen=True)
class Rule:
    """An acceptance rule, its condition and what it promises."""

    name: str
    judge: Callable[[DraftTree, TargetLaws, RandomSource, int], Acceptance]
    proposals: frozenset[Proposal]  # kinds of draft it may judge
    drafting: Proposal  # how drafters should draw under it when temperature > 0
    chains_only: bool = False
    same_tokens: bool = False  # output equals plain decoding token by token; otherwise in law only
    exact: bool = True

    def __call__(self, tree: DraftTree, laws: TargetLaws, random: RandomSource, position: int) -> Acceptance:
        """Judge ``tree``, whose anchor stands at ``position``.

        Raises:
            Incompatible: the rule is not exact for this kind of tree.
        """
        if self.chains_only and not tree.is_chain:
            raise Incompatible(
                f"rule {self.name!r} judges chains only and this draft branches: use 'drafter-invariant'"
            )
        if tree.num_draft_tokens and tree.proposal not in self.proposals:
            raise Incompatible(
                f"rule {self.name!r} is not exact for {tree.proposal.value} drafts, only for "
                f"{', '.join(sorted(kind.value for kind in self.proposals))}"
            )
        return self.judge(tree, laws, random, position)
