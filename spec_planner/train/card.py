"""``README.md`` beside a trained drafter: how it was made, and what it is worth."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..learning.schedule import lowered
from .responses import Response


def count_responses(responses: Sequence[Response]) -> dict[str, dict[str, int]]:
    """Domain → split → answers."""
    found: dict[str, dict[str, int]] = {}
    for (domain, split), count in sorted(Counter((each.domain, each.split) for each in responses).items()):
        found.setdefault(domain, {})[split] = count
    return found


def card_text(summary: Mapping[str, Any], command: Sequence[str]) -> str:
    """From the summary of ``run.train``."""
    real, data, answers = summary["measured"], summary["responses"], summary["answers"]
    most = summary["options"].get("evaluated_anchors")
    lines = [
        f"# Drafter {summary['drafter']} for {summary['target']}",
        "",
        f"Trained for {summary['minutes']:.1f} minutes on {summary['device']} in {summary['dtype']} "
        f"({summary['tokens']:,} tokens in {summary['steps']} steps, shared prefixes counted once; "
        f"{summary['parameters']:,} parameters learnt, {summary['bytes']:,} bytes stored), by this command:",
        "",
        f"    {shlex.join(command)}",
        "",
        "## Measured",
        f"Greedy decoding of {real['prompts']} prompts of {', '.join(real['splits'])}, none of them learned from, "
        f"{real['num_draft_tokens']} draft tokens, chains, {real['engine']} {real['precision']}; tokens identical to "
        f"plain decoding: {'yes' if summary['identical'] else 'no'}. Tokens per pass include those that the grammar "
        "forces, which need no drafter.",
        "",
        "| drafter | tokens per verify pass | passes that kept at least 1, 2, … drafts |",
        "|---|---|---|",
    ]
    for name, run in real["runs"].items():
        lines.append(f"| {name} | {run['acceptance_length']:.2f} | {_shares(run['by_depth'])} |")
    lines += [
        "",
        "## Training",
        "Validation: answers of split `validation`, "
        + (f"at most {most} anchors a pack, evenly spaced" if most else "every position an anchor")
        + ", greedy chains, no grammar. Loss and validation loss are not to be compared: training may sample "
        "vocabulary and anchors and add noise, validation does not.",
        "",
        "| step | seconds | loss | validation loss | tokens per pass | chance that k drafts are right |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each['step']} | {each['seconds']:.0f} | {each.get('loss', '')} | {each['validation_loss']} | "
        f"{each['acceptance_length']:.2f} | {_shares(each['by_depth'])} |"
        for each in summary["evaluations"]
    ]
    splits = sorted({split for counts in data.values() for split in counts})
    lines += [
        "",
        "## Data",
        f"Answers of the target itself, at most {answers['max_tokens']} tokens each, at temperatures "
        f"{', '.join(f'{value:g}' for value in answers['temperatures'])} in turn, by domain and split:",
        "",
        f"| | {' | '.join(splits)} |",
        f"|---|{'---|' * len(splits)}",
    ]
    lines += [f"| {name} | {' | '.join(str(counts.get(s, 0)) for s in splits)} |" for name, counts in data.items()]
    options = {f"option {name}": value for name, value in summary["options"].items()}
    recipe = {**options, **summary["recipe"], **summary["schedule"], **lowered(summary["rates"])}
    lines += ["", "## Recipe", *(f"- {name}: {value}" for name, value in recipe.items() if value is not None), ""]
    return "\n".join(lines)


def _shares(shares: Sequence[float]) -> str:
    return " ".join(f"{share:.2f}" for share in shares)
