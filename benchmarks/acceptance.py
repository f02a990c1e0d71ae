"""What same-tokens costs against same-law: tokens per verify pass of every rule, and what coupled drafting gains.

    python benchmarks/acceptance.py [--layers 27] [--tokens 400] [--temperature 1.0] [--json]

The draft model is the default target's own first layers, so that its law is close to the target's without training.
Every row decodes the same planning prompts with the same seeds and the same number of draft nodes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys

from drafters.draft_model import ModelDrafter
from spec_planner.certify.enumeration import rule_error
from spec_planner.cli.certify import read_instructions
from spec_planner.config import PlannerConfig
from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_tree import Proposal
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.decoding.stopping import Stopping
from spec_planner.factory import build_pipeline

DEPTH = 4
# rule, how drafts are drawn, siblings per position
ROWS = (
    ("drafter-invariant", Proposal.COUPLED, 1),
    ("drafter-invariant", Proposal.SAMPLED_CHAIN, 1),
    ("drafter-invariant", Proposal.POINT_MASS, 1),
    ("rejection", Proposal.SAMPLED_CHAIN, 1),
    ("block", Proposal.SAMPLED_CHAIN, 1),
    ("drafter-invariant", Proposal.COUPLED, 2),
    ("drafter-invariant", Proposal.SAMPLED_WITHOUT_REPLACEMENT, 2),
    ("point-mass", Proposal.POINT_MASS, 2),
    ("recursive-rejection", Proposal.SAMPLED_WITHOUT_REPLACEMENT, 2),
    ("traversal", Proposal.SAMPLED_WITHOUT_REPLACEMENT, 2),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=27, help="layers of the draft model")
    parser.add_argument("--tokens", type=int, default=400, help="tokens per row")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pipeline = build_pipeline(PlannerConfig(drafter="none"), lambda line: print(line, file=sys.stderr))
    prompts = [pipeline.prompt_ids(instruction) for instruction in read_instructions(None)]
    net = pipeline.target.first_layers(options.layers, 2048)
    rows = []
    for name, proposal, siblings in ROWS:
        rule = dataclasses.replace(RULES[name], drafting=proposal)
        lengths = acceptance_lengths(pipeline, net, rule, siblings, prompts, options)
        error = statistics.stdev(lengths) / len(lengths) ** 0.5
        rows.append(
            {
                "rule": name,
                "drafts": proposal.value,
                "shape": "chain" if siblings == 1 else f"tree, {siblings} per position",
                "promise": "same tokens" if rule.same_tokens else "same law",
                "tokens_per_pass": round(statistics.mean(lengths), 3),
                "standard_error": round(error, 3),
                "passes": len(lengths),
                "rule_error": rule_error(rule, SamplingParams(options.temperature)),
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps({"layers": options.layers, "depth": DEPTH, "temperature": options.temperature, "rows": rows}))
        return
    print("| rule | drafts | shape | promise | tokens per pass |\n|---|---|---|---|---|")
    for row in rows:
        figure = f"{row['tokens_per_pass']:.2f} ± {row['standard_error']:.2f}"
        print(f"| {row['rule']} | {row['drafts']} | {row['shape']} | {row['promise']} | {figure} |")


def acceptance_lengths(pipeline, net, rule, siblings: int, prompts, options) -> list[int]:
    """Tokens of every verify pass until ``options.tokens`` tokens are out; passes cut short by a stop are left out."""
    drafter = ModelDrafter(net, siblings)
    lengths: list[int] = []
    for turn in range(10 * len(prompts)):
        sampling = SamplingParams(options.temperature, seed=turn)
        stopping = Stopping(40, pipeline.stop_ids)
        prompt = PromptInput(prompts[turn % len(prompts)])
        for step in decode(pipeline.target, drafter, prompt, sampling, stopping, rule, budget=lambda: DEPTH * siblings):
            if step.acceptance and step.metrics.num_drafted == DEPTH * siblings:
                lengths.append(step.acceptance.acceptance_length)
        if sum(lengths) >= options.tokens:
            return lengths
    return lengths


if __name__ == "__main__":
    main()
