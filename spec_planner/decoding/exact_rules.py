"""The exact acceptance rules and the table that names them. Notation: p is the target's law at a node, q the draft's.

Every rule draws its bonus token, after a fully accepted branch, with the target's own noise at that position. Coins and
residual draws are keyed by the cycle's anchor and a node, so no number is ever used for two decisions.
"""

from __future__ import annotations

from .accept import Acceptance, Rule, TargetLaws
from .contracts import Incompatible
from .draft_tree import DraftTree, Proposal
from .random_stream import Purpose, RandomSource
from .sampling import Law


def match_target_draws(tree: DraftTree, laws: TargetLaws, random: RandomSource, position: int) -> Acceptance:
    """Draw what the target says at each position and follow it down the tree while some child agrees.

    The draws are keyed by position alone, so the tokens are those of plain decoding whatever was drafted (Daliri,
    Musco, Suresh, 2408.07978). At temperature 0 the law is a point mass and this is greedy verification.
    """
    path = [0]
    while True:
        node = path[-1]
        token = random.draw(laws(node), Purpose.TARGET, position + len(path))
        child = next((c for c in tree.children[node] if tree.tokens[c] == token), None)
        if child is None:
            return Acceptance(tuple(path), token, "correction" if tree.children[node] else "bonus")
        path.append(child)


def try_children(tree: DraftTree, laws: TargetLaws, random: RandomSource, position: int) -> Acceptance:
    """Offer each child x in turn with probability p(x), striking x from p when it is turned down.

    Equal in law to drawing from p and looking the draw up among the children, for any tree made without the coins.
    """
    path = [0]
    while True:
        node, p = path[-1], laws(path[-1])
        for child in tree.children[node]:
            token = int(tree.tokens[child])
            if random.accepts(p.probability(token), Purpose.ACCEPT, position, child):
                path.append(child)
                break
            p = p.without(token) or p
        else:
            return _stop(tree, path, p, random, position)


def reject_and_resample(tree: DraftTree, laws: TargetLaws, random: RandomSource, position: int) -> Acceptance:
    """Keep a child x ~ q with probability min(1, p(x) / q(x)); turned down, go on with the excess of p over q.

    On a chain: Leviathan et al. (2211.17192), Chen et al. (2302.01318). On a tree: recursive rejection, SpecInfer
    (2305.09781), where q loses a rejected child drawn without replacement and stays as it is for independent children.
    """
    path = [0]
    while True:
        node, p = path[-1], laws(path[-1])
        q = _draft_law(tree, node) if tree.children[node] else p
        for child in tree.children[node]:
            token = int(tree.tokens[child])
            if random.accepts(p.probability(token) / q.probability(token), Purpose.ACCEPT, position, child):
                path.append(child)
                break
            p, q = p.reweighted(p.excess(q)), _after_rejection(tree, q, token)
        else:
            return _stop(tree, path, p, random, position)


def verify_block(tree: DraftTree, laws: TargetLaws, random: RandomSource, position: int) -> Acceptance:
    """Judge a chain as one block: keeps no fewer tokens on average than judging token by token.

    Block verification, Sun et al. (2403.10444): with w₀ = 1 and wᵢ = min(wᵢ₋₁ · p(xᵢ) / q(xᵢ), 1), prefix i is kept
    with probability Sᵢ / (Sᵢ + 1 − wᵢ), Sᵢ = Σ max(wᵢ p − q, 0) over the next token; the whole block with its w.
    """
    last = tree.num_nodes - 1
    weights = [1.0]
    for node in range(last):
        token = int(tree.tokens[node + 1])
        ratio = laws(node).probability(token) / _draft_law(tree, node).probability(token)
        weights.append(min(weights[node] * ratio, 1.0))
    for node in range(last, -1, -1):
        p, weight = laws(node), weights[node]
        if node == last:
            kept = random.accepts(weight, Purpose.ACCEPT, position, node)
        else:
            excess = p.excess(_draft_law(tree, node), weight)
            mass = float(excess.sum())
            p = p.reweighted(excess)
            # Prefix 0 is kept if nothing longer was: its weight is 1.
            kept = node == 0 or random.accepts(_kept_share(mass, weight), Purpose.ACCEPT, position, node)
        if kept:
            return _stop(tree, list(range(node + 1)), p, random, position)
    raise AssertionError("unreachable: the empty prefix is always kept")


def traverse(tree: DraftTree, laws: TargetLaws, random: RandomSource, position: int) -> Acceptance:
    """Judge leaves first, whole branches at a time; a turned-down leaf hands what it did not use back to its parent.

    Traversal verification (2505.12398), which is block verification when the tree is a chain. w(child) =
    min(w(parent) · p(x) / q(x), 1) is the chance of a leaf; losing a child updates p, q and w of its parent.
    """
    p: dict[int, Law] = {0: laws(0)}
    q: dict[int, Law] = {}
    weight = {0: 1.0}
    waiting = [list(children) for children in tree.children]
    path = [0]
    while True:
        while waiting[path[-1]]:
            parent, child = path[-1], waiting[path[-1]][0]
            token = int(tree.tokens[child])
            q.setdefault(parent, _draft_law(tree, parent))
            weight[child] = min(weight[parent] * p[parent].probability(token) / q[parent].probability(token), 1.0)
            p[child] = laws(child)
            path.append(child)
        leaf = path[-1]
        if leaf == 0 or random.accepts(weight[leaf], Purpose.ACCEPT, position, leaf):
            return _stop(tree, path, p[leaf], random, position)
        path.pop()
        parent = path[-1]
        waiting[parent].pop(0)
        excess = p[parent].excess(q[parent], weight[parent])
        p[parent] = p[parent].reweighted(excess)
        weight[parent] = _kept_share(float(excess.sum()), weight[parent])
        q[parent] = _after_rejection(tree, q[parent], int(tree.tokens[leaf]))


def _draft_law(tree: DraftTree, node: int) -> Law:
    """q at ``node``; a determined child counts as drawn from a point mass."""
    law = tree.draft_laws[node] if tree.draft_laws else None
    return law or Law.point(int(tree.tokens[tree.children[node][0]]))


def _after_rejection(tree: DraftTree, q: Law, token: int) -> Law:
    """q of the next sibling. Where nothing else was possible there is none, and q is not asked again."""
    return (q.without(token) or q) if tree.proposal is Proposal.SAMPLED_WITHOUT_REPLACEMENT else q


def _kept_share(excess: float, weight: float) -> float:
    """S / (S + 1 − w). Both vanish only where p = q, and then nothing is left to keep."""
    spread = excess + 1.0 - weight
    return excess / spread if spread > 0 else 0.0


def _stop(tree: DraftTree, path: list[int], p: Law, random: RandomSource, position: int) -> Acceptance:
    """End at the last node of ``path`` with a token from what is left of p there."""
    node = path[-1]
    if not tree.children[node]:
        return Acceptance(tuple(path), random.draw(p, Purpose.TARGET, position + len(path)), "bonus")
    return Acceptance(tuple(path), random.draw(p, Purpose.RESIDUAL, position, node), "correction")


_CHAIN = frozenset({Proposal.SAMPLED_CHAIN, Proposal.POINT_MASS})
_SAMPLED = frozenset({Proposal.SAMPLED_CHAIN, Proposal.SAMPLED_IID, Proposal.SAMPLED_WITHOUT_REPLACEMENT})
_DISTINCT = Proposal.SAMPLED_WITHOUT_REPLACEMENT

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        # Matching never reads q, so it is exact for every way of drafting; coupled drafts agree with it most.
        Rule("drafter-invariant", match_target_draws, frozenset(Proposal), Proposal.COUPLED, same_tokens=True),
        # Not coupled: those drafts hold the very noise that the bonus draw uses.
        Rule("point-mass", try_children, frozenset(Proposal) - {Proposal.COUPLED}, Proposal.POINT_MASS),
        Rule("rejection", reject_and_resample, _CHAIN, Proposal.SAMPLED_CHAIN, chains_only=True),
        # Not point-mass: reading q as if top-k children had been drawn from it is biased (total variation up to 0.7).
        Rule("recursive-rejection", reject_and_resample, _SAMPLED, _DISTINCT),
        Rule("block", verify_block, _CHAIN, Proposal.SAMPLED_CHAIN, chains_only=True),
        Rule("traversal", traverse, _SAMPLED, _DISTINCT),
    )
}


def get_rule(name: str) -> Rule:
    """An exact rule by name.

    Raises:
        Incompatible: there is none; the message lists the names.
    """
    if name not in RULES:
        raise Incompatible(f"no exact acceptance rule is called {name!r}; choose one of {', '.join(RULES)}")
    return RULES[name]
