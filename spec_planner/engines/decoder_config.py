"""Read a Hugging Face ``config.json`` of the Llama, Qwen2 or Qwen3 family into one flat record.

Parsed by hand: the few fields a decoder needs moved between transformers 4 and 5 (``rope_theta`` and
``rope_scaling`` became ``rope_parameters``), and reading them here keeps transformers off the start-up path.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

FAMILIES = ("llama", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


class ModelError(ValueError):
    """A model directory cannot be used; the message says what is wrong, where, and what to do."""


def unloadable(library: str, path: Path, error: Exception) -> ModelError:
    """The error for an exported graph in ``path`` that ``library`` did not load: for want of memory, or damaged."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reason = lines[-1] if library == "OpenVINO" else lines[0]
    if isinstance(error, MemoryError) or "alloc" in reason.lower():
        return ModelError(
            f"{library} has no memory for {path} ({reason}): use a smaller precision or context_length, or end what "
            f"else holds memory"
        )
    return ModelError(f"{library} cannot load {path} ({reason}): delete {path.parent}, and it will be exported again")


class EngineUnavailable(ModelError):
    """A library that an engine needs is missing or too old; the message says how to get it."""


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and switches of one decoder-only transformer."""

    family: str
    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int  # positions the checkpoint was trained for
    norm_epsilon: float
    tied_head: bool
    attention_bias: bool  # biases on q, k, v (Qwen2, some Llama)
    output_bias: bool  # bias on o_proj (Llama with attention_bias)
    mlp_bias: bool
    qk_norm: bool  # Qwen3: RMSNorm over each head's query and key
    rope_theta: float
    rope_type: str = "default"
    rope_parameters: dict[str, Any] = field(default_factory=dict)

    def first_layers(self, num_layers: int) -> DecoderConfig:
        """The same network with at most ``num_layers`` layers."""
        return replace(self, num_layers=min(num_layers, self.num_layers))


def read_decoder_config(directory: Path) -> DecoderConfig:
    """Parse ``directory/config.json``.

    Raises:
        ModelError: the file is missing or unreadable, the family is unsupported, or a feature is not implemented.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise ModelError(
            f"no config.json in {directory}: give a Hugging Face model directory (config.json, *.safetensors, "
            f"tokenizer.json)"
        )
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path} is not valid JSON ({error}): copy the model directory again") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path} does not hold a JSON object: copy the model directory again")
    try:
        return _parse(raw, path)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(
            f"{path} lacks or mistypes a field the decoder needs ({error!r}): is this a language model?"
        ) from error


def _parse(raw: dict[str, Any], path: Path) -> DecoderConfig:
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise ModelError(f"{path}: model_type {family!r} is not supported; use one of {', '.join(FAMILIES)}")
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"{path}: hidden_act {activation!r} is not supported; these families use 'silu'")
    if raw.get("quantization_config"):
        raise ModelError(f"{path}: the weights are quantised (quantization_config); give the unquantised checkpoint")
    if _uses_sliding_window(raw):
        raise ModelError(f"{path}: sliding-window attention is not implemented; use a full-attention checkpoint")
    for name in ("num_attention_heads", "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"):
        if int(raw[name]) < 1:
            raise ModelError(f"{path}: {name} is {raw[name]}, which no model has: copy the model directory again")
    heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    kv_heads = int(raw.get("num_key_value_heads") or heads)
    if kv_heads < 1 or heads % kv_heads:
        raise ModelError(f"{path}: {heads} attention heads cannot share {kv_heads} key/value heads")
    rope_type, rope = _rope(raw, path)
    return DecoderConfig(
        family=family,
        vocabulary_size=int(raw["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=int(raw.get("head_dim") or (128 if family == "qwen3" else hidden // heads)),
        context_length=int(raw["max_position_embeddings"]),
        norm_epsilon=float(raw.get("rms_norm_eps", 1e-6)),
        tied_head=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=family == "qwen2" or bool(raw.get("attention_bias", False)),
        output_bias=family != "qwen2" and bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
        rope_type=rope_type,
        rope_parameters=rope,
    )


def _uses_sliding_window(raw: dict[str, Any]) -> bool:
    layer_types = raw.get("layer_types")
    if layer_types is not None:
        return any(kind != "full_attention" for kind in layer_types)
    return bool(raw.get("use_sliding_window", False) and raw.get("sliding_window"))


def _rope(raw: dict[str, Any], path: Path) -> tuple[str, dict[str, Any]]:
    """transformers 5 writes ``rope_parameters``; 4 wrote ``rope_theta`` beside an optional ``rope_scaling``."""
    parameters = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise ModelError(f"{path}: RoPE type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
    partial = parameters.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
    if float(partial) != 1.0:
        raise ModelError(f"{path}: partial rotary embeddings (factor {partial}) are not supported")
    parameters.setdefault("original_max_position_embeddings", raw.get("original_max_position_embeddings"))
    return kind, parameters
