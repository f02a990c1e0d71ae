"""A separate, smaller language model with the target's tokenizer guesses one token after another.

The classic drafter (Leviathan et al., 2211.17192; Chen et al., 2302.01318). Its network is anything that meets the
``Target`` contract; only ``truncate`` and ``extend`` are used. One distilled from the target keeps a few layers of its
own and borrows the target's embedding and head (``nets/draft_model_net.py``).

    committed   x0 … x(t−1)     in the target's KV, and in the network's up to where the last draft went wrong
    stem        x(t) …          the anchor, and what a grammar forces; fed with what the network still misses
    drafts      x(t+m) …        each drawn from the network's law after the one before; with siblings, the
                                 runners-up stand beside it as leaves, at no further pass of the network
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from spec_planner.decoding.contracts import DrafterRequirements, DraftSampler, PromptInput, Target, TargetInfo
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.sampling import Law

if TYPE_CHECKING:
    from .graphs.net_graphs import Compile

# Committed ids are fed with the next anchor to save a pass, but a prompt is fed as it comes, chunk by chunk.
_FEED_AT_ONCE = 32


class DraftTarget(Protocol):
    """As much of ``Target`` as is used here."""

    @property
    def info(self) -> TargetInfo: ...

    def truncate(self, length: int) -> None: ...

    def extend(self, prompt: PromptInput) -> Any: ...

    def close(self) -> None: ...


class ModelDrafter:
    """Drafts with a network of its own KV cache: a chain, or a comb of ``siblings`` alternatives per position.

    Args:
        borrows: names of the weights that the target lent to ``net``; ``borrowed_bytes``: their size.
    """

    name = "draft-model"

    def __init__(self, net: DraftTarget, siblings: int = 1, borrows: Sequence[str] = (),
                 borrowed_bytes: int = 0) -> None:  # fmt: skip
        if siblings < 1:
            raise ValueError(f"a draft model needs at least 1 candidate per position, got {siblings}")
        self._net, self._siblings = net, siblings
        self.requirements = DrafterRequirements(
            vocabulary_size=net.info.vocabulary_size,
            hidden_size=net.info.hidden_size if borrows else None,
            borrows=tuple(borrows),
            draws_trees=siblings > 1,
        )
        self.borrowed_bytes = borrowed_bytes
        self._ids: list[int] = []  # the target's committed context
        self._fed: list[int] = []  # what the network's KV holds; may run astray after a rejected draft

    @staticmethod
    def load(source: Path, target: Target, siblings: int = 1, compiler: Compile | None = None) -> ModelDrafter:
        """A draft model distilled from ``target``, stored without the embedding and head that it borrows.

        Args:
            compiler: run the network as a graph; None: in torch.

        Raises:
            CheckpointError: the checkpoint cannot be used, or was made for another target.
        """
        from .nets.draft_model_net import DraftModel  # here, because other networks need no torch

        net = DraftModel.load(source, target)
        if compiler is not None:
            from .compiled.base import Compiling
            from .compiled.draft_model import CompiledDraftModel

            compiled = CompiledDraftModel(net.net, net.head, Compiling.of(compiler, target.info))
            net = DraftModel(compiled, net.head, net.info.name, net.info.context_length)
        return ModelDrafter(net, siblings, net.borrows, net.borrowed_bytes)

    @property
    def network(self) -> str:
        """What runs its network, and in which precision; a certificate says it."""
        return f"{self._net.info.engine}, {self._net.info.precision}"

    @property
    def own_bytes(self) -> int:
        """What the network counts as its weights and cache."""
        return self._net.info.weight_bytes + self._net.info.kv_bytes

    def truncate(self, length: int) -> None:
        del self._ids[length:]

    def observe(self, committed_ids: Sequence[int], features: Any) -> None:
        self._ids.extend(committed_ids)
        if len(committed_ids) >= _FEED_AT_ONCE and len(self._ids) <= self._net.info.context_length:
            self._follow(self._ids)

    def draft(self, stem: Sequence[int], budget: int, sampler: DraftSampler) -> DraftTree:
        tokens, parents = list(stem), list(range(-1, len(stem) - 1))
        laws: dict[int, Law] = {node: Law.point(token) for node, token in enumerate(stem[1:])}
        position, node = len(self._ids) + len(stem) - 1, len(stem) - 1
        # Every token fed, the stem and all picks but the last, takes a slot of the network's own context.
        depth = min(max(budget // self._siblings, 1), self._net.info.context_length - position)
        branch, most = list(stem), len(stem) + budget
        logits = self._follow([*self._ids, *stem]) if depth > 0 else None
        for level in range(1, depth + 1):
            laws[node] = sampler.law(logits, branch)
            count = min(self._siblings, most - len(tokens))
            picked = sampler.pick_siblings(laws[node], count, position + level, slot=len(tokens))
            parents += [node] * len(picked)
            tokens += picked
            if level < depth:
                node, logits = len(tokens) - len(picked), self._feed(picked[:1])
                branch.append(picked[0])
        return sampler.tree(tokens, parents, [laws.get(node) for node in range(len(tokens))])

    def close(self) -> None:
        self._net.close()

    def _follow(self, ids: list[int]) -> NDArray[Any]:
        """Bring the network's context to ``ids``; logits [V] after the last of them."""
        agreed = next(
            (i for i, (a, b) in enumerate(zip(self._fed, ids, strict=False)) if a != b), min(len(self._fed), len(ids))
        )
        agreed = min(agreed, len(ids) - 1)  # the last token is fed again if need be: its logits are wanted
        self._net.truncate(agreed)
        del self._fed[agreed:]
        return self._feed(ids[agreed:])

    def _feed(self, ids: list[int]) -> NDArray[Any]:
        self._fed.extend(ids)
        logits: NDArray[Any] = self._net.extend(PromptInput(tuple(ids))).logits_row(0)
        return logits
