"""Read the weights of a Hugging Face directory: safetensors only, every tensor accounted for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from .decoder_config import DecoderConfig, ModelError

_LISTED = 6  # names an error shows before it says how many more there are


def load_weights(directory: Path, config: DecoderConfig) -> dict[str, torch.Tensor]:
    """All tensors the decoder needs, memory-mapped where the format allows.

    Raises:
        ModelError: no safetensors file, an unreadable one, or a tensor that is missing, unexpected or mis-shaped.
    """
    wanted = dict(expected_tensors(config))
    found: dict[str, torch.Tensor] = {}
    for path in weight_files(directory):
        try:
            with safe_open(path, framework="pt") as file:
                found.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (not a mapping)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} cannot be read ({error}): copy the file again") from error
    whole = next((name for name, tensor in found.items() if not tensor.is_floating_point()), None)
    if whole is not None:
        raise ModelError(
            f"{whole} in {directory} is of type {found[whole].dtype}, not floating point: give the original checkpoint"
        )
    if config.tied_head:
        found.pop("lm_head.weight", None)  # some checkpoints store the tied head a second time
    found = {name: tensor for name, tensor in found.items() if not name.endswith("rotary_emb.inv_freq")}
    problems = [f"missing {name} {list(shape)}" for name, shape in wanted.items() if name not in found]
    problems += [f"unexpected {name} {list(found[name].shape)}" for name in found if name not in wanted]
    problems += [
        f"{name} is {list(found[name].shape)}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in found and tuple(found[name].shape) != shape
    ]
    if problems:
        more = f" and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
        raise ModelError(
            f"the tensors in {directory} do not match its config.json ({'; '.join(problems[:_LISTED])}{more}): "
            f"use a complete {config.family} checkpoint"
        )
    return found


def expected_tensors(config: DecoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of every tensor such a checkpoint holds."""
    d, e, inner, vocabulary = config.hidden_size, config.head_dim, config.intermediate_size, config.vocabulary_size
    yield "model.embed_tokens.weight", (vocabulary, d)
    yield "model.norm.weight", (d,)
    if not config.tied_head:
        yield "lm_head.weight", (vocabulary, d)
    heads, kv_heads = config.num_heads * e, config.num_kv_heads * e
    linears = (
        ("self_attn.q_proj", heads, d, config.attention_bias),
        ("self_attn.k_proj", kv_heads, d, config.attention_bias),
        ("self_attn.v_proj", kv_heads, d, config.attention_bias),
        ("self_attn.o_proj", d, heads, config.output_bias),
        ("mlp.gate_proj", inner, d, config.mlp_bias),
        ("mlp.up_proj", inner, d, config.mlp_bias),
        ("mlp.down_proj", d, inner, config.mlp_bias),
    )
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        yield f"{prefix}input_layernorm.weight", (d,)
        yield f"{prefix}post_attention_layernorm.weight", (d,)
        for name, rows, columns, bias in linears:
            yield f"{prefix}{name}.weight", (rows, columns)
            if bias:
                yield f"{prefix}{name}.bias", (rows,)
        if config.qk_norm:
            yield f"{prefix}self_attn.q_norm.weight", (e,)
            yield f"{prefix}self_attn.k_norm.weight", (e,)


def weight_bytes(config: DecoderConfig, bytes_per_weight: int) -> int:
    """Size of the weights in memory, from the config alone."""
    total = 0
    for _, shape in expected_tensors(config):
        size = bytes_per_weight
        for extent in shape:
            size *= extent
        total += size
    return total


def kv_bytes(config: DecoderConfig, capacity: int, bytes_per_value: int) -> int:
    """Size of a KV cache of ``capacity`` tokens."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * capacity * bytes_per_value


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a Hugging Face directory, by its shard index if it has one.

    Raises:
        ModelError: there is none, or one that the index names is missing.
    """
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"{index} is not a shard index ({error!r}): copy the model directory again") from error
        if not all(isinstance(name, str) for name in names):
            raise ModelError(f"{index} names files that are no text: copy the model directory again")
        missing = [name for name in names if not (directory / name).is_file()]
        if missing:
            raise ModelError(f"{directory} lacks {', '.join(missing[:_LISTED])}: copy the whole model directory again")
        return [directory / name for name in names]
    if (directory / "model.safetensors").is_file():
        return [directory / "model.safetensors"]
    if any(directory.glob("*.bin")) or any(directory.glob("*.pt*")):
        raise ModelError(
            f"{directory} holds pickled weights, which can run code when loaded: convert them to safetensors"
        )
    raise ModelError(f"{directory} holds no model.safetensors: give a Hugging Face model directory with its weights")
