"""What a pass costs by its width and its context, and the least it could: reading weights and keys from memory once.

The floor of a pass is (bytes of weights + bytes of the context's keys and values) ÷ bandwidth, whatever its width: the
bandwidth is measured here, by as many threads, reading far more than the caches hold. Of an embedding that is not the
head too, a pass looks up a few rows, so it is no part of those weights.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..decoding.contracts import PromptInput
from ..decoding.draft_tree import DraftTree
from ..decoding.prefix_cache import CHUNK
from ..engines.decoder_config import DecoderConfig
from .latency import spread

WIDTHS = (1, 4, 8, 16, 32)  # after the one context of the table of widths
CONTEXT_WIDTHS = (1, 8, 16)  # after the others
CONTEXTS = (128, 512, 1024, 2048, 4096)
_WARM_UP = 2
_STREAMED_BYTES = 512 << 20
_BYTES_PER_VALUE = {"float32": 4, "bfloat16": 2, "float16": 2}
# The same of an embedding that an engine stores otherwise, with the scales of its blocks of 32 values.
_BYTES_IN_GRAPHS = {"float32": 4, "bfloat16": 4, "int8": 36 / 32, "int4": 36 / 32}
_BYTES_IN_GGUF = {"F32": 4, "F16": 2, "BF16": 2}
_BYTES_IN_8_BITS = 34 / 32


@dataclass(frozen=True)
class Cell:
    """Milliseconds of a pass over ``width`` rows after ``context`` tokens: median and quartiles."""

    context: int
    width: int
    milliseconds: dict[str, float]


def measure_passes(target: Any, ids: Sequence[int], grid: Mapping[int, Sequence[int]], repeats: int) -> Iterator[Cell]:
    """Time passes of widths ``grid[context]`` after each context, ascending; widths by turns, so that drift is shared.

    Args:
        target: as much of ``Target`` as chains need.
        ids: tokens to fill the context with, and to verify: repeated where they are too few.
    """
    target.truncate(0)

    def tokens(start: int, count: int) -> tuple[int, ...]:
        return tuple(ids[(start + i) % len(ids)] for i in range(count))

    for context, widths in sorted(grid.items()):
        while (fed := target.committed_length) < context:
            target.extend(PromptInput(tokens(fed, min(CHUNK, context - fed))))
        times: dict[int, list[float]] = {width: [] for width in widths}
        for repeat in range(_WARM_UP + repeats):
            for width in widths:
                tree = DraftTree.chain(tokens(context, width))
                started = time.perf_counter()
                target.verify(tree)
                if repeat >= _WARM_UP:
                    times[width].append((time.perf_counter() - started) * 1e3)
        for width in widths:
            yield Cell(context, width, spread(times[width], 2))
    target.truncate(0)


def fastest_cells(timed: Sequence[tuple[str, Cell]]) -> list[tuple[str, Cell]]:
    """Of (setting, cell) the faster setting of each context and width."""
    fastest: dict[tuple[int, int], tuple[str, Cell]] = {}
    for choice in timed:
        place = (choice[1].context, choice[1].width)
        fastest[place] = min(fastest.get(place, choice), choice, key=lambda one: one[1].milliseconds["median"])
    return list(fastest.values())


def bandwidth(threads: int, seconds: float = 1.0) -> float:
    """Bytes per second that ``threads`` threads read from memory: the fastest of the passes that fit in the time."""
    import torch

    torch.set_num_threads(threads)
    block = torch.ones(_STREAMED_BYTES // 4, dtype=torch.float32)
    fastest, until = 0.0, time.perf_counter() + seconds
    while fastest == 0.0 or time.perf_counter() < until:
        started = time.perf_counter()
        block.sum()
        fastest = max(fastest, _STREAMED_BYTES / (time.perf_counter() - started))
    return fastest


def read_bytes(info: Any, config: DecoderConfig, context: int) -> int:
    """Bytes that a pass after ``context`` tokens must read: the weights it multiplies with, and the keys and values.

    OpenVINO computes in bfloat16 over weights stored as float32, of which it makes a copy of half the size, and ONNX
    Runtime and OpenVINO keep float32 keys and values whatever the weights are. llama.cpp keeps them in float16.
    """
    weights = info.weight_bytes
    if not config.tied_head:
        weights -= config.vocabulary_size * config.hidden_size * _embedding_value_bytes(info)
    if info.engine == "openvino" and info.precision == "bfloat16":
        weights //= 2
    value = 2 if info.engine == "llama.cpp" else _BYTES_PER_VALUE[info.precision] if info.engine == "torch" else 4
    return int(weights) + 2 * config.num_layers * config.num_kv_heads * config.head_dim * context * value


def _embedding_value_bytes(info: Any) -> float:
    if info.engine == "torch":
        return _BYTES_PER_VALUE[info.precision]
    if info.engine == "llama.cpp":
        return _BYTES_IN_GGUF.get(info.precision, _BYTES_IN_8_BITS)
    return _BYTES_IN_GRAPHS[info.precision]


def floor_milliseconds(info: Any, config: DecoderConfig, context: int, bytes_per_second: float) -> float:
    """The least a pass can take."""
    return read_bytes(info, config, context) / bytes_per_second * 1e3
