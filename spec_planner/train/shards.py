"""Packs of answers on disk, and the target's hidden states of their rows.

    shard-00012.rows.safetensors        the forests of some 16 packs: ids, positions, nodes, where answers end and begin
    shard-00012.layer-15.safetensors    ``hidden`` [rows, d], bfloat16: hidden state 15 (Hugging Face) of all these rows
    index.json                          what the packs were made of, and which shards there are; written last

The folder is called by what the packs were made of: other answers, or another target's, lie beside it.

A file is there whole or not at all, so a run that is killed loses the shard it was at and no more, and a drafter that
reads other layers adds files to those there are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_tensors
from torch import Tensor

from ..learning.files import RunError, write_whole
from ..learning.packing import Node, PackRows

PACKS_PER_SHARD = 16
BYTES_PER_VALUE = 2


@dataclass(frozen=True)
class Shard:
    """``rows[i]``: how many rows pack ``i`` of it has."""

    number: int
    split: str
    rows: tuple[int, ...]


def features_folder(header: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(dict(header), sort_keys=True).encode()).hexdigest()
    return f"features-{digest[:12]}"


class FeatureStore:
    """The folder. Raises ``RunError`` wherever a file in it cannot be read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.shards: tuple[Shard, ...] = ()
        self._packs: dict[int, list[PackRows]] = {}

    def open(self, header: Mapping[str, Any]) -> bool:
        """Read the index; False if there is none yet.

        Raises:
            RunError: it was made of something else than ``header`` says.
        """
        path = self._directory / "index.json"
        if not path.is_file():
            return False
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            begun: dict[str, Any] = content["header"]
            shards = tuple(Shard(entry["number"], entry["split"], tuple(entry["rows"])) for entry in content["shards"])
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is no index of features ({error!r}): name another --cache") from error
        for key in sorted({*header, *begun}):
            if begun.get(key) != header.get(key):
                raise RunError(
                    f"the features in {self._directory} were made with {key} {begun.get(key)!r}, not "
                    f"{header.get(key)!r}: delete that folder, or name another --cache"
                )
        self.shards = shards
        return True

    def create(self, header: Mapping[str, Any], packs: Mapping[str, Sequence[PackRows]]) -> None:
        """Write the packs of each split, and the index last."""
        self._directory.mkdir(parents=True, exist_ok=True)
        shards: list[Shard] = []
        for split, members in packs.items():
            for first in range(0, len(members), PACKS_PER_SHARD):
                chosen = members[first : first + PACKS_PER_SHARD]
                shards.append(Shard(len(shards), split, tuple(map(len, chosen))))
                tensors = _rows_tensors(chosen)
                write_whole(self._rows_path(len(shards) - 1), lambda path, tensors=tensors: save_file(tensors, path))
        index = json.dumps({"header": dict(header), "shards": [asdict(shard) for shard in shards]})
        write_whole(self._directory / "index.json", lambda path: path.write_text(index, encoding="utf-8"))
        self.shards = tuple(shards)

    def packs(self, shard: int) -> list[PackRows]:
        if shard not in self._packs:
            path = self._rows_path(shard)
            try:
                tensors = load_file(path)
                self._packs[shard] = _packs_of(tensors)
            except (SafetensorError, OSError, KeyError) as error:
                raise RunError(f"{path} cannot be read ({error!r}): delete the folder it lies in") from error
        return self._packs[shard]

    def missing(self, layers: Sequence[int]) -> dict[int, list[int]]:
        """Shard → those of ``layers`` that are still to be computed."""
        wanted = {
            shard.number: [layer for layer in layers if not self._layer_path(shard.number, layer).is_file()]
            for shard in self.shards
        }
        return {number: lacking for number, lacking in wanted.items() if lacking}

    def write(self, shard: int, layer: int, hidden: Tensor) -> None:
        """``hidden`` [rows of all packs of the shard, d]."""
        stored = {"hidden": hidden.to("cpu", torch.bfloat16).contiguous()}
        write_whole(self._layer_path(shard, layer), lambda path: save_tensors(stored, path))

    def read(self, shard: int, pack: int, layer: int) -> Tensor:
        """bfloat16 [rows of the pack, d]."""
        path = self._layer_path(shard, layer)
        rows = self.shards[shard].rows
        try:
            with safe_open(path, framework="pt") as file:
                found: Tensor = file.get_slice("hidden")[sum(rows[:pack]) : sum(rows[: pack + 1])]
        except (SafetensorError, OSError) as error:
            raise RunError(f"{path} cannot be read ({error}): delete it, and it is computed again") from error
        return found

    def _rows_path(self, shard: int) -> Path:
        return self._directory / f"shard-{shard:05}.rows.safetensors"

    def _layer_path(self, shard: int, layer: int) -> Path:
        return self._directory / f"shard-{shard:05}.layer-{layer}.safetensors"


def _rows_tensors(packs: Sequence[PackRows]) -> dict[str, np.ndarray]:
    """Packs behind one another: ``nodes`` [n, 3] are start, end and parent (−1: none), counted within their pack."""
    nodes, ends = [], []
    for pack in packs:
        by_span = {(node.start, node.end): number for number, node in enumerate(pack.nodes)}
        for node in pack.nodes:
            nodes.append((node.start, node.end, by_span[node.ancestors[-1]] if node.ancestors else -1))
        ends += pack.ends
    counts = [(len(pack), len(pack.nodes), len(pack.ends)) for pack in packs]
    return {
        "ids": np.concatenate([pack.ids for pack in packs]).astype(np.int32),
        "positions": np.concatenate([pack.positions for pack in packs]).astype(np.int32),
        "nodes": np.array(nodes, np.int32),
        "ends": np.array(ends, np.int32),
        "counts": np.array(counts, np.int32),
    }


def _packs_of(tensors: Mapping[str, np.ndarray]) -> list[PackRows]:
    packs = []
    row = node = end = 0
    for rows, nodes, ends in tensors["counts"].tolist():
        spans: list[tuple[tuple[int, int], ...]] = []
        for start, stop, parent in tensors["nodes"][node : node + nodes].tolist():
            spans.append((*(spans[parent] if parent >= 0 else ()), (start, stop)))
        packs.append(
            PackRows(
                tensors["ids"][row : row + rows].astype(np.int64),
                tensors["positions"][row : row + rows].astype(np.int64),
                tuple(Node(*path[-1], path[:-1]) for path in spans),
                tuple((last, answer) for last, answer in tensors["ends"][end : end + ends].tolist()),
            )
        )
        row, node, end = row + rows, node + nodes, end + ends
    return packs
