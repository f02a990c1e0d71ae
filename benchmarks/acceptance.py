"""What same-tokens costs against same-law, and what coupled drafting gains.

    python benchmarks/acceptance.py [--layers 27] [--runs 12] [--cycles 60] [--temperature 1.0] [--json]

Target: the default model. Draft model: the target's own first layers, so that its law is near the target's without
training. Two tables, with standard errors over positions of plain sampled plans:

1. the chance that a cycle keeps its first draft token (one candidate, or two siblings), from p and q at every position,
   in closed form or over simulated noise;
2. tokens per verify pass of whole drafts, 4 positions deep: at every few positions a draft of each kind is made and
   verified once, and the rules that may judge it are run on it with many streams of coins.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import sys
from collections.abc import Callable

import numpy as np

from drafters.draft_model import ModelDrafter
from spec_planner.certify.planner import read_instructions
from spec_planner.certify.recording import Question, record, score
from spec_planner.config import PlannerConfig
from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_sampler import RunDraftSampler
from spec_planner.decoding.draft_tree import Proposal
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.random_stream import Purpose, RandomStream
from spec_planner.decoding.sampling import Law, SamplingParams
from spec_planner.factory import build_pipeline
from spec_planner.pipeline.types import PlanRequest

DRAWS = 32  # noise vectors per position, where there is no closed form
Chance = Callable[[Law, Law, int], float]  # p, q, position → chance that a draft token is kept


def overlap(p: Law, q: Law) -> float:
    return float(np.minimum(p.probabilities, q.probabilities_of(p.ids)).sum())


def coupled(siblings: int) -> Chance:
    """The target's draw is among the draft's first ``siblings`` under the same noise."""

    def chance(p: Law, q: Law, position: int) -> float:
        kept = 0
        for seed in range(DRAWS):
            stream = RandomStream(seed)
            scores = stream.scores(q, Purpose.TARGET, position)
            best = q.ids[np.argpartition(scores, -siblings)[-siblings:]] if len(scores) > siblings else q.ids
            kept += stream.draw(p, Purpose.TARGET, position) in best
        return kept / DRAWS

    return chance


def independent(p: Law, q: Law, position: int) -> float:
    return float((p.probabilities * q.probabilities_of(p.ids)).sum())


def likeliest(siblings: int) -> Chance:
    def chance(p: Law, q: Law, position: int) -> float:
        best = q.ids[np.argsort(-q.probabilities, kind="stable")[:siblings]]
        return float(p.probabilities_of(np.sort(best)).sum())

    return chance


def recursive(p: Law, q: Law, position: int) -> float:
    """Rejection of two siblings drawn without replacement: the second is judged against what the first left of p."""
    first = overlap(p, q)
    excess, shortfall = p.excess(q), q.excess(p)
    if first > 1 - 1e-12 or shortfall.sum() <= 0:
        return first
    rest, rejected = p.reweighted(excess), q.reweighted(shortfall)
    draws = [RandomStream(seed).draw(rejected, Purpose.DRAFT, position) for seed in range(DRAWS)]
    second = [overlap(rest, left) if (left := q.without(token)) else 0.0 for token in draws]
    return first + (1 - first) * statistics.mean(second)


ROWS: tuple[tuple[str, str, str, int, Chance], ...] = (
    # rule, drafts, promise, siblings, chance
    ("drafter-invariant", "coupled", "same tokens", 1, coupled(1)),
    ("drafter-invariant", "likeliest", "same tokens", 1, likeliest(1)),
    ("drafter-invariant", "drawn independently", "same tokens", 1, independent),
    ("rejection, block, traversal", "drawn independently", "same law", 1, lambda p, q, position: overlap(p, q)),
    ("drafter-invariant", "coupled", "same tokens", 2, coupled(2)),
    ("drafter-invariant, point-mass", "likeliest", "same tokens, same law", 2, likeliest(2)),
    ("recursive-rejection", "drawn without replacement", "same law", 2, recursive),
)


# drafts, siblings per position, the rules that judge such a draft
CYCLES: tuple[tuple[Proposal, int, tuple[str, ...]], ...] = (
    (Proposal.COUPLED, 1, ("drafter-invariant",)),
    (Proposal.SAMPLED_CHAIN, 1, ("drafter-invariant", "rejection", "block")),
    (Proposal.COUPLED, 2, ("drafter-invariant",)),
    (Proposal.SAMPLED_WITHOUT_REPLACEMENT, 2, ("drafter-invariant", "recursive-rejection", "traversal")),
)
DEPTH, EVERY = 4, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=27, help="layers of the draft model")
    parser.add_argument("--runs", type=int, default=12, help="plans to take positions from")
    parser.add_argument("--cycles", type=int, default=60, help="positions to draft from for the second table")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pipeline = build_pipeline(PlannerConfig(drafter="none"), lambda line: print(line, file=sys.stderr))
    net = pipeline.target.first_layers(options.layers, 2048)
    plans = list(sampled_plans(pipeline, options))
    first = first_tokens(pipeline, net, plans)
    cycles = whole_drafts(pipeline, net, plans, options.cycles)
    if options.json:
        print(json.dumps({"layers": options.layers, "first_token": first, "cycles": cycles}))
        return
    print(f"temperature {options.temperature:g}, {options.layers} layers, {first[0]['positions']} positions\n")
    print("| rule | drafts | promise | candidates | chance that one is kept |\n|---|---|---|---|---|")
    for row in first:
        print(f"| {row['rule']} | {row['drafts']} | {row['promise']} | {row['candidates']} | {figure(row)} |")
    print(f"\n{DEPTH} positions deep, {cycles[0]['positions']} drafts each\n")
    print("| rule | drafts | siblings | tokens per verify pass |\n|---|---|---|---|")
    for row in cycles:
        print(f"| {row['rule']} | {row['drafts']} | {row['siblings']} | {figure(row)} |")


def first_tokens(pipeline, net, plans) -> list[dict]:
    chances: list[list[float]] = [[] for _ in ROWS]
    for prompt, sampling, plain in plans:
        for target_row, draft_row in zip(plain.rows, score(net, Question(prompt), plain.tokens), strict=True):
            p, q = Law.from_logits(target_row, sampling), Law.from_logits(draft_row, sampling)
            for row, found in zip(ROWS, chances, strict=True):
                found.append(row[-1](p, q, len(found)))
    return [
        {"rule": rule, "drafts": drafts, "promise": promise, "candidates": siblings, **spread(found)}
        for (rule, drafts, promise, siblings, _), found in zip(ROWS, chances, strict=True)
    ]


def whole_drafts(pipeline, net, plans, wanted: int) -> list[dict]:
    lengths: dict[tuple[str, str, int], list[float]] = {}
    places = [(plan, cut) for plan in plans for cut in range(1, len(plan[2].tokens) - 1, EVERY)][:wanted]
    for seed, ((prompt, sampling, plain), cut) in enumerate(places):
        context, anchor = prompt + plain.tokens[:cut], plain.tokens[cut]
        pipeline.target.truncate(0)
        pipeline.target.extend(PromptInput(context))
        for proposal, siblings, names in CYCLES:
            rule = dataclasses.replace(RULES[names[0]], drafting=proposal)
            sampler = RunDraftSampler(rule, sampling, RandomStream(seed))
            sampler.anchor_position = len(context)
            drafter = ModelDrafter(net, siblings)
            drafter.observe(context, None)
            tree = drafter.draft((anchor,), DEPTH * siblings, sampler)
            output = pipeline.target.verify(tree)  # never committed
            laws = functools.cache(
                lambda node, output=output, sampling=sampling: Law.from_logits(output.logits_row(node), sampling)
            )
            for name in names:
                # A coupled draft knows the noise it is judged by: one stream. Others are independent of theirs: many.
                streams = [seed] if proposal is Proposal.COUPLED else range(1000, 1000 + DRAWS)
                kept = [RULES[name](tree, laws, RandomStream(s), len(context)).acceptance_length for s in streams]
                lengths.setdefault((name, proposal.value, siblings), []).append(statistics.mean(kept))
    return [
        {"rule": rule, "drafts": drafts, "siblings": siblings, **spread(found)}
        for (rule, drafts, siblings), found in lengths.items()
    ]


def spread(found: list[float]) -> dict:
    error = statistics.stdev(found) / len(found) ** 0.5
    return {"positions": len(found), "mean": round(statistics.mean(found), 4), "standard_error": round(error, 4)}


def figure(row: dict) -> str:
    return f"{row['mean']:.3f} ± {row['standard_error']:.3f}"


def sampled_plans(pipeline, options):
    """(prompt, sampling, recorded run) of plain sampled plans."""
    for seed, instruction in enumerate(read_instructions(None)[: options.runs]):
        sampling = SamplingParams(options.temperature, seed=seed)
        prompt, _ = pipeline.asked(PlanRequest(instruction, sampling, 40, free_text=True))
        rule, stop_ids = RULES["drafter-invariant"], pipeline.stop_ids
        yield prompt, sampling, record(pipeline.target, None, Question(prompt), sampling, 40, stop_ids, rule)


if __name__ == "__main__":
    main()
