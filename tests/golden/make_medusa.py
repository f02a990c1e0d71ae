"""Writes medusa.json: what the published Medusa code makes of the tiny heads of ``tests/drafters/test_medusa.py``.

    git clone https://github.com/FasterDecoding/Medusa   (commit e2a5d20)
    python -m tests.golden.make_medusa path/to/Medusa

Its ``ResBlock`` and the functions of ``medusa/model/utils.py`` are run as they are; its model classes need a
transformers of 2023, so the heads are put together here the way ``MedusaModelABC`` does. No test imports this file.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path

import torch
from torch import nn

from tests.drafters.test_medusa import FORMS, GOLDEN, PROBED, ROUNDS, golden_tensors, hidden_states


def main(repository: Path) -> None:
    model = repository / "medusa" / "model"
    scope: dict = {"torch": torch, "nn": nn}
    source = (model / "medusa_model.py").read_text()
    block = next(node for node in ast.parse(source).body if getattr(node, "name", "") == "ResBlock")
    exec(ast.get_source_segment(source, block), scope)
    utils = _module(model / "utils.py")
    choices = _module(model / "medusa_choices.py").mc_sim_7b_63
    buffers = utils.generate_medusa_buffers(choices, device="cpu")
    written = {}
    for form, (heads, layers, own) in FORMS.items():
        tensors, lent = golden_tensors(form)
        parts = []
        for _ in range(heads):
            blocks = [scope["ResBlock"](lent.shape[1])] * layers
            parts.append(nn.Sequential(*blocks, *([nn.Linear(*lent.T.shape, bias=False)] if own else [])))
        net = nn.ModuleList(parts)
        net.load_state_dict(tensors, strict=True)
        rounds = []
        with torch.no_grad():
            for state, scores in hidden_states():
                results = torch.stack([head(state[None, None]) for head in net])
                logits = results if own else nn.functional.linear(results, lent)  # [K, 1, 1, V]
                _, tree = utils.generate_candidates(
                    logits, scores[None, None], buffers["tree_indices"], buffers["retrieve_indices"]
                )
                rounds.append({"tokens": tree[0].tolist(), "logits": logits[:, 0, 0, PROBED].tolist()})
        assert len(rounds) == ROUNDS
        written[form] = rounds
    GOLDEN.write_text(json.dumps({"made_by": "tests/golden/make_medusa.py, FasterDecoding/Medusa e2a5d20", **written}))


def _module(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(Path(sys.argv[1]))
