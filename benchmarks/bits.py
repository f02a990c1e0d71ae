"""Which passes compute a position's logits to the same last bit: by pass width and by KV extent.

    python benchmarks/bits.py [--engine torch] [--precision float32] [--positions 160] [--json]

A real plan is fed once token by token (plain) and once in drafts of mixed length, partly wrong, of which one to eight
tokens are committed (speculative). At every position the two rows of logits are compared bit by bit. Four ways to
shape the passes: one width and KV extents in steps of 512 (what ``exactness: bitwise`` does); one width and smaller
steps; any width. The prompt is repeated or cut to 180 tokens, so that the extents pass 192 … 384, where torch's steps
of 64 fail.
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np

from spec_planner.config import PlannerConfig
from spec_planner.decoding.contracts import PromptInput, Target
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.engines import passes
from spec_planner.factory import build_pipeline
from spec_planner.pipeline.types import PlanRequest

INSTRUCTION = "Bring the red mug and the plate from the table to the sink, then wipe the table."
WIDTH = 8
COMMITS = (1, 3, 8, 2, 5)
PROMPT_TOKENS = 180
CASES = {  # pass width (None: any), extent step
    "one width, extents in steps of 512": (WIDTH, passes.BITWISE_EXTENT_STEP),
    "one width, extents in steps of 64": (WIDTH, 64),
    "one width, extents as they fall": (WIDTH, 1),
    "any width, extents in steps of 64": (None, passes.EXTENT_STEP),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--positions", type=int, default=160)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for name, (width, step) in CASES.items():
        passes.EXTENT_STEP = passes.BITWISE_EXTENT_STEP = step
        config = PlannerConfig(
            model=options.model,
            drafter="none",
            engine=options.engine,
            precision=options.precision,
            threads=options.threads,
            context_length=1024,
            exactness="bitwise" if width else "tokens",
            num_draft_tokens=WIDTH - 1,
        )
        pipeline = build_pipeline(config, lambda line: print(line, file=sys.stderr))
        request = PlanRequest(INSTRUCTION, SamplingParams(), 64, free_text=True)
        prompt, _ = pipeline.asked(request)
        prompt = (prompt * (PROMPT_TOKENS // len(prompt) + 1))[-PROMPT_TOKENS:]
        plain = feed_one_by_one(pipeline.target, prompt, options.positions)
        drafted = feed_in_drafts(pipeline.target, prompt, [int(row.argmax()) for row in plain])
        engine = {"engine": pipeline.info.engine, "precision": options.precision}
        rows.append({"passes": name, **engine, **compare(plain, drafted)})
        pipeline.close()
    if options.json:
        print(json.dumps(rows))
        return
    print("| passes | engine | rows equal in bits | largest difference of a logit | greedy tokens that differ |")
    print("|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['passes']} | {row['engine']}, {row['precision']} | {row['equal']} of {row['positions']} "
            f"| {row['largest']:.3g} | {row['flips']} |"
        )


def feed_one_by_one(target: Target, prompt: tuple[int, ...], positions: int) -> list[np.ndarray]:
    """Greedy plain decoding, past any stop; the logits at each position."""
    target.truncate(0)
    rows = [target.extend(PromptInput(prompt)).logits_row(0).copy()]
    while len(rows) < positions:
        output = target.verify(DraftTree.root(int(rows[-1].argmax())))
        rows.append(output.logits_row(0).copy())
        target.commit((0,))
    return rows


def feed_in_drafts(target: Target, prompt: tuple[int, ...], tokens: list[int]) -> list[np.ndarray]:
    """The same tokens in verify passes over drafts whose tail is wrong."""
    target.truncate(0)
    rows = [target.extend(PromptInput(prompt)).logits_row(0).copy()]
    done, turn = 0, 0
    while len(rows) < len(tokens):
        right = tokens[done : done + min(COMMITS[turn % len(COMMITS)], len(tokens) - 1 - done)]
        wrong = [(token * 7 + 11) % target.info.vocabulary_size for token in tokens[: WIDTH - len(right)]]
        output = target.verify(DraftTree.chain(right + wrong[: turn % (len(wrong) + 1)]))
        rows += [output.logits_row(node).copy() for node in range(len(right))]
        target.commit(tuple(range(len(right))))
        done, turn = done + len(right), turn + 1
    return rows


def compare(plain: list[np.ndarray], drafted: list[np.ndarray]) -> dict:
    pairs = list(zip(plain, drafted, strict=True))
    return {
        "positions": len(pairs),
        "equal": sum(bool(np.array_equal(a, b)) for a, b in pairs),
        "largest": max(float(np.abs(a - b).max()) for a, b in pairs),
        "flips": sum(a.argmax() != b.argmax() for a, b in pairs),
    }


if __name__ == "__main__":
    main()
