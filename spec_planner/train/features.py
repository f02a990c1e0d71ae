"""Stage 2: the frozen target reads its answers once, and what it thought of every token is kept."""

from __future__ import annotations

import hashlib
import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from ..learning.distributed import Group
from ..learning.files import RunError
from ..learning.packed_target import PackedTarget
from ..learning.packing import Example, Pack, draw_packs, families, make_pack
from ..learning.trainer import Report
from ..tasks.task import TRAIN, VALIDATION
from .responses import Response
from .shards import BYTES_PER_VALUE, FeatureStore

SPARE = 1.05  # of the disk that is needed, for what else a run writes


def pack_responses(responses: Sequence[Response], pack_tokens: int, seed: int) -> dict[str, list[Pack]]:
    """Packs of about ``pack_tokens`` rows by split; answers of one token, which hold no draft, are left out."""
    packs = {}
    for split in (TRAIN, VALIDATION):
        chosen = [each for each in responses if each.split == split and len(each.answer_ids) > 1]
        if not chosen:
            raise RunError(f"no answer of split {split!r} is longer than one token: there is nothing to learn from")
        examples = [
            Example(np.array([*each.prompt_ids, *each.answer_ids], np.int32), len(each.prompt_ids)) for each in chosen
        ]
        grouped = families(examples, [each.domain for each in chosen])
        drawn = draw_packs(examples, grouped, pack_tokens, random.Random(f"{seed}/{split}"))
        packs[split] = [make_pack([examples[index] for index in members]) for members in drawn]
    return packs


def fingerprint(responses: Sequence[Response]) -> str:
    digest = hashlib.sha256()
    for each in responses:
        digest.update(repr((each.split, tuple(each.prompt_ids), tuple(each.answer_ids))).encode())
    return digest.hexdigest()[:16]


def check_disk(store: FeatureStore, directory: Path, layers: Sequence[int], width: int) -> str:
    """What is to be written, in words; ``width``: of a hidden state.

    Raises:
        RunError: it does not fit on the disk.
    """
    missing = store.missing(layers)
    rows = sum(sum(store.shards[number].rows) * len(lacking) for number, lacking in missing.items())
    needed, free = rows * width * BYTES_PER_VALUE, shutil.disk_usage(directory).free
    if needed * SPARE > free:
        raise RunError(
            f"the features need {_size(needed)} and the disk of {directory} has {_size(free)} free: ask for fewer "
            f"--responses or layers, or name another --cache"
        )
    total = sum(sum(shard.rows) for shard in store.shards)
    what = f"hidden states {', '.join(map(str, layers))} of {total:,} tokens"
    return f"{what}: {_size(needed)} to write, {_size(free)} free" if needed else f"{what} are there"


def write_features(
    store: FeatureStore,
    layers: Sequence[int],
    load: Callable[[], PackedTarget],
    group: Group,
    report: Report,
    stop: Callable[[], bool],
) -> bool:
    """Compute what is missing, the shards shared among the processes of ``group``; False if stopped early.

    A shard's number says whose it is: what is missing changes while the others write.
    """
    missing = store.missing(layers)
    own = [number for number in sorted(missing) if number % group.size == group.rank]
    if not own:
        return True
    target = load()
    total = sum(sum(store.shards[number].rows) for number in own)
    begun, done = time.monotonic(), 0
    for number in own:
        states: dict[int, list[torch.Tensor]] = {layer: [] for layer in missing[number]}
        for pack in store.packs(number):
            if stop():
                return False
            for layer, hidden in target.hidden_states(pack, missing[number]).items():
                states[layer].append(hidden.to("cpu", torch.bfloat16))
            done += len(pack)
            report(done / total, f"features, {done / (time.monotonic() - begun):.0f} tokens/s")
        for layer, parts in states.items():
            store.write(number, layer, torch.cat(parts))
    return True


def _size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
