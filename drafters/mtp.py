"""Multi-token prediction as a drafter: the target's own further-looking modules guess, the target checks.

Sequential modules (DeepSeek-V3 and its kin; ``nets/mtp_net.py``), D of them:

    committed   x0 … x(t−1)        with h(0) … h(t−1), the target's hidden states after its final norm
    stem        x(t) … x(t+m)      the anchor, and what a grammar forces: no hidden states of these exist yet
    module k    row i reads (what module k − 1 made of row i, or h(i); x(i+1+k)) and predicts x(i+2+k)
    step 0      module 0, row t−1, reads (h(t−1), x(t))              and predicts x(t+1)
    step j      D > 1: module j, row t−1, reads x(t+j)               and predicts x(t+j+1), up to j = D − 1
                D = 1: the one module, a new row t−1+j, reads what it made of the row before, and x(t+j)

x(t+1) … are the stem's while it lasts, then drafts, so forced tokens cost a step each and guess nothing. A row is kept
once every token it reads is committed, rows 0 … t−1−D; the last D are run again with each draft, so a rejected token
leaves nothing behind.

Parallel heads (Gloeckle et al., 2404.19737): head k reads z(0) … z(t−1), what enters the target's last layer, and
predicts x(t+1+k), all at once and none knowing the others, like Medusa's (``medusa.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from spec_planner.decoding.contracts import DrafterRequirements, DraftSampler, Incompatible, Target
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.sampling import Law

from .compiled.base import Compiling
from .compiled.mtp import CompiledMtp, CompiledParallelHeads
from .draft_head import DraftHead, read_draft_tokens
from .draft_net import ModulesNet, ParallelNet
from .graphs.net_graphs import Compile
from .nets.layers import as_borrowed, distinct_bytes
from .nets.mtp_layouts import Recursion, load_mtp, load_parallel_heads
from .nets.mtp_net import MtpNet, ParallelHeads
from .tree_growth.marginals import Shape, draft_from_marginals, stem_alone

_FEED_AT_ONCE = 32  # a prompt is followed as it comes, chunk by chunk; what a cycle commits, with the next draft


class _Follower:
    """The committed ids and the target's hidden states at them, and the weights lent by the target."""

    name = "mtp"
    _lends: str  # what it reads of the target besides the head

    def __init__(self, hidden_size: int, target: Target, layer: int, draws_trees: bool,
                 kept: Sequence[int] | None) -> None:  # fmt: skip
        self._lent, self._head = as_borrowed(target.lend(self._lends)), DraftHead(target.lend("head"), kept)
        self._ids: list[int] = []
        self._states: list[torch.Tensor] = []  # of every committed token, each [d]
        self.requirements = DrafterRequirements(
            feature_layers=(layer,),
            vocabulary_size=self._head.vocabulary.size,
            hidden_size=hidden_size,
            borrows=(self._lends, *self._head.borrows),
            draws_trees=draws_trees,
        )

    @property
    def network(self) -> str:
        """What runs its network, and in which precision; a certificate says it."""
        return f"{self._net.engine}, {self._net.precision}"

    @property
    def own_bytes(self) -> int:
        """Weights, caches and hidden states that are this drafter's."""
        caches, states = (cache.num_bytes for cache in self._caches), (state.nbytes for state in self._states)
        return self._net.num_bytes + self._head.own_bytes + sum(states) + sum(caches)

    @property
    def borrowed_bytes(self) -> int:
        """Weights of the target that this drafter uses and did not copy."""
        return distinct_bytes([self._lent, *self._head.lent])

    def _remember(self, committed_ids: Sequence[int], features: Any) -> None:
        if features is None:
            raise Incompatible(f"drafter {self.name!r} reads hidden states and got none: tap its feature_layers")
        rows = torch.as_tensor(features)[:, 0].to(device=self._net.place.device, dtype=self._net.place.dtype)
        self._ids.extend(committed_ids)
        self._states.extend(rows.unbind())

    def close(self) -> None:
        self._ids.clear()
        self._states.clear()
        del self._net, self._lent, self._head, self._caches


class MtpDrafter(_Follower):
    """Drafts with sequential modules: a chain, or a comb of ``siblings`` alternatives per position.

    With one module the number of draft tokens is the budget's; with D modules it is at most D. ``draft_tokens``: what
    of the target's head is read (``draft_head.py``); None: all. ``compiler``: runs the modules as graphs; None: torch.
    """

    _lends = "embedding"

    def __init__(self, net: MtpNet, target: Target, siblings: int = 1, draft_tokens: Sequence[int] | None = None,
                 compiler: Compile | None = None) -> None:  # fmt: skip
        if siblings < 1:
            raise ValueError(f"an MTP drafter needs at least 1 candidate per position, got {siblings}")
        super().__init__(net.hidden_size, target, target.info.num_layers, siblings > 1, draft_tokens)
        self._net: ModulesNet = net
        if (compiling := Compiling.of(compiler, target.info)) is not None:
            self._net = CompiledMtp(net, self._head, compiling)
        self._siblings, self._caches = siblings, self._net.new_caches()

    @staticmethod
    def load(source: Path, target: Target, siblings: int = 1, recursion: Recursion = "normed",
             compiler: Compile | None = None) -> MtpDrafter:  # fmt: skip
        """The modules published inside ``target``'s checkpoint, or alone.

        Raises:
            CheckpointError: the checkpoint holds none that can be used.
        """
        lent = as_borrowed(target.lend("embedding"))
        net = load_mtp(source, lent.dtype, lent.device, recursion)
        return MtpDrafter(net, target, siblings, read_draft_tokens(source, target.info.vocabulary_size), compiler)

    def truncate(self, length: int) -> None:
        del self._ids[length:], self._states[length:]
        for cache in self._caches:
            cache.truncate(self._settled)

    @torch.inference_mode()
    def observe(self, committed_ids: Sequence[int], features: Any) -> None:
        self._remember(committed_ids, features)
        if self._settled - self._caches[0].length >= _FEED_AT_ONCE:
            self._follow()

    @torch.inference_mode()
    def draft(self, stem: Sequence[int], budget: int, sampler: DraftSampler) -> DraftTree:
        forced, num_modules = len(stem) - 1, len(self._net)
        depth = max(budget // self._siblings, 1)
        if num_modules > 1:
            depth = min(depth, num_modules - forced)
        if depth < 1 or not self._ids:
            return stem_alone(stem, sampler)
        self._follow()
        start = self._settled
        hidden, ahead = torch.stack(self._states[start:]), [*self._ids[start + 1 :], *stem]
        tokens, parents = list(stem), list(range(-1, forced))
        laws: dict[int, Law] = {node: Law.point(token) for node, token in enumerate(stem[1:])}
        node, branch = forced, list(stem)
        for step in range(forced + depth):
            module = step if num_modules > 1 else 0
            at, read = start + 1 + step, ahead[step : step + len(hidden)]
            hidden, logits = self._run(module, hidden, read, at, None if step < forced else self._head.weight)
            if logits is None:
                continue
            laws[node] = sampler.law(self._head.spread(logits[0]), branch)
            count = min(self._siblings, len(stem) + budget - len(tokens))
            at, slot, law = len(self._ids) + step + 1, len(tokens), laws[node]
            picked = [sampler.pick(law, at, slot)] if count == 1 else sampler.pick_siblings(law, count, at, slot)
            parents += [node] * len(picked)
            node = len(tokens)
            tokens += picked
            branch.append(picked[0])
            ahead.append(picked[0])
        for cache in self._caches:
            cache.truncate(start)
        return sampler.tree(tokens, parents, [laws.get(node) for node in range(len(tokens))])

    @property
    def _settled(self) -> int:
        """Rows all of whose tokens are committed, for every module."""
        return max(len(self._ids) - len(self._net), 0)

    def _follow(self) -> None:
        """Run the rows that have become settled through every module."""
        first, end = self._caches[0].length, self._settled
        if first >= end:
            return
        hidden = torch.stack(self._states[first:end])
        for depth in range(len(self._net)):
            hidden, _ = self._run(depth, hidden, self._ids[first + 1 + depth : end + 1 + depth], first + 1 + depth)

    def _run(self, depth: int, hidden: torch.Tensor, tokens: Sequence[int], position: int,
             head: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        """Rows behind module ``depth``'s cache, the first of which reads the token at ``position``."""
        embedded = F.embedding(torch.tensor(tokens, device=self._lent.device), self._lent)
        return self._net.guess(depth, hidden, embedded, position, self._caches[depth], head)


class ParallelMtpDrafter(_Follower):
    """Drafts with parallel heads; ``shape`` and ``draft_tokens`` as for ``MedusaDrafter``."""

    name = "mtp-parallel"
    _lends = "final_norm"

    def __init__(self, net: ParallelHeads, target: Target, shape: Shape = "chain",
                 draft_tokens: Sequence[int] | None = None, compiler: Compile | None = None) -> None:  # fmt: skip
        super().__init__(net.hidden_size, target, target.info.num_layers - 1, shape != "chain", draft_tokens)
        self._net: ParallelNet = net
        if (compiling := Compiling.of(compiler, target.info)) is not None:
            self._net = CompiledParallelHeads(net, self._lent, self._head, compiling)
        self._shape, self._caches = shape, [self._net.new_cache()]

    @staticmethod
    def load(source: Path, target: Target, shape: Shape = "chain",
             compiler: Compile | None = None) -> ParallelMtpDrafter:  # fmt: skip
        """The extra heads published inside ``target``'s checkpoint, or alone.

        Raises:
            CheckpointError: the checkpoint holds none that can be used.
        """
        lent = as_borrowed(target.lend("head"))
        net = load_parallel_heads(source, lent.dtype, lent.device)
        kept = read_draft_tokens(source, target.info.vocabulary_size)
        return ParallelMtpDrafter(net, target, shape, kept, compiler)

    def truncate(self, length: int) -> None:
        del self._ids[length:], self._states[length:]
        self._caches[0].truncate(length)

    @torch.inference_mode()
    def observe(self, committed_ids: Sequence[int], features: Any) -> None:
        self._remember(committed_ids, features)
        if len(self._ids) - self._caches[0].length >= _FEED_AT_ONCE:
            cache, rows = self._rest()
            self._net.follow(rows, cache)

    @torch.inference_mode()
    def draft(self, stem: Sequence[int], budget: int, sampler: DraftSampler) -> DraftTree:
        forced = len(stem) - 1
        heads = range(forced, min(len(self._net), forced + budget))
        if not heads or not self._ids:
            return stem_alone(stem, sampler)
        cache, rows = self._rest()
        logits = self._head.spread(self._net.guess(rows, heads, cache, self._lent, self._head.weight))
        return draft_from_marginals(stem, list(logits), budget, len(self._ids), sampler, self._shape)

    def _rest(self) -> tuple[Any, torch.Tensor]:
        """The cache, and the rows that bring it up to the last committed token, which is asked again if it was
        followed before."""
        cache = self._caches[0]
        cache.truncate(len(self._states) - 1)
        return cache, torch.stack(self._states[cache.length :])
