"""Merge a LoRA adapter in PEFT's format into a checkpoint's weights, without PEFT: W + (alpha / r) · B A."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .decoder_config import ModelError

if TYPE_CHECKING:  # naming an adapter (``adapter_fingerprint``) needs no library
    from torch import Tensor

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<factor>[AB])\.weight")
# Variants of LoRA that compute something else; each is off when its field is absent, false or empty.
_VARIANTS = ("use_rslora", "use_dora", "use_qalora", "fan_in_fan_out", "alora_invocation_tokens", "megatron_config",
             "modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias", "trainable_token_indices",
             "target_parameters", "layer_replication", "exclude_modules", "arrow_config", "use_bdlora")  # fmt: skip


@dataclass(frozen=True)
class Adapter:
    """Low-rank updates by the name of the weight they change.

    Attributes:
        factors: weight name → A [rank, in] and B [out, rank], float32.
        scale: alpha / r.
        fingerprint: hash of the adapter's two files.
    """

    factors: dict[str, tuple[Tensor, Tensor]]
    scale: float
    fingerprint: str

    def merge(self, name: str, weight: Tensor) -> Tensor:
        """``weight`` with its update, in its own dtype; ``weight`` itself where the adapter has none.

        Raises:
            ModelError: the update has another shape.
        """
        if name not in self.factors:
            return weight
        a, b = self.factors[name]
        if (b.shape[0], a.shape[1]) != tuple(weight.shape):
            raise ModelError(
                f"the adapter changes {name} as {[b.shape[0], a.shape[1]]}, but it is {list(weight.shape)}: "
                f"use the adapter with the model it was trained on"
            )
        return (weight.float() + self.scale * (b @ a)).to(weight.dtype)


def adapter_fingerprint(directory: Path) -> str:
    """12 hexadecimal digits of a hash over the adapter's two files.

    Raises:
        ModelError: a file is missing.
    """
    digest = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        try:
            digest.update((directory / name).read_bytes())
        except OSError as error:
            raise ModelError(f"{directory} is no adapter directory: it lacks a readable {name}") from error
    return digest.hexdigest()[:12]


def read_adapter(directory: Path) -> Adapter:
    """Read a PEFT directory (``adapter_config.json``, ``adapter_model.safetensors``).

    Raises:
        ModelError: it is not a plain LoRA adapter for linear layers, or is damaged.
    """
    fingerprint = adapter_fingerprint(directory)
    path = directory / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        kind, rank, alpha = config["peft_type"], int(config["r"]), float(config["lora_alpha"])
        if rank < 1:
            raise ValueError(f"r is {rank}")
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is not an adapter's configuration ({error!r}): copy the adapter again") from error
    if kind != "LORA":
        raise ModelError(f"{path}: peft_type {kind!r} cannot be merged; use a LORA adapter")
    _refuse_variants(config, path)
    tensors = _read(directory / WEIGHTS)
    factors: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key)
        if match is None or tensor.dim() != 2:
            raise ModelError(
                f"{directory / WEIGHTS} holds {key} {list(tensor.shape)}, which is no factor of a linear layer"
            )
        factors.setdefault(f"{match['module']}.weight", {})[match["factor"]] = tensor.float()
    for name, pair in factors.items():
        if set(pair) != {"A", "B"} or pair["A"].shape[0] != rank or pair["B"].shape[1] != rank:
            raise ModelError(f"the adapter in {directory} lacks a factor of rank {rank} for {name}: copy it again")
    return Adapter({name: (pair["A"], pair["B"]) for name, pair in factors.items()}, alpha / rank, fingerprint)


def merge_into(tensors: dict[str, Tensor], adapter: Adapter) -> dict[str, Tensor]:
    """All ``tensors`` of a checkpoint, merged.

    Raises:
        ModelError: the adapter changes a weight that is not among them, or has another shape.
    """
    _check_names(tensors, adapter)
    return {name: adapter.merge(name, tensor) for name, tensor in tensors.items()}


def write_merged(
    model: Path, adapter_directory: Path, out: Path, report: Callable[[str], None] = lambda line: None
) -> None:
    """A complete checkpoint in ``out`` (which must not exist or be empty): ``model``'s files, its weights merged.

    ``out`` appears complete or not at all.

    Raises:
        ModelError: the two do not fit, or ``out`` is not empty.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    from .checkpoint import weight_files

    adapter = read_adapter(adapter_directory)
    if out.exists() and any(out.iterdir()):
        raise ModelError(f"{out} is not empty: name a new directory for the merged model")
    paths = weight_files(model)
    names: set[str] = set()
    for path in paths:
        with safe_open(path, framework="pt") as file:
            names.update(file.keys())
    _check_names(names, adapter)
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".merging-", dir=out.parent))
    try:
        for path in model.iterdir():
            if path.is_file() and path.suffix in (".json", ".jinja", ".txt", ".model", ".md"):
                shutil.copyfile(path, scratch / path.name)
        for path in paths:
            report(f"merging {path.name}")
            with safe_open(path, framework="pt") as file:
                merged = {name: adapter.merge(name, file.get_tensor(name)).contiguous() for name in file.keys()}  # noqa: SIM118
                save_file(merged, scratch / path.name, metadata=file.metadata() or {"format": "pt"})
            (scratch / path.name).chmod(0o644)  # safetensors writes for the owner only
        write_note(scratch, adapter)
        scratch.chmod(0o755)
        scratch.rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # gone already after the rename


def write_note(directory: Path, adapter: Adapter) -> None:
    """``spec_planner.json``: how this checkpoint is to be prompted, and which adapter it holds."""
    note = {"prompt_examples": False, "adapter": adapter.fingerprint}
    (directory / "spec_planner.json").write_text(json.dumps(note) + "\n", encoding="utf-8")


def _check_names(names: Iterable[str], adapter: Adapter) -> None:
    missing = sorted(set(adapter.factors) - set(names))
    if missing:
        raise ModelError(
            f"the adapter changes {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + ", which the model does not have: use the adapter with the model it was trained on"
        )  # fmt: skip


def _refuse_variants(config: dict[str, Any], path: Path) -> None:
    for field in _VARIANTS:
        if config.get(field):
            raise ModelError(f"{path}: {field} is set, which cannot be merged here; train a plain LoRA adapter")
    if config.get("bias", "none") != "none":
        raise ModelError(f"{path}: bias is {config['bias']!r}, which cannot be merged here; train with bias 'none'")


def _read(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read ({error}): copy the adapter again") from error
