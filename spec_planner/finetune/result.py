"""What a run leaves: the adapter in PEFT's format, in float16, and a card that says how it was made."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from drafters.training.medusa import MedusaTrainee

from ..engines.adapter import CONFIG, WEIGHTS, adapter_fingerprint
from ..learning.corpus import Corpus
from ..learning.files import RunError, write_whole
from ..learning.schedule import lowered
from ..train.result import write_drafter
from .adapted_model import AdaptedModel

CARD = "README.md"


def round_parameters(parameters: Mapping[str, nn.Parameter]) -> None:
    """Give them the values they are stored with, so that what is measured is what is kept."""
    for parameter in parameters.values():
        parameter.data.copy_(parameter.data.half().float())


def write_adapter(model: AdaptedModel, base_name: str, out: Path) -> None:
    """``adapter_config.json`` and ``adapter_model.safetensors``, each complete or not there."""
    tensors = {name: tensor.detach().half().cpu().contiguous() for name, tensor in model.adapter_state().items()}
    if not all(torch.isfinite(tensor).all() for tensor in tensors.values()):
        raise RunError("the adapter has values beyond float16: train again with a lower --learning-rate")
    with tempfile.TemporaryDirectory() as folder:
        model.adapter_config(base_name).save_pretrained(folder)
        config = json.loads((Path(folder) / CONFIG).read_text(encoding="utf-8"))
    config["target_modules"] = sorted(config["target_modules"])  # a set has another order every time
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    write_whole(out / WEIGHTS, lambda path: save_file(tensors, path, metadata={"format": "pt"}))
    write_whole(out / CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def write_heads(trainee: MedusaTrainee, summary: Mapping[str, Any], out: Path) -> None:
    """``drafter`` in ``out``, noted as for the target with the adapter that lies there merged in."""
    target = f"adapter-{adapter_fingerprint(out)}"  # its identity, as ``engines.identity`` says it
    note = {"drafter": "medusa", "steps": summary["steps"], "recipe": summary["recipe"], "target": target}
    write_drafter(trainee, out, note)


def write_card(out: Path, summary: dict[str, Any], corpus: Corpus, command: list[str]) -> None:
    """A model card from ``summary`` (see ``run.finetune``)."""
    counts = Counter((lesson.domain, lesson.split) for lesson in corpus.lessons)
    domains, splits = sorted({domain for domain, _ in counts}), sorted({split for _, split in counts})
    recipe = {**summary["recipe"], **summary["schedule"], **lowered(summary["rates"])}
    lines = [
        f"# LoRA adapter for {summary['target']}: plans in the format of spec_planner",
        "",
        f"Trained for {summary['minutes']:.1f} minutes on {summary['device']} in {summary['dtype']} "
        f"({summary['tokens']:,} tokens in {summary['steps']} steps, {summary['tokens_per_second']:.0f} tokens per "
        f"second, shared prefixes counted once), from this command:",
        "",
        f"    {shlex.join(command)}",
        "",
        "| | before | after |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {before} | {after} |" for name, (before, after) in summary["numbers"].items()]
    lines += [
        "",
        "Validation: tasks of split `validation`, none of them learned from; loss in nats per answer token; a plan is "
        "exact if greedy decoding repeats the expert's token by token. Perplexity: a fixed English prose text of "
        "`spec_planner/finetune/general_text.py`.",
        "",
        "## Data",
        f"Tasks `{corpus.fingerprint}` (hash of task and skill files), by domain and split:",
        "",
        f"| | {' | '.join(splits)} |",
        f"|---|{'---|' * len(splits)}",
    ]
    lines += [f"| {domain} | {' | '.join(str(counts[domain, split]) for split in splits)} |" for domain in domains]
    lines += _heads_lines(summary) if summary["heads"] else []
    lines += ["", "## Recipe", *(f"- {name}: {value}" for name, value in recipe.items() if value is not None), ""]
    write_whole(out / CARD, lambda path: path.write_text("\n".join(lines), encoding="utf-8"))


def _heads_lines(summary: dict[str, Any]) -> list[str]:
    heads, target = summary["heads"], summary["target"]
    lines = [
        "",
        "## Heads",
        f"`drafter/` holds {heads['num_heads']} Medusa heads ({heads['parameters']:,} parameters) that learned "
        f"together with the adapter (Medusa-2, 2401.10774). They began as heads for {target} as it was.",
        "",
        f"**{target} with this adapter is a new target: it says other things than {target} does.** Drafting with these "
        "heads is exact with respect to the new target, which says the same with them and without; it is no way to get "
        "the old one's words. The heads are for the new target only: any other one still says what it would say, but "
        "few of their drafts are kept.",
    ]
    if heads["by_depth"]:
        before, after = heads["by_depth"]
        lines += [
            "",
            f"Chance that the first k drafts of a chain are the expert's tokens, before (on {target} as it was) and "
            "after:",
            "",
            f"| k | {' | '.join(str(depth) for depth in range(1, len(after) + 1))} |",
            f"|---|{'---|' * len(after)}",
            f"| before | {' | '.join(f'{share:.2f}' for share in before)} |",
            f"| after | {' | '.join(f'{share:.2f}' for share in after)} |",
        ]
    return lines
