"""The draft tree: tokens to verify, who follows whom, and by which law they were proposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .sampling import Law


class Proposal(Enum):
    """How draft tokens were chosen. A rule is exact only for the kinds it names, so a wrong label is a wrong output."""

    POINT_MASS = "point_mass"  # a fixed function of the committed context: argmax, top-k, prompt lookup
    COUPLED = "coupled"  # drawn with the target's own position-keyed noise; only matching rules may judge it
    SAMPLED_CHAIN = "sampled_chain"  # one independent draw from the recorded law per node
    SAMPLED_IID = "sampled_iid"  # several independent draws per node, repeats allowed
    SAMPLED_WITHOUT_REPLACEMENT = "sampled_without_replacement"  # several distinct draws per node, in drawn order

    @property
    def needs_laws(self) -> bool:
        return self in (Proposal.SAMPLED_CHAIN, Proposal.SAMPLED_IID, Proposal.SAMPLED_WITHOUT_REPLACEMENT)


@dataclass(frozen=True)
class DraftTree:
    """Node 0 is the anchor; parents precede children; siblings are tried in index order.

    Attributes:
        tokens: int64 [n].
        parents: int64 [n]; parents[0] = −1.
        proposal: how the tokens of nodes 1 … n − 1 were chosen.
        draft_laws: for the sampled kinds, draft_laws[i] is the law the children of node i were drawn from
            (None for a leaf); empty otherwise.

    Raises:
        ValueError: the arrays do not describe such a tree.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    proposal: Proposal = Proposal.POINT_MASS
    draft_laws: tuple[Law | None, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if n == 0 or self.tokens.shape != (n,) or self.parents.shape != (n,):
            raise ValueError(
                f"a draft tree needs one parent per token, got {self.tokens.shape} and {self.parents.shape}"
            )
        if self.parents[0] != -1 or np.any(self.parents[1:] < 0) or np.any(self.parents >= np.arange(n)):
            raise ValueError(f"parents must start with -1 and point backwards, got {self.parents.tolist()}")
        if self.proposal is Proposal.SAMPLED_CHAIN and not self.is_chain:
            raise ValueError("a sampled chain cannot branch; label the tree by how its siblings were drawn")
        if self.proposal.needs_laws:
            self._check_laws()
        elif self.draft_laws:
            raise ValueError(f"{self.proposal.value} trees carry no draft laws")

    def _check_laws(self) -> None:
        if len(self.draft_laws) != self.num_nodes:
            raise ValueError(
                f"need one draft law (or None) per node: {self.num_nodes} nodes, {len(self.draft_laws)} laws"
            )
        for node, parent in enumerate(self.parents.tolist()):
            if parent < 0:
                continue
            law = self.draft_laws[parent]
            if law is None or law.probability(int(self.tokens[node])) == 0.0:
                raise ValueError(
                    f"node {node} holds token {self.tokens[node]}, which its recorded draft law could not yield"
                )
        if self.proposal is Proposal.SAMPLED_WITHOUT_REPLACEMENT:
            pairs = list(zip(self.parents.tolist(), self.tokens.tolist(), strict=True))
            if len(set(pairs)) != len(pairs):
                raise ValueError("siblings drawn without replacement cannot hold the same token")

    @staticmethod
    def root(anchor: int) -> DraftTree:
        """No guesses: verifying this tree is one step of plain decoding."""
        return DraftTree.chain((anchor,))

    @staticmethod
    def chain(tokens: Sequence[int], proposal: Proposal = Proposal.POINT_MASS, laws: Sequence[Law] = ()) -> DraftTree:
        """``[anchor, t1, t2, …]``, each the child of the one before; laws[i] yielded tokens[i + 1]."""
        parents = np.arange(-1, len(tokens) - 1, dtype=np.int64)
        return DraftTree(
            np.asarray(tokens, dtype=np.int64), parents, proposal, (*laws, None) if proposal.needs_laws else ()
        )

    @property
    def num_nodes(self) -> int:
        return len(self.tokens)

    @property
    def num_draft_tokens(self) -> int:
        return len(self.tokens) - 1

    @cached_property
    def is_chain(self) -> bool:
        return bool(np.array_equal(self.parents, np.arange(-1, len(self.tokens) - 1)))

    @cached_property
    def depths(self) -> NDArray[np.int64]:
        """Distance from the root, int64 [n]; a node's position is the anchor's position plus its depth."""
        depths = np.zeros(self.num_nodes, dtype=np.int64)
        for node in range(1, self.num_nodes):
            depths[node] = depths[self.parents[node]] + 1
        return depths

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Child nodes of every node, in index order."""
        children: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for node in range(1, self.num_nodes):
            children[self.parents[node]].append(node)
        return tuple(map(tuple, children))

    @cached_property
    def ancestor_mask(self) -> NDArray[np.bool_]:
        """bool [n, n]; row i is True at node i and at its ancestors: what node i may attend to inside the tree."""
        mask = np.eye(self.num_nodes, dtype=np.bool_)
        for node in range(1, self.num_nodes):
            mask[node] |= mask[self.parents[node]]
        return mask

    def check_path(self, path: Sequence[int]) -> None:
        """Raise ``ValueError`` unless ``path`` runs from the root downwards, parent to child."""
        if not path or path[0] != 0:
            raise ValueError(f"an accepted path starts at the root (node 0), got {list(path)}")
        for parent, node in zip(path, path[1:], strict=False):
            if not 0 < node < self.num_nodes or self.parents[node] != parent:
                raise ValueError(
                    f"path {list(path)} does not follow the tree: node {node} is not a child of node {parent}"
                )
