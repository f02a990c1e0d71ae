"""What a drafter's checkpoint will take in memory, from the headers of its files, before anything is loaded.

weights   what the loader of its kind takes, in the target's compute type; a copy of the target's is not kept, but
          where the drafter reads few tokens of the head, a copy of their rows is (``draft_head.py``)
cache     keys and values of every attention layer; it grows by doubling, to at most twice what the context needs
states    a hidden state per token, where the kind keeps them
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from .checkpoint import CheckpointError, detect, read_config, read_tensors, weight_files
from .draft_head import read_draft_tokens
from .nets.layers import is_copy

_KEYS = re.compile(r"(?:.*\.)?(?:k_proj|attention\.wk)\.weight")  # a row for every value of a key
_LATENT = re.compile(r"(?:.*\.)?kv_a_proj_with_mqa\.weight")  # which stands for key and value
_EAGLE = ("eagle1", "eagle3")
_STATES = {"medusa": 1, "mtp": 1, "mtp-parallel": 1, "eagle1": 2, "eagle3": 2}  # per token; 2: they grow by doubling
# No loader keeps these: tables, maps, and copies of the target's embedding and head.
_LEFT_ASIDE = ("*.inv_freq", "d2t", "t2d", "verifier_*")
_LENT = ("*embed_tokens.weight", "*lm_head.weight", "*shared_head.head.weight")
# A whole target's checkpoint may hold the drafter: of such a one, what is named so.
_PARTS = {
    "medusa": r"(?:(?:model\.)?medusa_heads?\.)?\d+\.\d+\..*|(?:blocks|lm_heads)\.\d+\..*",
    "mtp": r"(?:model\.)?(?:mtp|mtp_layers\.\d+)\..*|(?:model\.)?(?:language_model\.)?layers\.(?P<layer>\d+)\..*",
    "mtp-parallel": r"(?:model\.)?extra_heads\..*",
}


def checkpoint_bytes(directory: Path, target: Path, precision: str, rows: int) -> int:
    """Most that the drafter in ``directory`` will report as ``own_bytes``; with ``rows`` 0, what it reports at first.

    Args:
        target: the target's directory; what of its weights the drafter has a copy of is borrowed.
        precision: the target's.
        rows: tokens of context, those of a draft among them.

    Raises:
        CheckpointError: it is no drafter checkpoint, or one of the files cannot be read.
    """
    kind = detect(directory)
    config = read_config(directory) if (directory / "config.json").is_file() else {}
    shapes = {name: shape for name, shape in _shapes(directory) if _is_own(name, kind, config)}
    size = int(read_config(target)["vocab_size"])
    kept = read_draft_tokens(directory, size) or range(size)
    if len(kept) < size:  # their rows, and no copy of the head that EAGLE-1 may bring
        shapes = {name: shape for name, shape in shapes.items() if not name.endswith("lm_head.weight")}
    named = getattr(torch, precision, None)
    dtype = named if isinstance(named, torch.dtype) and named.is_floating_point else torch.float32
    quantized = dtype is not named
    if kind in _EAGLE and not quantized:  # rounded to integers, the target's weights are not what was copied
        for name in [name for name in shapes if _is_copy(name, kind, directory, target, dtype)]:
            del shapes[name]
    hidden_size = int(config.get("hidden_size") or read_config(target)["hidden_size"])
    values = sum(map(math.prod, shapes.values()))
    if len(kept) < size:
        values += len(kept) * hidden_size
    cached = sum((2 if _KEYS.fullmatch(name) else bool(_LATENT.fullmatch(name))) * shapes[name][0] for name in shapes)
    states = _STATES.get(kind, 0) * hidden_size
    return (values + rows * (2 * cached + states)) * dtype.itemsize


def lent_names(directory: Path) -> tuple[str, ...]:
    """Which of the target's embedding and head the drafter in ``directory`` asks for, all of it or a few rows.

    Raises:
        CheckpointError: as ``checkpoint_bytes``.
    """
    kind = detect(directory)
    if kind == "medusa":
        return ("head",)
    own_head = kind == "eagle3" and any(name.endswith("lm_head.weight") for name, _ in _shapes(directory))
    return ("embedding",) if own_head else ("embedding", "head")


def _is_own(name: str, kind: str, config: Mapping[str, Any]) -> bool:
    if any(fnmatch(name, pattern) for pattern in (_LEFT_ASIDE if kind in _EAGLE else (*_LEFT_ASIDE, *_LENT))):
        return False
    part = re.fullmatch(_PARTS.get(kind, ".*"), name)
    layer = part and part.groupdict().get("layer")
    return bool(part) and (layer is None or int(layer) >= _num_layers(config))


def _num_layers(config: Mapping[str, Any]) -> int:
    """Layers of the target that a checkpoint holds; the modules are numbered on from there."""
    return int((config.get("text_config") or config).get("num_hidden_layers", 0))


def _is_copy(name: str, kind: str, directory: Path, target: Path, dtype: torch.dtype) -> bool:
    """Whether a tensor is the target's embedding or head, rounded as it is."""
    if name.endswith("embed_tokens.weight"):
        sources = ["model.embed_tokens.weight"]
    elif kind == "eagle1" and name.endswith("lm_head.weight"):
        sources = ["lm_head.weight", "model.embed_tokens.weight"]  # the latter where they are tied
    else:
        return False
    there = read_tensors(target, sources.__contains__)
    theirs = next((there[source] for source in sources if source in there), torch.empty(0))
    ours = read_tensors(directory, name.__eq__)[name]
    return is_copy(ours, theirs, dtype)


def _shapes(directory: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    for path in weight_files(directory):
        if path.suffix != ".safetensors":  # has no header
            yield from ((name, tuple(tensor.shape)) for name, tensor in read_tensors(path).items())
            continue
        try:
            with safe_open(path, framework="pt") as file:
                yield from [(name, tuple(file.get_slice(name).get_shape())) for name in file.keys()]  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}): copy the file again") from error
