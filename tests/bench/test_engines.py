"""The comparison's arithmetic: whose turn it is, what a ratio is of, what a cycle, a pass and a precision cost."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("llguidance")

import torch
import transformers

from spec_planner.bench import engines_run
from spec_planner.bench.engines import Competitor, Question, Reply, in_turns, rows
from spec_planner.bench.engines_accuracy import read_answers
from spec_planner.bench.engines_llama import greedy
from spec_planner.bench.engines_ours import AnyWidth, OurEngine, cycle_figures
from spec_planner.bench.engines_passes import Cell, fastest_cells, floor_milliseconds, measure_passes, read_bytes
from spec_planner.bench.engines_plot import plot
from spec_planner.bench.engines_table import tables
from spec_planner.bench.engines_transformers import Generator
from spec_planner.config import PlannerConfig
from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.engines.decoder_config import read_decoder_config
from spec_planner.engines.torch_target import TorchTarget
from spec_planner.pipeline.types import PlanRequest
from tests.models import make_tiny_model

IDS = tuple(np.random.default_rng(2).integers(3, 320, 150).tolist())
REQUEST = PlanRequest("Bring the cup.", SamplingParams(), 12)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def ours(model):
    config = PlannerConfig(model=str(model), engine="torch", device="cpu", threads=1, num_draft_tokens=3)
    engine = OurEngine(config, ("draft-model", "lookup"))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def questions(ours):
    return [Question(ids, REQUEST, ours.reference(ids, 14)) for ids in (IDS[:40], IDS[60:130], IDS[:20] * 3)]


def scripted(engine, precision, family, decoding, replies, asked):
    """A competitor that answers question i, named by its only id, with replies[i]."""

    def ask(question):
        asked.append((engine, decoding, question.ids[0]))
        return replies[question.ids[0]]

    return Competitor(engine, precision, family, decoding, ask)


def test_everybody_answers_every_question_begins_once_and_follows_others_each_time():
    names, asked = "abcdefgh", []
    reply = Reply((1, 2), 1, 1.0)
    competitors = [scripted(name, "p", "p", "plain", [reply] * 8, asked) for name in names]
    questions = [Question((i,), REQUEST, (1, 2)) for i in range(8)]
    rounds = list(in_turns(competitors, questions))
    orders = ["".join(engine for engine, _, index in asked if index == i) for i in range(8)]
    assert all(sorted(order) == sorted(names) for order in orders) and all(len(round_) == 8 for round_ in rounds)
    assert [order[0] for order in orders] == [*names]
    before = {name: {order[order.index(name) - 1] for order in orders if order[0] != name} for name in names}
    assert all(len(neighbours) > 2 for neighbours in before.values())
    asked.clear()
    list(in_turns(competitors, questions))
    assert "".join(engine for engine, _, _ in asked) == "".join(orders)


def test_ratios_are_prompt_by_prompt_and_tokens_are_compared():
    said = (1, 2, 3)
    asked = []
    competitors = [
        scripted("onnx", "int8", "int8", "plain", [Reply(said, 2, 1.0, 2), Reply(said, 2, 2.0, 2)], asked),
        scripted("onnx", "int8", "int8", "eagle3", [Reply(said, 2, 0.5, 1), Reply((1, 2, 9), 2, 0.5, 1)], asked),
        scripted("llama.cpp", "Q8_0", "int8", "plain", [Reply(said, 2, 2.0, 2), Reply(said, 2, 2.0, 2)], asked),
        scripted("llama.cpp", "F32", "float32", "plain", [Reply(said, 2, 4.0, 2), Reply(said, 2, 8.0, 2)], asked),
        scripted("llama.cpp", "F32", "float32", "lookup", [Reply(said, 2, 1.0, 1), Reply(said, 2, 1.0, 1)], asked),
    ]
    questions = [Question((i,), REQUEST, said) for i in range(2)]
    found = rows(competitors, list(in_turns(competitors, questions)), questions)
    plain, speculative, llama, slow, _ = found
    assert plain["tokens_per_second"] == {"median": 1.5, "low": 1.2, "high": 1.8}
    assert plain["to_llama"] == {"median": 1.5, "low": 1.25, "high": 1.75}
    assert speculative["to_llama"]["median"] == 4.0 and speculative["to_fastest_llama"]["median"] == 4.0
    assert speculative["to_fastest_llama_speculation"]["median"] == 2.0
    assert llama["to_fastest_llama"]["median"] == 1.0 and slow["to_llama"]["median"] == 1.0
    assert slow["to_fastest_llama"] == {"median": 0.38, "low": 0.31, "high": 0.44}
    assert (speculative["as_plain"], speculative["as_reference"], speculative["tokens_per_pass"]) == (1, 1, 2.0)
    assert engines_run.plain_step(found) == {"engine": "onnx", "precision": "int8", "milliseconds": 666.67}


def test_two_types_of_one_family_have_their_own_plain_and_the_first_is_compared_with():
    asked, said = [], (1, 2, 3)
    other = (1, 2, 4)
    competitors = [
        scripted("onnx", "int4", "int4", "plain", [Reply(said, 2, 1.0, 2)], asked),
        scripted("llama.cpp", "Q4_1", "int4", "plain", [Reply(other, 2, 2.0, 2)], asked),
        scripted("llama.cpp", "Q4_1", "int4", "lookup", [Reply(other, 2, 2.0, 2)], asked),
        scripted("llama.cpp", "Q4_0", "int4", "plain", [Reply(said, 2, 4.0, 2)], asked),
        scripted("llama.cpp", "Q4_0", "int4", "lookup", [Reply(said, 2, 4.0, 2)], asked),
    ]
    questions = [Question((0,), REQUEST, said)]
    found = rows(competitors, list(in_turns(competitors, questions)), questions)
    assert [row["as_plain"] for row in found] == [1] * 5
    assert [row["to_llama"]["median"] for row in found] == [2.0, 1.0, 1.0, 0.5, 0.5]


def test_answers_under_the_grammar_have_no_ratios():
    asked, said = [], (1, 2, 3)
    ours = scripted("onnx", "int8", "int8", "eagle3", [Reply(said, 2, 1.0, 2)], asked)
    competitors = [
        dataclasses.replace(ours, answers="grammar"),
        scripted("llama.cpp", "Q8_0", "int8", "plain", [Reply(said, 2, 2.0, 2)], asked),
    ]
    questions = [Question((0,), REQUEST, said)]
    row, beside = rows(competitors, list(in_turns(competitors, questions)), questions)
    assert row["to_llama"] is row["to_fastest_llama"] is row["to_fastest_llama_speculation"] is None
    assert row["tokens_per_second"]["median"] == 2.0 and beside["to_llama"]["median"] == 1.0


def test_without_llama_there_is_no_ratio_and_a_single_token_is_not_timed():
    asked = []
    competitors = [scripted("torch", "float32", "float32", "plain", [Reply((1,), 0, 0.0, 0)], asked)]
    question = Question((0,), REQUEST, (1,))
    (row,) = rows(competitors, list(in_turns(competitors, [question])), [question])
    assert row["tokens_per_second"] is row["to_llama"] is row["tokens_per_pass"] is None
    assert row["as_reference"] == 1 and engines_run.plain_step([row]) is None


class TestOurs:
    def test_everybody_says_as_much_as_the_reference(self, ours, questions):
        for competitor in ours.competitors(grammar=True):
            for question in questions:
                reply = competitor.ask(question)
                if competitor.answers == "free text":
                    assert reply.tokens == question.answer, competitor.label
                assert reply.timed == len(reply.tokens) - 1 and reply.seconds > 0

    def test_decodings_are_plain_each_drafter_and_the_grammar(self, ours):
        found = [(c.decoding, c.answers) for c in ours.competitors(grammar=True)]
        assert found == [(name, "free text") for name in ("plain", "draft-model", "lookup")] + [
            ("draft-model", "grammar")
        ]

    def test_the_grammar_is_the_pipelines_own_answer(self, ours, questions):
        *_, competitor = ours.competitors(grammar=True)
        _ = ours.target
        assert competitor.ask(questions[0]).tokens == ours.pipeline.run(REQUEST).tokens

    def test_cycles_of_full_length_are_measured(self, ours, questions):
        cycles = ours.cycles(questions, 3)
        assert cycles and all(cycle.num_drafted <= 3 for cycle in cycles)
        assert max(cycle.num_drafted for cycle in cycles) == 3


def test_a_cycle_is_draft_and_verify_and_the_rest_is_overhead():
    def cycle(drafted, draft_ms, verify_ms, step_ms):
        return SimpleNamespace(num_drafted=drafted, draft_ms=draft_ms, verify_ms=verify_ms, step_ms=step_ms)

    cycles = [cycle(3, 1.0, 9.0, 11.0), cycle(3, 3.0, 9.0, 12.0), cycle(0, 0.0, 5.0, 7.0)]
    found = cycle_figures(cycles, 3)
    whole = {"median": 11.0, "low": 10.5, "high": 11.5}
    assert found == {"draft_ms": 2.0, "verify_ms": 9.0, "cycle_ms": whole, "overhead": 0.1, "cycles": 2}
    assert cycle_figures(cycles[2:], 3) is None


def test_generate_says_the_same_and_is_timed_after_its_first_pass(model, questions):
    generator = Generator(model, "float32", 1)
    for question in questions:
        plain, assisted = (generator.answer(question.ids, len(question.answer), lookup) for lookup in (None, 4))
        assert plain.tokens == assisted.tokens == question.answer
        assert plain.timed == plain.passes == len(question.answer) - 1
        assert assisted.timed <= plain.timed and assisted.passes <= plain.passes
    assert generator.answer(IDS[:20] * 3, 30, 4).passes > 0


class TestPasses:
    def test_every_context_has_its_widths_and_nothing_stays(self, model):
        target = TorchTarget.load(model, context_length=256, device="cpu")
        cells = list(measure_passes(target, IDS, {200: (1, 8), 64: (1, 4, 8)}, repeats=2))
        assert [(cell.context, cell.width) for cell in cells] == [(64, 1), (64, 4), (64, 8), (200, 1), (200, 8)]
        assert all(cell.milliseconds["median"] > 0 for cell in cells) and target.committed_length == 0

    @pytest.mark.parametrize(
        ("engine", "precision", "weights", "value"),
        [
            ("torch", "float32", 1000, 4),
            ("torch", "bfloat16", 1000, 2),
            ("onnx", "int8", 1000, 4),
            ("openvino", "bfloat16", 500, 4),
            ("llama.cpp", "Q8_0", 1000, 2),
        ],
    )
    def test_the_floor_is_weights_and_keys_and_values_over_the_bandwidth(
        self, model, engine, precision, weights, value
    ):
        info = SimpleNamespace(engine=engine, precision=precision, weight_bytes=1000)
        config = read_decoder_config(model)
        expected = weights + 2 * 2 * 2 * 16 * 10 * value  # keys and values, layers, heads of 16, tokens
        assert read_bytes(info, config, 10) == expected
        assert floor_milliseconds(info, config, 10, 1e6) == pytest.approx(expected / 1e3)

    @pytest.mark.parametrize(
        ("engine", "precision", "value"),
        [
            *(("torch", "bfloat16", 2), ("onnx", "float32", 4), ("onnx", "int4", 1.125)),
            *(("llama.cpp", "F32", 4), ("llama.cpp", "Q4_0", 1.0625)),
        ],
    )
    def test_an_embedding_that_is_not_the_head_is_not_read(self, tmp_path, engine, precision, value):
        config = read_decoder_config(make_tiny_model(tmp_path / "untied", tied=False))
        info = SimpleNamespace(engine=engine, precision=precision, weight_bytes=10**7)
        tied = dataclasses.replace(config, tied_head=True)
        saved = config.vocabulary_size * config.hidden_size * value
        assert read_bytes(info, tied, 10) - read_bytes(info, config, 10) == int(saved)

    def test_each_cell_keeps_the_faster_setting(self):
        def cell(context, width, median):
            return Cell(context, width, {"median": median, "low": median, "high": median})

        off = [("off", cell(64, 1, 2.0)), ("off", cell(64, 8, 3.0)), ("off", cell(128, 8, 3.0))]
        found = fastest_cells([*off, ("on", cell(64, 1, 1.0)), ("on", cell(64, 8, 4.0))])  # stopped before the last
        assert found == [("on", cell(64, 1, 1.0)), *off[1:]]
        assert fastest_cells([]) == []

    def test_a_width_of_one_configuration_is_free(self):
        config = PlannerConfig(engine="openvino")
        assert config.pass_width and AnyWidth(**dataclasses.asdict(config)).pass_width is None


class TestAccuracy:
    def test_perplexity_and_likeliest_tokens_are_those_of_the_whole_text_at_once(self, model, questions):
        found = read_answers(TorchTarget.load(model, context_length=256, device="cpu"), questions)
        network = transformers.AutoModelForCausalLM.from_pretrained(model).eval()
        surprise, likeliest = [], []
        for question in questions:
            with torch.no_grad():
                logits = network(torch.tensor([[*question.ids, *question.answer]])).logits[0]
            rows_ = logits[len(question.ids) - 1 : -1].log_softmax(-1)
            surprise += (-rows_[range(len(question.answer)), list(question.answer)]).tolist()
            likeliest += rows_.argmax(-1).tolist()
        assert found.perplexity == pytest.approx(math.exp(np.mean(surprise)), rel=1e-4)
        assert list(found.likeliest) == likeliest and found.agreement(found) == 1.0

    def test_another_model_agrees_less(self, model, questions, tmp_path):
        other = make_tiny_model(tmp_path / "other", seed=5)
        readings = [
            read_answers(TorchTarget.load(directory, context_length=256, device="cpu"), questions)
            for directory in (model, other)
        ]
        assert readings[1].agreement(readings[0]) < 1.0 and readings[1].perplexity > readings[0].perplexity


def test_the_lean_loop_for_others_is_greedy_decoding(model, questions):
    target = TorchTarget.load(model, context_length=256, device="cpu")
    for question in questions:
        truth = np.array([*question.ids, *question.answer])

        def oracle(told, truth=truth):
            guesses = truth[len(told) : len(told) + 5].copy()
            guesses[3:] = 0  # wrong from the fourth on
            return guesses

        count = len(question.answer)
        plain, drafted = greedy(target, question.ids, count), greedy(target, question.ids, count, oracle)
        assert plain.tokens == drafted.tokens == question.answer
        assert plain.passes == count - 1 and drafted.passes <= -(-(count - 1) // 3)


@pytest.mark.parametrize(
    ("flags", "left_out"),
    [
        ({"avx2"}, {("torch", "bfloat16"), ("torch", "float16"), ("openvino", "bfloat16")}),
        ({"avx2", "avx512_bf16"}, {("torch", "float16")}),
        (set(), set()),
    ],
)
def test_what_the_processor_would_emulate_is_left_out(monkeypatch, flags, left_out):
    monkeypatch.setattr(engines_run, "_cpu_flags", lambda: flags)
    engines, reasons = engines_run.engines_of_this_cpu()
    assert set(reasons) == left_out and not left_out & set(engines)
    assert ("onnx", "int4") in engines and not any(engine == "tensorrt" for engine, _ in engines)


def cells():
    for context, width in ((64, 1), (64, 8), (128, 1), (128, 4), (128, 8)):
        time = {"median": 2.0 * width, "low": 1.0, "high": 30.0}
        yield {
            **{"engine": "onnx", "precision": "int8", "context": context, "width": width},
            **{"milliseconds": time, "floor_ms": 0.5, "settings": "flash attention on" if width == 4 else ""},
        }


def test_the_plot_is_the_same_for_the_same_figures(tmp_path):
    pytest.importorskip("matplotlib")
    content = {"passes": list(cells()), "context": 128}
    for name in ("a.svg", "b.svg"):
        plot(content, tmp_path / name)
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn == (tmp_path / "b.svg").read_text()
    assert "onnx int8" in drawn and "after 128 tokens" in drawn and "8 rows" in drawn and "4 rows" not in drawn


def test_a_plot_of_one_context_alone_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    plot({"passes": [cell for cell in cells() if cell["context"] == 128], "context": 128}, tmp_path / "a.svg")
    assert "onnx int8" in (tmp_path / "a.svg").read_text()


def content_of(**parts):
    """Of a run that measured ``parts`` alone."""
    return {
        **{"rows": [], "left_out": [], "passes": [], "accuracy": [], "cycles": [], "complete": True},
        **{"context": 128, "threads": 2, "num_draft_tokens": 15, "draft_budget": "measured", "environment": {}},
        **{"machine": {"cpu": "Some CPU", "cores": "2", "system": "Linux"}, "versions": {"onnxruntime": "1.2"}},
        "prompts": {"planned": 5, "file": "held_out_prompts.jsonl"},
        **parts,
    }


def test_what_is_left_out_is_listed_with_the_reason():
    left = {"engine": "llama.cpp", "precision": "F32", "reason": "not installed: pip install llama-cpp-python"}
    text = tables(content_of(left_out=[left], passes=list(cells()), complete=False))
    assert "- llama.cpp F32: not installed: pip install llama-cpp-python" in text.splitlines()
    assert "Tokens per second" not in text and "answered by everybody" not in text  # nobody answered
    assert "| onnx | int8 | 8 | 16.0 (0.5) | 16.0 (0.5) |" in text and "Stopped before" in text
    assert "| 8.0 (1.0–30.0) flash |" in text
    title, *lines = [line for line in text.splitlines() if line.startswith("|")][:3]
    assert all(line.count("|") == title.count("|") for line in lines)


def test_the_machine_is_named_and_the_caption_counts_what_was_answered():
    versions = {"onnxruntime": "1.2", "llama.cpp": "CPU : AVX2 = 1 | OPENMP = 1 |"}
    text = tables(content_of(passes=list(cells()), versions=versions, bandwidth=28.3e9))
    first = text.splitlines()[0]
    assert first.startswith("Some CPU, 2 cores, 2 threads. onnxruntime 1.2. ")
    assert "CPU : AVX2 = 1 , OPENMP = 1. 2 threads read 28.3 GB/s" in first
    asked, question = [], Question((0,), REQUEST, (1, 2))
    competitors = [scripted("torch", "float32", "float32", "plain", [Reply((1, 2), 1, 1.0, 1)], asked)]
    found = rows(competitors, list(in_turns(competitors, [question])), [question])
    assert "\n1 prompt of held_out_prompts.jsonl, 2 threads" in tables(content_of(rows=found, complete=False))


def test_a_prompt_is_fed_from_nothing_each_time(model):
    target = TorchTarget.load(model, context_length=256, device="cpu")
    target.extend(PromptInput(IDS[:9]))
    assert greedy(target, IDS[:30], 5).tokens == greedy(target, IDS[:30], 5).tokens
