"""Stored packs as the batches that drafters learn from, in an order that the seed decides."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafters.training.batch import Batch, Path

from ..learning.packing import PackRows
from .shards import FeatureStore


@dataclass(frozen=True)
class Drawn:
    """A batch, and what its own random draws begin with; None where there are to be none."""

    batch: Batch
    seed: int | None

    def __len__(self) -> int:
        return len(self.batch.ids)


def make_batch(pack: PackRows, features: dict[int, Tensor], device: torch.device) -> Batch:
    """``features`` on ``device`` already."""
    rows = len(pack)
    previous = torch.arange(-1, rows - 1)
    seen = torch.zeros(rows, rows, dtype=torch.bool)
    for node in pack.nodes:
        previous[node.start] = node.ancestors[-1][1] - 1 if node.ancestors else -1
        for start, end in node.ancestors:
            seen[node.start : node.end, start:end] = True
        own = node.end - node.start
        seen[node.start : node.end, node.start : node.end] = torch.ones(own, own, dtype=torch.bool).tril()
    paths = []
    for last, answer in pack.ends:
        spans = (*pack.nodes[last].ancestors, (pack.nodes[last].start, pack.nodes[last].end))
        paths.append(Path(torch.cat([torch.arange(*span) for span in spans]).to(device), answer))
    ids, positions = torch.from_numpy(pack.ids), torch.from_numpy(pack.positions)
    return Batch(ids.to(device), positions.to(device), previous.to(device), seen.to(device), features, paths)


class StoredBatches(Sequence[Drawn]):
    """The packs of one split as they lie on disk; nothing random in them."""

    def __init__(
        self, store: FeatureStore, split: str, layers: Sequence[int], device: torch.device, dtype: torch.dtype
    ) -> None:
        """``dtype``: of the features handed out."""
        self._store, self._layers, self._device, self._dtype = store, tuple(layers), device, dtype
        self._places = [
            (shard.number, pack) for shard in store.shards if shard.split == split for pack in range(len(shard.rows))
        ]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Drawn:  # type: ignore[override]  (no slices)
        return self.drawn(index, None)

    def drawn(self, index: int, seed: int | None) -> Drawn:
        shard, pack = self._places[index]
        features = {layer: self._store.read(shard, pack, layer).to(self._device, self._dtype) for layer in self._layers}
        return Drawn(make_batch(self._store.packs(shard)[pack], features, self._device), seed)


class BatchStream:
    """Every batch once an epoch; a ``learning.trainer.Stream``."""

    def __init__(self, batches: StoredBatches, seed: int) -> None:
        self._batches, self._seed = batches, seed
        self._epoch, self._order = -1, list[int]()

    def packs_in_epoch(self, epoch: int) -> int:
        return len(self._batches)

    def at(self, epoch: int, index: int) -> Drawn:
        if epoch != self._epoch:
            order = list(range(len(self._batches)))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._epoch, self._order = epoch, order
        return self._batches.drawn(
            self._order[index], random.Random(f"{self._seed}/{epoch}/{index}").getrandbits(62)
        )  # fmt: skip
