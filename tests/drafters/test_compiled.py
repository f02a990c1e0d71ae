"""Draft networks as graphs on ONNX Runtime against their torch twins, over rounds with rejections."""

from __future__ import annotations

import json
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("onnxruntime")

from drafters.compiled.base import Compiling
from drafters.dflash import DFlashDrafter
from drafters.dflash2 import DFlash2Drafter
from drafters.eagle import EagleDrafter
from drafters.graphs.eagle import eagle_graphs
from drafters.graphs.net_graphs import AHEAD, TorchOnly
from drafters.medusa import MedusaDrafter
from drafters.mtp import MtpDrafter, ParallelMtpDrafter
from drafters.nets.dflash2_net import DFlash2Net, DFlash2Sizes
from drafters.nets.dflash_net import load_dflash, parse_dflash_config
from drafters.nets.medusa_net import MedusaNet
from drafters.nets.mtp_layouts import load_mtp, load_parallel_heads
from drafters.nets.mtp_net import MtpForm
from drafters.registry import WITH_GRAPHS, graft, load_drafter
from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.draft_sampler import RunDraftSampler
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.random_stream import RandomStream
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.decoding.stopping import Stopping
from spec_planner.engines import onnx_runner
from spec_planner.engines.onnx_runner import open_runner
from spec_planner.graphs.layers import GraphLayers
from spec_planner.graphs.weights import WeightFile
from tests.models import load_onnx, make_tiny_model

from . import mtp_support, test_eagle
from .dflash_support import SMALL as DFLASH
from .dflash_support import VARIANTS, exported, lent, shapes_of, write_dflash
from .mtp_support import published, saved
from .test_checkpoint import EAGLE_LAYOUTS, EAGLE_SIZES, make_eagle
from .test_registry import LAYERS, MAKERS

POSITIONS = 256
ABSENCE = -5e3  # below it are tokens left out by −1e4 and more, where 1e-3 is a rounding error


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    return compiler_in(tmp_path, monkeypatch)


def compiler_in(directory, monkeypatch, bits=None, threads=1):
    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(directory / "cache"))
    monkeypatch.setattr("spec_planner.engines.onnx_runner._FIRST_SLOTS", 64)  # so that caches grow here
    return lambda graphs: open_runner(graphs.key(bits), lambda into: graphs.write(into, bits), graphs.lent, threads)


class Recorder(RunDraftSampler):
    """A greedy run's sampler that keeps the logits it is shown, by branch."""

    def __init__(self, position: int) -> None:
        super().__init__(RULES["drafter-invariant"], SamplingParams(0.0), RandomStream(1))
        self.anchor_position, self.seen = position, {}

    def law(self, logits, branch):
        self.seen[tuple(branch)] = np.array(logits)
        return super().law(logits, branch)


# Committed before each draft, the forced tokens behind its anchor, its budget. 40 rows and more are run as they come;
# 64 slots are in view at first, so the cache is laid out anew twice and once back.
ROUNDS = [(40, 0, 6), (2, 1, 7), (1, 0, 3), (5, 2, 6), (60, 0, 5), (1, 0, 6), (30, 1, 4), (-110, 0, 5), (3, 0, 6)]


def check_same(reference, compiled, width: int, vocabulary: int) -> None:
    """Both follow the same random text and draft alike; the drafts are turned down, and the text is cut back once.

    Logits within 1e-4, or, where random weights spread them more widely than trained ones, of their deviation.
    """
    random = np.random.default_rng(3)
    layers, known, compared = len(reference.requirements.feature_layers), 0, 0
    for count, forced, budget in ROUNDS:
        if count < 0:
            known += count
        else:
            ids = random.integers(0, vocabulary, count).tolist()
            features = torch.tensor(random.standard_normal((count, layers, width)), dtype=torch.float32)
            known += count
        stem = random.integers(0, vocabulary, 1 + forced).tolist()
        trees, seen = [], []
        for drafter in (reference, compiled):
            if count < 0:
                drafter.truncate(known)
            else:
                half = count // 2
                drafter.observe(ids[:half], features[:half]) if half else None
                drafter.observe(ids[half:], features[half:])
            sampler = Recorder(known)
            trees.append(drafter.draft(stem, budget, sampler))
            seen.append(sampler.seen)
        assert trees[0].tokens.tolist() == trees[1].tokens.tolist()
        assert trees[0].parents.tolist() == trees[1].parents.tolist()
        assert seen[0].keys() == seen[1].keys()
        for branch, logits in seen[0].items():
            compared += 1
            there = logits > ABSENCE
            off = 1e-4 * max(1, np.std(logits[there]))
            np.testing.assert_allclose(seen[1][branch][there], logits[there], atol=off, rtol=0)
    assert compared > len(ROUNDS)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target") / "tiny", "qwen3", num_layers=LAYERS, tied=False)


@pytest.fixture(scope="module")
def target(model):
    target = load_onnx(model, context_length=256, threads=1)
    yield target
    target.close()


@pytest.mark.parametrize("branches", [1, 3], ids=["chain", "tree"])
@pytest.mark.parametrize("head", ["whole", "few"])
@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_drafts_as_torch_does(kind, head, branches, target, compiler, tmp_path):
    """With the target's head where it lies, or a copy of few of its rows (those with a head of their own: theirs)."""
    directory = MAKERS[kind](tmp_path / "drafter")
    if head == "few" and kind not in ("medusa", "eagle3"):
        config = directory / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"draft_tokens": list(range(0, 320, 3))}))
    drafters = [load_drafter(directory, target, branches, each) for each in (None, compiler)]
    check_same(*drafters, width=64, vocabulary=320)
    assert drafters[0].borrowed_bytes == drafters[1].borrowed_bytes
    assert drafters[0].requirements == drafters[1].requirements


@pytest.mark.parametrize("branches", [1, 3], ids=["chain", "tree"])
@pytest.mark.parametrize("kind", MAKERS)
def test_beside_the_target_the_same_drafts_are_kept(kind, branches, target, compiler, tmp_path):
    """Under rules that read the laws drafted from: another law would be judged otherwise, and other tokens come out."""
    directory, prompt = MAKERS[kind](tmp_path / "drafter"), PromptInput((5, 9, 200, 31, 7, 7, 44, 7))
    rule, seen = RULES["rejection" if branches == 1 else "recursive-rejection"], []
    hot = SamplingParams(8.0, seed=2)  # so that random networks agree now and then
    for each in (None, compiler):
        drafter = load_drafter(directory, target, branches, each)
        target.truncate(0)
        steps = list(decode(target, drafter, prompt, hot, Stopping(40), rule, FixedBudget(5)))
        seen.append([(step.tokens, step.metrics.num_drafted, step.metrics.num_accepted) for step in steps])
    assert seen[0] == seen[1] and sum(accepted for _, _, accepted in seen[0]) > 0


@pytest.mark.parametrize("layout", EAGLE_LAYOUTS)
def test_every_layout_of_eagle(layout, compiler, tmp_path):
    directory = make_eagle(tmp_path / "drafter", layout, **EAGLE_SIZES)
    drafters = [EagleDrafter.load(directory, test_eagle.Lender(), 3, compiler=each) for each in (None, compiler)]
    check_same(*drafters, width=EAGLE_SIZES["hidden"], vocabulary=EAGLE_SIZES["vocabulary"])


def dflash(tmp_path, compiling, config, extra=None, **options):
    directory = write_dflash(tmp_path / "drafter", config, shapes=lambda _: shapes_of(DFLASH), extra=extra)
    return DFlashDrafter(load_dflash(directory), *lent(), compiling=compiling, **options)


@pytest.mark.parametrize("variant", [*VARIANTS, "speculators"])
def test_every_way_to_look_and_scale_of_dflash(variant, compiler, tmp_path):
    """Windows and causal layers beside open ones; tokens that were never trained."""
    config, extra = {**DFLASH, **VARIANTS.get(variant, {})}, None
    if variant == "speculators":
        layer = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
        config = exported(layer={**layer, "use_sliding_window": True, "sliding_window": 7})
        extra = {"t2d": torch.arange(config["draft_vocab_size"]) % 3 > 0}
    drafters = [dflash(tmp_path, each, config, extra) for each in (None, Compiling(compiler, POSITIONS))]
    check_same(*drafters, width=32, vocabulary=47)
    kept = list(range(0, 47, 2))
    few = [dflash(tmp_path, each, config, extra, draft_tokens=kept) for each in (None, Compiling(compiler, POSITIONS))]
    check_same(*few, width=32, vocabulary=47)


def test_mixing_of_dflash_2_over_more_taps_than_rows(compiler, tmp_path):
    config = parse_dflash_config({**DFLASH, **VARIANTS["causal_window"]})
    torch.manual_seed(0)
    net = DFlash2Net(config, DFlash2Sizes(taps=9, group=4, rank=8, top_k=5)).eval().requires_grad_(False)
    for name, parameter in net.named_parameters():
        if "kernel" in name:
            parameter.normal_(0, 0.1)
    drafters = [DFlash2Drafter(net, *lent(), compiling=each) for each in (None, Compiling(compiler, POSITIONS))]
    check_same(*drafters, width=32, vocabulary=47)


@pytest.mark.parametrize("own_output", [True, False])
def test_medusa_heads_of_several_layers(own_output, target, compiler):
    torch.manual_seed(0)
    net = MedusaNet(64, 320, 4, num_layers=3, borrows_head=not own_output).eval().requires_grad_(False)
    head = None if own_output else target.lend("head")
    drafters = [
        MedusaDrafter(net, target.info, head, "best-first", compiling=each)
        for each in (None, Compiling(compiler, POSITIONS))
    ]
    check_same(*drafters, width=64, vocabulary=320)


FORMS = {
    "mimo": MtpForm(hidden_first=True),
    "raw": MtpForm(recurse_normed=False),
    "zero-centred": MtpForm(norm_offset=1.0),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("modules", [1, 2])
def test_every_form_of_plain_modules(form, modules, compiler, tmp_path):
    """And a rotary part of each head, biases, several modules."""
    config = {**mtp_support.CONFIGS["mimo"], "partial_rotary_factor": 0.5}
    tensors = {
        name.replace("mtp_layers.0.", f"mtp_layers.{k}."): (1 + 0.1 * k) * tensor
        for k in range(modules) for name, tensor in published("mimo").items()
    }  # fmt: skip
    net = load_mtp(saved(tmp_path / "mimo", tensors, config))
    for module in net.modules_by_depth:
        norms = [each for each in module.modules() if type(each).__name__ == "RMSNorm"]
        for norm in norms:
            norm.offset = FORMS[form].norm_offset
        module.form = FORMS[form]
    net.form = FORMS[form]
    drafters = [MtpDrafter(net, mtp_support.Lender(), 2, None, each) for each in (None, compiler)]
    check_same(*drafters, width=mtp_support.HIDDEN, vocabulary=mtp_support.VOCABULARY)


@pytest.mark.parametrize("form", ["deepseek", "glm", "qwen3_next", "qwen3_5"])
def test_blocks_that_are_not_plain_run_on_torch_only(form, compiler, tmp_path):
    net = load_mtp(saved(tmp_path, published(form), mtp_support.CONFIGS[form]))
    with pytest.raises(TorchOnly, match="has no graph: this draft network runs on torch only"):
        MtpDrafter(net, mtp_support.Lender(), compiler=compiler)


def test_parallel_heads_as_meta_stores_them(compiler, tmp_path):
    params, tensors = mtp_support.parallel_heads()
    net = load_parallel_heads(saved(tmp_path, tensors, params, "params.json"))
    drafters = [ParallelMtpDrafter(net, mtp_support.Lender(), "best-first", None, each) for each in (None, compiler)]
    check_same(*drafters, width=mtp_support.HIDDEN, vocabulary=mtp_support.VOCABULARY)


@pytest.mark.parametrize("kind", MAKERS)
def test_eight_bits_are_near(kind, target, tmp_path, monkeypatch):
    """The same graphs over quantised matrices: smaller, and the first law of a draft is about the same."""
    directory = MAKERS[kind](tmp_path / "drafter")
    whole, rounded = (
        load_drafter(directory, target, 1, compiler_in(tmp_path, monkeypatch, bits)) for bits in (None, 8)
    )
    assert rounded.own_bytes < 0.8 * whole.own_bytes
    random, layers = np.random.default_rng(1), len(whole.requirements.feature_layers)
    features, first = torch.tensor(random.standard_normal((9, layers, 64)), dtype=torch.float32), []
    for drafter in (whole, rounded):
        drafter.observe(list(range(9)), features)
        sampler = Recorder(9)
        drafter.draft((5,), 1, sampler)
        first.append(sampler.seen[(5,)])
    there = first[0] > ABSENCE
    off = np.abs(first[0] - first[1])[there]
    assert 0 < np.median(off) < 0.25 * np.std(first[0][there])


def test_what_is_written_is_named_by_its_content_and_written_once(target, tmp_path, monkeypatch):
    seen = []

    def remember(graphs):
        seen.append(graphs)
        return compiler_in(tmp_path, monkeypatch)(graphs)

    load_drafter(MAKERS["eagle3"](tmp_path / "one"), target, 1, remember)
    cache = tmp_path / "cache" / "drafters"
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [seen[0].key()]
    before = {path: path.stat().st_mtime_ns for path in (cache / seen[0].key()).iterdir()}
    load_drafter(tmp_path / "one", target, 3, remember)
    assert {path: path.stat().st_mtime_ns for path in (cache / seen[0].key()).iterdir()} == before
    assert seen[0].key() == seen[1].key() != seen[0].key(8)
    assert replace(seen[0], form=replace(seen[0].form, epsilon=1.0)).key() != seen[0].key()
    net, positions = EagleDrafter.load(tmp_path / "one", target)._net, Compiling.of(remember, target.info).positions
    assert eagle_graphs(net, positions, False).key() == seen[0].key()
    net.norm.weight[3] += 1e-3
    assert eagle_graphs(net, positions, False).key() != seen[0].key()


def test_the_targets_head_is_read_where_it_lies_and_odd_matrices_stay_whole(target, tmp_path, monkeypatch):
    caught = []

    def catch(graphs):
        caught.append(graphs)
        return compiler_in(tmp_path, monkeypatch, 8)(graphs)

    drafter = load_drafter(MAKERS["eagle1"](tmp_path / "drafter"), target, 1, catch)
    assert caught[0].lent["head"].ctypes.data == target.lend("head").ctypes.data
    assert "head" in drafter.requirements.borrows
    table = WeightFile(tmp_path / "cache" / "drafters" / caught[0].key(8)).table
    assert "0.qkv.codes" in table and "0.down" in table and "0.down.codes" not in table  # 40 columns
    assert not [name for name in table if name.startswith(("head", "embedding"))]


def test_a_head_that_is_read_whole_counts_where_threads_are_given(target, tmp_path, monkeypatch):
    opened, given = [], []

    def keep(graphs):
        opened.append((graphs, compiler_in(tmp_path, monkeypatch)(graphs)))
        return opened[0][1]

    load_drafter(MAKERS["eagle1"](tmp_path / "drafter"), target, 1, keep)
    graphs, runner = opened[0]
    monkeypatch.setattr(onnx_runner, "_SMALL", runner.num_bytes + 1)
    monkeypatch.setattr(onnx_runner, "open_session", lambda path, threads: given.append(threads))
    for each in (graphs, replace(graphs, lent={})):
        compiler_in(tmp_path, monkeypatch, threads=3)(each)
    assert given == [3, 1]


def test_a_cache_that_has_grown_leaves_nothing_of_the_old_one(target, compiler, tmp_path):
    drafter = load_drafter(MAKERS["eagle1"](tmp_path / "drafter"), target, 1, compiler)
    random, caches, buffers = np.random.default_rng(1), [drafter._cache], []
    for _ in range(3):
        features = torch.tensor(random.standard_normal((60, 1, 64)), dtype=torch.float32)
        drafter.observe(random.integers(0, 320, 60).tolist(), features)
        drafter.draft((5,), 3, Recorder(60))
        buffers.append(weakref.ref(caches[0].slots._buffers))
    assert caches[0].slots._buffers is buffers[-1]()
    assert [each() for each in buffers[:-1] if each() is not buffers[-1]()] == [None] * 2


def test_a_block_beyond_the_rotary_tables_runs_on_torch_only(compiler, tmp_path):
    largest = {**DFLASH, "block_size": AHEAD + 1}
    dflash(tmp_path / "largest", Compiling(compiler, POSITIONS), largest)
    with pytest.raises(TorchOnly, match="a block of more than 65 slots, here 66, has no graph"):
        dflash(tmp_path / "larger", Compiling(compiler, POSITIONS), {**DFLASH, "block_size": AHEAD + 2})


def test_a_network_says_what_runs_it(target, tmp_path, monkeypatch):
    for kind, maker in MAKERS.items():
        directory = maker(tmp_path / kind)
        compilers = (None, compiler_in(tmp_path, monkeypatch), compiler_in(tmp_path, monkeypatch, 8))
        ran = [load_drafter(directory, target, 1, each).network for each in compilers]
        assert ran == ["torch, float32", "onnx, float32", "onnx, int8"]
    assert graft(load_drafter(directory, target, 1), 1).network == "torch, float32"


def test_a_kind_without_graphs_says_so(target, compiler, tmp_path, monkeypatch):
    assert set(WITH_GRAPHS) == set(MAKERS)
    monkeypatch.setattr("drafters.registry.WITH_GRAPHS", ())
    with pytest.raises(TorchOnly, match="of kind 'medusa' have no graph: this draft network runs on torch only"):
        load_drafter(MAKERS["medusa"](tmp_path / "drafter"), target, 1, compiler)


def test_graphs_are_written_through_graph_layers_alone(target, tmp_path):
    """An engine's own dialect sees every product and every norm."""

    class Counting(GraphLayers):
        products = norms = 0

        def linear(self, *arguments):
            self.products += 1
            return super().linear(*arguments)

        def norm(self, *arguments):
            self.norms += 1
            return super().norm(*arguments)

    def count(graphs):
        graphs.write(tmp_path)
        table = WeightFile(tmp_path).table
        for step, add in graphs.steps.items():
            graph = Counting(table)
            add(graph)
            model = graph.model(step)
            operators = [node.op_type for node in model.graph.node]
            assert graph.products == operators.count("Gemm") - ("head" in [each.name for each in model.graph.input])
            assert graph.norms == operators.count("RMSNormalization")
            counted.append((step, graph.products, graph.norms))
        raise Counted

    class Counted(Exception):
        pass

    counted: list[tuple[str, int, int]] = []
    with pytest.raises(Counted):
        load_drafter(MAKERS["eagle3"](tmp_path / "drafter"), target, 1, count)
    assert counted == [("rows", 5, 4), ("fuse", 1, 0)]
