"""The memory that a configuration needs, line by line, from files that say so before anything is loaded.

    weights      read by passes        copies     of weights, the drafter's too, packed for an engine's kernels
    kv           cache at capacity     restored   embedding and head in float32, where the target's are quantised
    drafter      its own               borrowed   read where the target holds it; in ``weights`` already
    activations  of the widest pass    workspace  what the library takes besides
    process      interpreter, libraries, tokenizer and grammar

What is borrowed, and what is stored but read while loading only, is not in the total.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..config import PlannerConfig
from ..drafter_choice import GRAFT, chosen, drafter_bytes, lent_to_drafter
from ..engines.decoder_config import read_decoder_config
from ..engines.default_model import model_directory
from ..graphs.block_quant import PRECISION_BITS, stored_precision
from .engine_needs import Needs, engine_needs, onnx_arena
from .sizes import BYTES_PER_VALUE

PASS_ROOM = 64  # slots the target's cache holds beyond the context, so that its widest pass always fits
# Measured by benchmarks/memory.py (x86-64, CPU builds): a planner with the default tokenizer and a toy for a network.
PROCESS_BYTES = {"torch": 360_000_000, "onnx": 370_000_000, "openvino": 405_000_000, "tensorrt": 370_000_000}

TORCH_BUFFERS = 25_000_000  # of its kernels, whatever it runs; measured so


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes; see this file's head. ``stored``: all weights, those that are only read while loading among them."""

    stored: int
    weights: int
    copies: int
    kv: int
    drafter: int
    restored: int
    activations: int
    workspace: int
    process: int
    borrowed: int = 0

    @property
    def network(self) -> int:
        """What the models take, on the device that runs them."""
        parts = (self.weights, self.copies, self.kv, self.drafter, self.restored, self.activations, self.workspace)
        return sum(parts)

    @property
    def total(self) -> int:
        return self.network + self.process


def memory_budget(config: PlannerConfig, directory: Path) -> MemoryBudget:
    """For the target in ``directory`` and the drafter that ``config`` names.

    Raises:
        ValueError: one of them cannot be used; one sentence.
        ImportError: torch is missing, and the drafter is a checkpoint.
    """
    config = chosen(config, directory)
    alone = target_budget(config, directory)
    rows = config.context_length + PASS_ROOM
    own, graph = drafter_bytes(config, directory, rows)
    lent = lent_to_drafter(config, directory)
    if lent:
        borrowed, restored = _lent_bytes(config, directory, lent)
        beside = TORCH_BUFFERS if config.engine_name != "torch" else 0
        if graph is not None:
            # Measured: Medusa's, which have no cache, take nothing besides.
            beside = graph.inputs + max(onnx_arena(graph.num_heads, rows), TORCH_BUFFERS if graph.inputs else 0)
        need = replace(alone, drafter=own, borrowed=borrowed, restored=restored, workspace=alone.workspace + beside)
        return replace(need, copies=need.copies + (graph.copies if graph else 0))
    if config.drafter.removeprefix(GRAFT) != "draft-model":
        return replace(alone, drafter=own)
    if config.draft_model:
        net = engine_needs(config, model_directory(config.draft_model))
        return replace(alone, drafter=own + net.total)
    layers = config.draft_layers_of(read_decoder_config(directory).num_layers)
    net = engine_needs(config, directory, layers)
    # The target's own weights; other engines than torch make copies of them for each network.
    return replace(alone, drafter=own + net.total - net.weights, borrowed=net.weights)


def target_budget(config: PlannerConfig, directory: Path) -> MemoryBudget:
    """Without a drafter.

    Raises:
        ModelError: the directory cannot be used.
    """
    needs: Needs = engine_needs(config, directory)
    return MemoryBudget(
        stored=needs.stored,
        weights=needs.weights,
        copies=needs.copies,
        kv=needs.kv,
        drafter=0,
        restored=0,
        activations=needs.activations,
        workspace=needs.workspace + (TORCH_BUFFERS if config.engine_name == "torch" else 0),
        process=PROCESS_BYTES[config.engine_name],
    )


def _lent_bytes(config: PlannerConfig, directory: Path, lent: tuple[str, ...]) -> tuple[int, int]:
    """(borrowed, restored): what the drafter reads of the target's, and what is made for it alone."""
    decoder = read_decoder_config(directory)
    values = (1 if decoder.tied_head else len(lent)) * decoder.vocabulary_size * decoder.hidden_size
    if config.engine_name in ("torch", "tensorrt"):
        return values * BYTES_PER_VALUE.get(config.precision, 2), 0
    _, outer_bits = PRECISION_BITS[stored_precision(config.precision)]
    return (4 * values, 0) if outer_bits is None else (0, 4 * values)
