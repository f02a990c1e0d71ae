"""The target's own weights as a GGUF file, so that llama.cpp runs the same model. For the benchmark only.

llama.cpp turns neighbouring values of a head by one angle, Hugging Face values half a head apart, so the rows of q and
k are put in another order. One head of 6 rows:

    Hugging Face   a0 a1 a2 b0 b1 b2        a0 and b0 turn together
    GGUF           a0 b0 a1 b1 a2 b2

The file holds no vocabulary: the benchmark gives token ids and reads token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..engines.cache import cache_directory, make_once
from ..engines.checkpoint import load_weights
from ..engines.decoder_config import DecoderConfig, ModelError, read_decoder_config
from ..engines.identity import target_identity

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")
_LAYOUT = 1  # raise when the conversion changes, so old caches are left behind
_EMBEDDING = "token_embd.weight"
_BLOCK = 32  # values that share a scale in Q8_0, Q4_0 and Q4_1
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_file(directory: Path, kind: str, report: Callable[[str], None] = lambda line: None) -> Path:
    """The model in ``directory`` as a GGUF file whose matrices are of type ``kind``, made once per machine.

    Raises:
        ModelError: no such type, a model that this cannot convert, or a cache that cannot be written.
    """
    if kind not in TYPES:
        raise ModelError(f"no GGUF type {kind!r} is made here: choose among {', '.join(TYPES)}")
    config = read_decoder_config(directory)
    check_convertible(config, directory, kind)
    folder = cache_directory() / "gguf" / f"{target_identity(directory)}-{kind.lower()}-layout{_LAYOUT}"

    def make(scratch: Path) -> None:
        report(f"converting {directory.name} to GGUF {kind} (once)")
        write_gguf(directory, kind, scratch / "model.gguf")

    return make_once(folder, make, "the GGUF file") / "model.gguf"


def check_convertible(config: DecoderConfig, directory: Path, kind: str) -> None:
    """Raise ``ModelError`` where the file would not be the same model."""
    if config.family != "llama" or config.attention_bias or config.mlp_bias or config.rope_type != "default":
        raise ModelError(
            f"{directory} is no plain Llama model (biases and scaled rotary positions are not converted): compare with "
            f"llama.cpp on another model, or leave it out with --llama none"
        )
    sizes = (config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)
    if kind.startswith("Q") and any(size % _BLOCK for size in sizes):
        raise ModelError(
            f"GGUF type {kind} needs rows of a multiple of {_BLOCK} values: use F32 or F16 for {directory}"
        )


def write_gguf(directory: Path, kind: str, path: Path) -> None:
    """Write the model in ``directory`` to ``path``; see ``gguf_file``, which also checks.

    Norms stay float32. In the 4-bit types the embedding, which is the head too, has 8 bits: so it is in the file that
    the default model comes as.
    """
    try:
        from gguf import GGMLQuantizationType, GGUFWriter
        from gguf.quants import quantize
    except ImportError as error:
        raise ModelError("writing a GGUF file needs the package gguf: pip install gguf") from error

    config = read_decoder_config(directory)
    writer = GGUFWriter(path, "llama")
    writer.add_name(directory.name)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    writer.add_vocab_size(config.vocabulary_size)
    writer.add_tokenizer_model("no_vocab")
    wanted = GGMLQuantizationType[kind]
    of_embedding = GGMLQuantizationType.Q8_0 if kind.startswith("Q4") else wanted
    for name, tensor in tensors(directory):
        stored = of_embedding if name in (_EMBEDDING, "output.weight") else wanted
        if tensor.ndim == 1:
            stored = GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(tensor, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(directory: Path) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Every tensor of the model by its GGUF name, float32 [out, in] or [n], rows of q and k in GGUF's order."""
    config = read_decoder_config(directory)
    for name, weight in load_weights(directory, config).items():
        tensor = weight.float().numpy()
        if name.endswith("q_proj.weight"):
            tensor = interleave(tensor, config.num_heads)
        elif name.endswith("k_proj.weight"):
            tensor = interleave(tensor, config.num_kv_heads)
        yield _gguf_name(name), np.ascontiguousarray(tensor)


def interleave(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows [heads · e, d] from Hugging Face's order within each head to GGUF's; see the picture above."""
    halves = rows.reshape(num_heads, 2, -1, rows.shape[1])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _gguf_name(name: str) -> str:
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    module = name.removesuffix(".weight")
    if module in whole:
        return f"{whole[module]}.weight"
    layer, _, part = module.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_NAMES[part]}.weight"
