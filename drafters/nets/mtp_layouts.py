"""Where published checkpoints keep their MTP modules, and under which names. Only those tensors are read.

    DeepSeek-V3, GLM-4.5/5    model.layers.{n + k}.…    n = number of the target's own layers
    Qwen3-Next, Qwen3.5       mtp.…
    MiMo                      model.mtp_layers.{k}.…
    speculators               mtp_layers.0.…            MiMo's names, but the embedding first
    Gloeckle et al.           extra_heads.{k}.…          Meta's names and pairing of rotary elements, or Hugging Face's

A module's own copies of embedding and head are left aside, as Hugging Face and SGLang do: they equal the target's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from ..checkpoint import CheckpointError, load_strict, read_config, read_tensors, tensor_names
from .mtp_blocks import Shapes
from .mtp_net import MtpForm, MtpNet, ParallelHeads

_NEXTN = re.compile(r"(?:model\.)?(?:language_model\.)?layers\.(\d+)\.(.+)")
_QWEN = re.compile(r"(?:model\.)?mtp\.(.+)")
_MIMO = re.compile(r"(?:model\.)?mtp_layers\.(\d+)\.(.+)")
_PARALLEL = re.compile(r"(?:model\.)?extra_heads\.(\d+)\.(.+)")
_COPIES = ("embed_tokens.weight", "shared_head.head.weight")
_OUTER = {
    "shared_head.norm": "norm",
    "fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm",
    "input_proj": "eh_proj", "token_layernorm": "enorm", "hidden_layernorm": "hnorm", "final_layernorm": "norm",
    **{name: name for name in ("enorm", "hnorm", "eh_proj", "norm")},
}  # fmt: skip
_META = {
    "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj", "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj", "feed_forward.w3": "mlp.up_proj", "feed_forward.w2": "mlp.down_proj",
}  # fmt: skip

Recursion = Literal["normed", "raw"]


def load_mtp(
    source: Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    recursion: Recursion = "normed",
) -> MtpNet:
    """The sequential modules inside a target's checkpoint, or alone beside a copy of its config.json.

    Args:
        recursion: what a step hands to the next: the normed output (Hugging Face, SGLang, GLM-5, MiMo, Qwen) or the
            raw one (DeepSeek-V3 and GLM-4.5 as vLLM of 2025 serves them).

    Raises:
        CheckpointError: no such modules, or modules that are incomplete or of a kind not known here.
    """
    source = Path(source)
    config = text_config(source)
    names = {name: place for name in tensor_names(source) if (place := _sequential_place(name, config))}
    if not any(place[1].startswith("eh_proj.") for place in names.values()):
        raise CheckpointError(
            f"{source} holds no MTP modules (eh_proj, mtp.fc or input_proj): give a checkpoint published with them"
        )
    tensors = _unfused(read_tensors(source, names.__contains__), names)
    family = str(config.get("model_type", ""))
    form = MtpForm(
        hidden_first=any(map(_MIMO.fullmatch, names)) and "speculators_model_type" not in config,
        recurse_normed=recursion == "normed",
        norm_offset=1.0 if family.startswith(("qwen3_next", "qwen3_5")) else 0.0,
    )
    shapes = _shapes_by_depth(tensors, names)
    net = _built(source, lambda: MtpNet(config, shapes, form), dtype)
    load_strict(net, tensors, lambda name: "modules_by_depth.{}.{}".format(*names[name]), source)
    return net.to(device).eval()


def load_parallel_heads(
    source: Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> ParallelHeads:
    """The extra heads of a target trained on several tokens at once, from its checkpoint.

    Raises:
        CheckpointError: no such heads, or incomplete ones.
    """
    source = Path(source)
    config = text_config(source)
    names: dict[str, tuple[int, str]] = {}
    for name in tensor_names(source):
        if match := _PARALLEL.fullmatch(name):
            stem, _, kind = match[2].rpartition(".")
            names[name] = int(match[1]), f"block.{_META.get(stem, stem)}.{kind}"
    if not names:
        raise CheckpointError(f"{source} holds no extra_heads: give a checkpoint trained on several tokens at once")
    tensors = read_tensors(source, names.__contains__)
    shapes = _shapes_by_depth(tensors, names)
    net = _built(source, lambda: ParallelHeads(config, shapes), dtype)
    attention = net.heads[0].self_attn
    for name in tensors:
        if name.endswith(("attention.wq.weight", "attention.wk.weight")):
            heads = attention.num_heads if ".wq." in name else attention.num_kv_heads
            tensors[name] = _halves_paired(tensors[name], heads)
    load_strict(net, tensors, lambda name: f"heads.{names[name][0]}.{names[name][1][len('block.') :]}", source)
    return net.to(device).eval()


def text_config(source: Path) -> dict[str, Any]:
    """``config.json``, with the part about the language model on top where there is one; or Meta's ``params.json``."""
    directory = source if source.is_dir() else source.parent
    meta = directory / "params.json"
    if meta.is_file() and not (directory / "config.json").is_file():
        try:
            return _from_meta(json.loads(meta.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{meta} does not describe a model ({error!r}): copy the checkpoint again") from error
    config = read_config(directory)
    inner = config.get("text_config") or config.get("transformer_layer_config")
    merged = {**config, **inner} if isinstance(inner, dict) else config
    if str(merged.get("model_type", "")).startswith("qwen3_next"):
        merged.setdefault("partial_rotary_factor", 0.25)
    return merged


def _from_meta(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "hidden_size": params["dim"],
        "num_attention_heads": params["n_heads"],
        "num_key_value_heads": params.get("n_kv_heads") or params["n_heads"],
        "rms_norm_eps": params.get("norm_eps", 1e-5),
        "rope_theta": params.get("rope_theta", 10000.0),
    }


def _sequential_place(name: str, config: Mapping[str, Any]) -> tuple[int, str] | None:
    """Which module, and the name within ``MtpModule``; None for a tensor of the target, or a copy of one."""
    if match := _QWEN.fullmatch(name):
        inner = match[1]
        if inner.startswith("layers."):
            depth, rest = inner.split(".", 2)[1:]
            return int(depth), f"block.{rest}"
        return _placed(0, inner)
    if match := _MIMO.fullmatch(name):
        return _placed(int(match[1]), match[2])
    if (match := _NEXTN.fullmatch(name)) and "num_hidden_layers" in config:
        depth = int(match[1]) - int(config["num_hidden_layers"])
        return _placed(depth, match[2]) if depth >= 0 else None
    return None


def _placed(depth: int, inner: str) -> tuple[int, str] | None:
    if inner in _COPIES:
        return None
    stem, _, kind = inner.rpartition(".")
    return depth, (f"{_OUTER[stem]}.{kind}" if stem in _OUTER else f"block.{inner}")


def _shapes_by_depth(tensors: Mapping[str, torch.Tensor], names: Mapping[str, tuple[int, str]]) -> list[Shapes]:
    shapes: list[dict[str, torch.Size]] = [{} for _ in range(1 + max(depth for depth, _ in names.values()))]
    for name, tensor in tensors.items():
        depth, place = names[name]
        if place.startswith("block."):
            shapes[depth][place[len("block.") :]] = tensor.shape
    return list(shapes)


def _unfused(tensors: dict[str, torch.Tensor], names: dict[str, tuple[int, str]]) -> dict[str, torch.Tensor]:
    """Experts stored as one tensor [E, 2 I, d] and [E, d, I] become views by expert, as older checkpoints name them."""
    result: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        depth, place = names[name]
        stem, _, last = place.rpartition(".experts.")
        if last not in ("gate_up_proj", "down_proj"):
            result[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            parts = {last: matrix}
            if last == "gate_up_proj":
                parts["gate_proj"], parts["up_proj"] = parts.pop(last).chunk(2)
            for part, view in parts.items():
                new = f"{name} {expert} {part}"
                result[new], names[new] = view, (depth, f"{stem}.experts.{expert}.{part}.weight")
    return result


def _halves_paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Meta turns neighbours 2i, 2i + 1 together; here, as at Hugging Face, i and i + e / 2: rows are reordered."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _built(source: Path, make, dtype: torch.dtype):
    try:
        with torch.device("meta"):
            net = make().to(dtype)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"the config or the tensors of the MTP modules in {source} lack what a layer needs ({error!r}): use the "
            f"config.json that was published with them"
        ) from error
    for module in net.modules():
        if hasattr(module, "e_score_correction_bias"):  # decides between near-equal experts: never rounded
            module.e_score_correction_bias = module.e_score_correction_bias.float()
    return net
