"""Stored hidden states are those a drafter taps while decoding, and a batch puts each beside its own token."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from spec_planner.decoding.contracts import PromptInput  # noqa: E402
from spec_planner.engines.torch_target import TorchTarget  # noqa: E402
from spec_planner.learning.distributed import Group  # noqa: E402
from spec_planner.learning.files import RunError  # noqa: E402
from spec_planner.learning.packed_target import PackedTarget  # noqa: E402
from spec_planner.train.batches import BatchStream, StoredBatches  # noqa: E402
from spec_planner.train.features import check_disk, pack_responses, write_features  # noqa: E402
from spec_planner.train.responses import Response  # noqa: E402
from spec_planner.train.shards import FeatureStore  # noqa: E402

CPU, LAYERS = torch.device("cpu"), (0, 1, 2)


def responses(count: int = 12) -> list[Response]:
    """Prompts about two scenes, two answers to each; one answer is the beginning of another."""
    rng = np.random.default_rng(0)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(int(i) for i in rng.integers(3, 320, length))

    scenes, found = [ids(30), ids(40)], []
    for number in range(count):
        prompt, answer = scenes[number % 2] + ids(number), ids(14)
        split = "validation" if number % 4 == 3 else "train"
        for turn, said in enumerate((answer, answer[:5])):
            found.append(Response(f"p{number}", turn, "toy", split, 1.0, 0, prompt, said))
    return found


@pytest.fixture(scope="module")
def target(settings):
    return PackedTarget(settings.target, CPU, torch.float32)


@pytest.fixture
def store(tmp_path, target):
    store = FeatureStore(tmp_path)
    store.create({"target": "tiny"}, pack_responses(responses(), 300, 0))
    assert write(store, target)
    return store


def write(store, target, layers=LAYERS, stop=lambda: False, lines=None, group=None):
    said = (lambda share, line: None) if lines is None else (lambda share, line: lines.append(line))
    return write_features(store, layers, lambda: target, group or Group(CPU), said, stop)


def tapped(directory, ids):
    """[rows, layers, d] as a drafter gets them."""
    engine = TorchTarget.load(directory, context_length=256)
    engine.tap(LAYERS)
    return engine.extend(PromptInput(tuple(ids))).features(range(len(ids)))


def test_features_are_those_a_drafter_taps(settings, store, target):
    batches = StoredBatches(store, "train", LAYERS, CPU, torch.float32)
    for item in batches:
        stacked = item.batch.stacked(LAYERS)
        for path in item.batch.paths[:3]:
            expected = tapped(settings.target, item.batch.ids[path.rows].tolist())
            torch.testing.assert_close(stacked[path.rows], expected, rtol=1e-2, atol=1e-2)  # stored in bfloat16
    for pack in pack_responses(responses(), 300, 0)["train"]:
        states = target.hidden_states(pack, LAYERS)
        for last, _ in pack.ends:
            spans = (*pack.nodes[last].ancestors, (pack.nodes[last].start, pack.nodes[last].end))
            rows = [row for span in spans for row in range(*span)]
            expected = tapped(settings.target, pack.ids[rows].tolist())
            found = torch.stack([states[layer][rows] for layer in LAYERS], dim=1)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_paths_of_batches_are_the_answers(store, split):
    found, rows = [], 0
    for item in StoredBatches(store, split, (2,), CPU, torch.float32):
        batch = item.batch
        rows += len(item)
        for path in batch.paths:
            ids = tuple(batch.ids[path.rows].tolist())
            found.append((ids[: path.answer], ids[path.answer :]))
            assert batch.positions[path.rows].tolist() == list(range(len(ids)))
            assert batch.previous[path.rows].tolist() == [-1, *path.rows[:-1].tolist()]
            for place, row in enumerate(path.rows.tolist()):
                assert set(batch.seen[row].nonzero().flatten().tolist()) == set(path.rows[: place + 1].tolist())
    expected = [(each.prompt_ids, each.answer_ids) for each in responses() if each.split == split]
    assert sorted(found) == sorted(expected)
    assert rows < 0.7 * sum(len(prompt) + len(answer) for prompt, answer in expected)


def test_only_what_is_missing_is_computed(store, target, tmp_path):
    path = tmp_path / "shard-00000.layer-1.safetensors"
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    path.unlink()
    (tmp_path / ".shard-00000.layer-1.safetensors.77").write_bytes(b"torn")  # what a kill in mid-write leaves
    assert store.missing(LAYERS) == {0: [1]}
    again = FeatureStore(tmp_path)
    assert again.open({"target": "tiny"}) and write(again, target)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    lines: list[str] = []
    assert write(again, target, lines=lines) and lines == []


def test_processes_share_the_shards_however_late_one_looks(tmp_path, target, monkeypatch):
    store, packs = FeatureStore(tmp_path), pack_responses(responses(), 60, 0)
    monkeypatch.setattr("spec_planner.train.shards.PACKS_PER_SHARD", 1)
    store.create({}, packs)
    assert len(store.shards) > 3
    for rank in ("0", "1"):  # the second one looks when the first is done
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", rank)
        assert write(store, target, group=Group(CPU))
    assert store.missing(LAYERS) == {}


def test_a_stop_leaves_whole_shards_only(tmp_path, target):
    store = FeatureStore(tmp_path)
    store.create({}, pack_responses(responses(), 60, 0))
    asked = iter([False] * 3)
    assert not write(store, target, stop=lambda: next(asked, True))
    assert sorted(store.missing(LAYERS)) == [shard.number for shard in store.shards]


def test_what_does_not_fit_the_disk_or_the_features_is_refused(store, tmp_path, monkeypatch):
    assert check_disk(store, tmp_path, LAYERS, 64).endswith("are there")
    monkeypatch.setattr("shutil.disk_usage", lambda path: namedtuple("Usage", "total used free")(10, 9, 1))
    with pytest.raises(RunError, match=r"the features need .* MB and the disk of .* has 0.0 MB free: ask for fewer"):
        check_disk(store, tmp_path, (0, 7), 64)
    with pytest.raises(RunError, match="were made with target 'tiny', not 'large'"):
        FeatureStore(tmp_path).open({"target": "large"})
    (tmp_path / "shard-00000.layer-1.safetensors").write_bytes(b"torn")
    with pytest.raises(RunError, match="layer-1.safetensors cannot be read .* delete it, and it is computed again"):
        store.read(0, 0, 1)


def test_the_seed_alone_decides_the_order(tmp_path, target):
    store = FeatureStore(tmp_path)
    store.create({}, pack_responses(responses(), 60, 0))
    assert write(store, target, (2,))
    batches = StoredBatches(store, "train", (2,), CPU, torch.float32)

    def drawn(seed, epoch):
        stream = BatchStream(batches, seed)
        items = [stream.at(epoch, index) for index in range(stream.packs_in_epoch(epoch))]
        return [(item.batch.ids.tolist(), item.seed) for item in items]

    assert len(batches) > 1 and drawn(0, 0) == drawn(0, 0)
    assert len({str(drawn(*place)) for place in ((0, 0), (0, 1), (1, 0))}) == 3
