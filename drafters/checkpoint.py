"""Read published drafter checkpoints as they are: which kind it is, its config, its tensors, none of them left over.

A weight that is silently not loaded makes a drafter that runs and guesses badly, so every mismatch is an error.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

_LISTED = 8  # names an error shows before it says how many more there are
_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLE = ("model.safetensors", "medusa_lm_head.safetensors", "pytorch_model.bin", "medusa_lm_head.pt")
KINDS = ("medusa", "eagle1", "eagle3", "dflash", "dflash2", "mtp", "mtp-parallel", "draft-model")


class CheckpointError(ValueError):
    """A drafter checkpoint cannot be used; the message says what is wrong, where, and what to do."""


def read_config(directory: Path) -> dict[str, Any]:
    """``directory/config.json`` as it is.

    Raises:
        CheckpointError: there is none, or it is no JSON object.
    """
    path = Path(directory) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"no config.json in {directory}: give the directory of a drafter checkpoint") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}): copy the checkpoint again") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} does not hold a JSON object: copy the checkpoint again")
    return config


def read_tensors(source: Path, keep: Callable[[str], bool] | None = None) -> dict[str, torch.Tensor]:
    """Tensors by name from a checkpoint directory or one of its files, on the CPU.

    Safetensors first, with or without a shard index, memory-mapped; else torch files, read without running code.

    Args:
        keep: which names to read (an MTP module lies inside its target's checkpoint); by default all.

    Raises:
        CheckpointError: no weight file, an unreadable one, or one that holds more than named tensors.
    """
    found: dict[str, torch.Tensor] = {}
    for path in weight_files(Path(source)):
        if path.suffix == ".safetensors":
            try:
                with safe_open(path, framework="pt") as file:
                    names = [name for name in file.keys() if keep is None or keep(name)]  # noqa: SIM118 (no mapping)
                    found.update({name: file.get_tensor(name) for name in names})
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} cannot be read ({error}): copy the file again") from error
        else:
            loaded = _load_torch(path)
            found.update({name: tensor for name, tensor in loaded.items() if keep is None or keep(name)})
    return found


def tensor_names(source: Path) -> list[str]:
    """Names of all tensors of a checkpoint, without reading safetensors data.

    Raises:
        CheckpointError: as ``read_tensors``.
    """
    names: list[str] = []
    for path in weight_files(Path(source)):
        if path.suffix != ".safetensors":
            names += _load_torch(path)
            continue
        try:
            with safe_open(path, framework="pt") as file:
                names += file.keys()
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}): copy the file again") from error
    return names


def load_strict(
    module: torch.nn.Module,
    tensors: Mapping[str, torch.Tensor],
    rename: Callable[[str], str],
    source: Path,
    ignore: Iterable[str] = (),
) -> None:
    """Give ``module`` every tensor it has a place for, in the dtype of that place; nothing may be missing or left over.

    A module built on the ``meta`` device takes the tensors themselves, so no weight exists twice.

    Args:
        rename: checkpoint name → name in ``module.state_dict()``.
        source: where the tensors came from, for the error.
        ignore: checkpoint names, or patterns such as ``*.inv_freq``, to leave aside.

    Raises:
        CheckpointError: names what is missing, unexpected or mis-shaped, with both shapes; ``module`` is unchanged.
    """
    wanted = module.state_dict()
    patterns = tuple(ignore)
    given: dict[str, torch.Tensor] = {}
    problems: list[str] = []
    for name, tensor in tensors.items():
        if any(fnmatch(name, pattern) for pattern in patterns):
            continue
        place = rename(name)
        if place not in wanted:
            problems.append(f"unexpected {name} {list(tensor.shape)}")
        elif place in given:
            problems.append(f"{name} is a second {place}")
        elif tensor.shape != wanted[place].shape:
            problems.append(f"{name} is {list(tensor.shape)}, expected {list(wanted[place].shape)}")
        elif tensor.is_floating_point() != wanted[place].is_floating_point():
            problems.append(f"{name} is of type {tensor.dtype}, expected {wanted[place].dtype}")
        given[place] = tensor
    problems = [f"missing {name} {list(wanted[name].shape)}" for name in wanted if name not in given] + problems
    if problems:
        more = f"; and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
        raise CheckpointError(
            f"the tensors in {source} do not make a {type(module).__name__} ({'; '.join(problems[:_LISTED])}{more}): "
            f"use a complete checkpoint of this kind with its own config.json"
        )
    placed = {}
    for name, place in wanted.items():
        device = given[name].device if place.is_meta else place.device
        placed[name] = given[name].to(device=device, dtype=place.dtype)
    module.load_state_dict(placed, assign=True)


def detect(directory: Path) -> str:
    """Which of ``KINDS`` a checkpoint directory holds, by its tensor names, else by its config.json.

    Names come first: published configs of EAGLE and Medusa heads often say no more than ``LlamaForCausalLM``.

    Raises:
        CheckpointError: unreadable, or of no kind known here.
    """
    directory = Path(directory)
    names = {re.sub(r"^(model|draft_model|eagle_module)\.", "", name) for name in tensor_names(directory)}
    config = read_config(directory) if (directory / "config.json").is_file() else {}
    for pattern, family in _UNSUPPORTED:
        if any(re.match(pattern, name) for name in names):
            raise CheckpointError(
                f"{directory} holds a {family} drafter, which is not supported: use {', '.join(KINDS)}"
            )
    kind = _kind_by_names(names) or _kind_by_config(config)
    if kind is None:
        raise CheckpointError(
            f"{directory} is of no drafter kind known here (architectures {config.get('architectures')}, model_type "
            f"{config.get('model_type')!r}, tensors {', '.join(sorted(names)[:_LISTED])}): use {', '.join(KINDS)}"
        )
    return kind


# Tensors that only drafters not supported here have.
_UNSUPPORTED = (
    (r"prefix_gru\.", "Domino"),
    (r"(markov_head|logit_head)\.", "DSpark"),
    (r"mask_hidden$", "P-EAGLE"),
)
# First match wins; every pattern of a row must match some name.
_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("dflash2", (r"candidate_selector\.",)),
    ("medusa", (r"\d+\.0\.linear\.weight$",)),
    ("medusa", (r"(medusa_heads?|blocks)\.\d+\..*linear\.weight$",)),
    ("mtp-parallel", (r"extra_heads\.\d+\.",)),
    ("mtp", (r"mtp(_layers)?\.",)),
    ("mtp", (r"(layers\.\d+\.)?eh_proj\.weight$",)),
    ("eagle3", (r"midlayer\.",)),
    ("eagle3", (r"layers\.0\.hidden_norm\.weight$",)),
    ("dflash", (r"hidden_norm\.weight$", r"fc\.weight$")),
    ("eagle1", (r"(fc|fusion_fc)\.weight$", r"(layers\.0|transformer)\.")),
)
_DECODER = re.compile(r"layers\.\d+\.(self_attn|mlp|input_layernorm|post_attention_layernorm)\.|norm\.weight$")


def _kind_by_names(names: set[str]) -> str | None:
    for kind, patterns in _NAMES:
        if all(any(re.match(pattern, name) for name in names) for pattern in patterns):
            return kind
    # A whole language model has an embedding besides; a distilled draft model borrows the target's.
    if "norm.weight" in names and all(_DECODER.match(name) for name in names):
        return "draft-model"
    return None


def _kind_by_config(config: Mapping[str, Any]) -> str | None:
    says = [config.get("speculators_model_type"), config.get("model_type"), *(config.get("architectures") or ())]
    said = " ".join(str(word).lower().replace("-", "") for word in says if word)
    for word, kind in (("dflash2", "dflash2"), ("dflash", "dflash"), ("eagle3", "eagle3"), ("medusa", "medusa"),
                       ("mtp", "mtp"), ("nextn", "mtp"), ("eagle", "eagle1")):  # fmt: skip
        if word in said:
            return kind
    return "medusa" if "medusa_num_heads" in config else None


def weight_files(source: Path) -> list[Path]:
    """The files that hold the weights of ``source``, a directory or one file.

    Raises:
        CheckpointError: there is none, shards are missing, or several files leave it open which is meant.
    """
    if source.is_file():
        return [source]
    for name in _INDICES:
        index = source / name
        if index.is_file():
            return _shards(index)
    for name in _SINGLE:
        if (source / name).is_file():
            return [source / name]
    for pattern in ("*.safetensors", "*.bin", "*.pt", "*.pth"):
        files = sorted(source.glob(pattern))
        if len(files) > 1:
            raise CheckpointError(
                f"{source} holds {len(files)} {pattern} files and no index: name the file that is meant"
            )
        if files:
            return files
    raise CheckpointError(
        f"{source} holds no weights (*.safetensors, *.bin, *.pt): give a drafter checkpoint directory"
    )


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        paths = [index.parent / name for name in names]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index} is not a shard index ({error!r}): copy the checkpoint again") from error
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise CheckpointError(f"{index.parent} lacks {', '.join(missing[:_LISTED])}: copy the whole checkpoint again")
    return paths


def _load_torch(path: Path) -> dict[str, torch.Tensor]:
    """A torch file of named tensors; anything that could run code on loading is refused by ``weights_only``."""
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        first = str(error).splitlines()[0] if str(error) else repr(error)
        raise CheckpointError(f"{path} cannot be read as plain weights ({first}): convert it to safetensors") from error
    if isinstance(loaded, Mapping) and isinstance(loaded.get("state_dict"), Mapping):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, Mapping) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise CheckpointError(f"{path} holds more than named tensors: give the state dict of the drafter alone")
    return dict(loaded)
