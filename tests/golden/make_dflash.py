"""Golden numbers of DFlash and DFlash 2, from the public implementation. Run once by hand; no test imports this.

    PYTHONPATH=. python tests/golden/make_dflash.py CHECKOUT

CHECKOUT is z-lab/dflash at 10129599 (it needs transformers 5.15 or newer, for caches that can be cropped). Weights,
hidden states and rounds are those that ``tests/drafters/dflash_support.py`` makes by seed. The
public model keeps its own cache over all rounds and crops it after each block as its own loop does; drafts are not
verified by a model here: how many tokens each round commits is fixed, so some blocks are accepted whole, some not.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from tests.drafters import dflash_support as made

HERE = Path(__file__).parent


def record(model_class, reference, directory: Path, temperature: float | None) -> list[dict]:
    """One entry per round: logits [B − 1, V] and, for DFlash 2, the path walked and what it was chosen from."""
    model = model_class.from_pretrained(directory, dtype=torch.float32).eval()
    embedding, weight = made.lent()
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    head.weight.data = weight
    cache, start, entries = reference._make_cache(model.config), 0, []
    scale = float(reference._draft_value(model.config, "input_embedding_scale", 1.0))
    with torch.inference_mode():
        for features, ids, anchor in made.rounds():
            begin, start = start, start + len(ids)
            block = torch.tensor([[anchor] + [model.mask_token_id] * (model.block_size - 1)])
            hidden = model(
                target_hidden=features.flatten(1)[None],
                noise_embedding=nn.functional.embedding(block, embedding) * scale,
                position_ids=torch.arange(begin, start + model.block_size)[None],
                past_key_values=cache,
                use_cache=True,
            )[:, 1:]
            reference._crop_to(cache, start)
            entry = {"logits": rounded(model.compute_logits(hidden, head)[0])}
            if temperature is not None:
                path, _, _ = model.propose(hidden, block[:, 0], head, 0.0)
                torch.manual_seed(start)
                drawn, candidates, q = model.propose(hidden, block[:, 0], head, temperature)
                entry |= {"greedy": path[0].tolist(), "drawn": drawn[0].tolist()}
                entry |= {"candidates": candidates[0].tolist(), "q": rounded(q[0])}
            entries.append(entry)
    return entries


def rounded(tensor: torch.Tensor) -> list:
    return [[round(value, 6) for value in row] for row in tensor.tolist()]


def main(checkout: str) -> None:
    sys.path.insert(0, checkout)
    from dflash import model as reference

    with tempfile.TemporaryDirectory() as scratch:
        for name, change in made.VARIANTS.items():
            directory = made.write_dflash(Path(scratch) / name, {**made.SMALL, **change})
            write(f"dflash_{name}", record(reference.DFlashDraftModel, reference, directory, None))
        directory = made.write_dflash2(Path(scratch) / "dflash2")
        write("dflash2", record(reference.DFlash2DraftModel, reference, directory, made.TEMPERATURE))


def write(name: str, entries: list[dict]) -> None:
    note = "made by make_dflash.py from z-lab/dflash 10129599, float32, transformers 5.24, torch 2.13"
    (HERE / f"{name}.json").write_text(json.dumps({"note": note, "rounds": entries}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
