"""Training sequences are what the node feeds and what the model should answer; the seed alone decides their order."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

pytest.importorskip("transformers")

from spec_planner.finetune.stream import Mix, PackStream, validation_packs, vary_skills  # noqa: E402
from spec_planner.language.prompt import build_prompt  # noqa: E402
from spec_planner.language.tokenizer import Tokenizer  # noqa: E402
from spec_planner.learning.corpus import Encoder, continuation, end_of_turn, read_corpus  # noqa: E402
from spec_planner.learning.packing import Example  # noqa: E402
from tests.finetune.corpora import write_tasks  # noqa: E402
from tests.models import make_tiny_model  # noqa: E402


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer(make_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def corpus(tmp_path):
    return read_corpus(write_tasks(tmp_path / "tasks", 60))


def test_a_sequence_is_prompt_answer_and_end_of_turn(corpus, tokenizer):
    task, encoder = corpus.lessons[0], Encoder(tokenizer)
    example = encoder.encode(task, corpus.skills["toy"])
    prompt = build_prompt(task.instruction, corpus.skills["toy"], task.scene, task.history, examples=False)
    fed = tokenizer.encode_chat(prompt.messages, prompt.answer_start)
    assert tuple(example.ids[: example.answer]) == fed
    answer = example.ids[example.answer :].tolist()
    assert answer[-1] in tokenizer.stop_ids
    text = tokenizer.decode(fed + tuple(answer)).split("assistant\n")[-1]
    assert text == "\n".join(f"{number}. {line}" for number, line in enumerate(task.plan, 1))


def test_the_answer_has_the_ids_of_the_whole_text_where_the_boundary_allows():
    class Merging:
        """Ids are characters, but ``. `` is one."""

        def encode(self, text):
            return [ord(c) for c in text.replace(". ", "•")]

    class Plain:
        def encode(self, text):
            return [ord(c) for c in text]

    assert continuation(Plain(), "1.", " go") == [ord(c) for c in " go"]
    assert continuation(Merging(), "1.", " go\n2. x") == [ord(c) for c in " go\n2•x"]  # "1." is fed: it cannot merge


def test_the_end_of_turn_is_the_templates(tokenizer):
    assert end_of_turn(tokenizer) == tokenizer.vocabulary["<|im_end|>"]


def test_varied_skills_keep_what_plans_need(corpus):
    skills = corpus.skills["toy"]
    lists = [vary_skills(skills, {"pick", "wait"}, random.Random(seed)) for seed in range(60)]
    names = [tuple(skill.name for skill in varied) for varied in lists]
    assert all({"pick", "wait"} <= set(found) for found in names)
    assert {len(found) for found in names} == {4, 5} and len(set(names)) > 20
    assert 10 < sum(len(found) == 4 for found in names) < 30


def stream_of(corpus, tokenizer, seed=0, general=(), **mix):
    return PackStream(corpus.of("train"), corpus.skills, Encoder(tokenizer), general, Mix(600, **mix), seed)


def test_packs_depend_on_the_seed_alone(corpus, tokenizer):
    first, again, other = (stream_of(corpus, tokenizer, seed) for seed in (0, 0, 1))
    count = first.packs_in_epoch(1)
    forward = [first.at(1, index).ids.tolist() for index in range(count)]
    backward = [again.at(1, index).ids.tolist() for index in reversed(range(count))]
    assert forward == backward[::-1]
    assert forward != [other.at(1, index).ids.tolist() for index in range(other.packs_in_epoch(1))]
    assert sorted(forward) != sorted(first.at(0, index).ids.tolist() for index in range(first.packs_in_epoch(0)))


def test_an_epoch_learns_every_task_once(corpus, tokenizer):
    stream = stream_of(corpus, tokenizer, vary_share=0.0)
    packs = [stream.at(0, index) for index in range(stream.packs_in_epoch(0))]
    expected = sum(len(example) - example.answer for example in stream.examples)
    assert sum(pack.num_answer_tokens for pack in packs) == expected
    assert max(map(len, packs)) <= 600


def test_general_text_is_mixed_in_by_share(corpus, tokenizer):
    general = [Example(np.arange(10, 40, dtype=np.int32) + i, 12) for i in range(5)]
    stream = stream_of(corpus, tokenizer, general=general, general_share=0.25)
    kinds = [stream.at(0, index).distil for index in range(stream.packs_in_epoch(0))]
    assert sum(kinds) == len(kinds) // 4 and not kinds[0]


def test_validation_takes_at_most_so_many(corpus, tokenizer):
    encoder = Encoder(tokenizer)
    examples = [encoder.encode(task, corpus.skills["toy"]) for task in corpus.of("validation")]
    packs = validation_packs(examples, 600, 7)
    assert sum(len({i for askers in pack.askers for i in askers}) for pack in packs) == 7
    assert validation_packs([], 600, 7) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"plan": []}, r"task toy-0 in .*toy.jsonl has no plan to learn"),
        ({"instruction": None}, r"toy.jsonl, line 2 is no task"),
        ({"domain": "../toy"}, r"toy-0 in .* is of domain '../toy', which is no skill file's name"),
        ({"split": "test"}, r"no task in .* is of split 'train'"),
        ({"scene": {"places": ["table"], "objects": [{"name": "cup", "at": "moon"}]}}, r"toy-0"),
    ],
)
def test_a_wrong_task_is_named(corpus, tmp_path, change, sentence):
    path = tmp_path / "tasks" / "toy.jsonl"
    line = json.loads(path.read_text().splitlines()[0])
    path.write_text("\n" + json.dumps({**line, **change}) + "\n")
    with pytest.raises(ValueError, match=sentence):
        read_corpus(tmp_path / "tasks")
