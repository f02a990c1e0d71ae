"""Answers are the target's own whoever drafts them; which are written is fixed; torn lines are written again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from spec_planner.config import PlannerConfig  # noqa: E402
from spec_planner.decoding.sampling import SamplingParams  # noqa: E402
from spec_planner.learning.corpus import CorpusError  # noqa: E402
from spec_planner.learning.files import RunError  # noqa: E402
from spec_planner.train.deployment import Deployment  # noqa: E402
from spec_planner.train.expert_drafter import ExpertDrafter  # noqa: E402
from spec_planner.train.prompts import read_prompts  # noqa: E402
from spec_planner.train.responses import ResponseFile, plan_jobs, write_responses  # noqa: E402

HEADER = {"target": "tiny", "seed": 0}


@pytest.fixture(scope="module")
def prompts(settings):
    return read_prompts(settings.prompts)


@pytest.fixture(scope="module")
def deployment(settings, prompts):
    config = PlannerConfig(model=str(settings.target), max_tokens=24, engine="torch", device="cpu")
    with Deployment(config, prompts.skills, lambda line: None) as deployment:
        yield deployment


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_draft_changes_no_token_and_saves_passes(deployment, prompts, temperature):
    prompt = prompts.all[0]
    asked, sampling = deployment.ask(prompt), SamplingParams(temperature, seed=5)
    plain, _ = deployment.answer(asked, sampling)
    drafter = ExpertDrafter(deployment.drafter("lookup"))
    for draft in (deployment.expert_answer(prompt), plain, plain[:9] + (3, 3, 3), []):
        drafter.expect(len(asked.ids), draft)
        said, steps = deployment.answer(asked, sampling, drafter, 31)
        assert said == plain
        if draft == plain:
            assert len(steps) == 2  # the prefill, and one pass for all the rest


def test_the_expert_goes_on_where_the_prompt_ends(deployment, prompts, settings):
    from spec_planner.language.tokenizer import Tokenizer

    prompt, tokenizer = prompts.all[0], Tokenizer(settings.target)
    text = tokenizer.decode((*deployment.ask(prompt).ids, *deployment.expert_answer(prompt)))
    numbered = "\n".join(f"{number}. {line}" for number, line in enumerate(prompt.lesson.plan, 1))
    assert text.endswith(f"assistant\n{numbered}")


def test_more_answers_keep_those_there_were(prompts):
    few, all_, many = (plan_jobs(prompts, count, 2, (0.0, 1.0), 0) for count in (4, None, 40))
    keyed = {job.key: job for job in many}
    assert len(few) == 6 and len(all_) == 17 and len(many) == len(keyed) == 42
    for job in (*few, *all_):
        assert keyed[job.key] == job
    assert {job.temperature for job in all_} == {0.0, 1.0}
    greedy = [job.prompt.key for job in many if job.temperature == 0]
    assert len(greedy) == len(set(greedy))  # a greedy answer is the same every time
    assert [job.key for job in plan_jobs(prompts, 4, 2, (0.0, 1.0), 1)] != [job.key for job in few]


def test_what_a_kill_tore_is_written_again_and_nothing_else(deployment, prompts, tmp_path):
    jobs = plan_jobs(prompts, 3, 1, (0.0, 1.0), 0)
    file = ResponseFile(tmp_path, HEADER)
    assert write_responses(jobs, file, deployment, lambda share, line: None, lambda: False)
    path = tmp_path / "responses.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    file.repair()
    there = file.read()
    left = [job for job in jobs if job.key not in there]
    assert [job.key for job in left] == [jobs[-1].key]
    write_responses(left, ResponseFile(tmp_path, HEADER), deployment, lambda share, line: None, lambda: False)
    assert path.read_bytes() == whole
    path.write_bytes(whole[:5])  # killed while the header was written
    file.repair()
    assert file.read() == {} and path.read_bytes() == b""


def test_answers_of_several_processes_are_read_together(deployment, prompts, tmp_path):
    jobs = plan_jobs(prompts, 2, 1, (1.0,), 0)
    for number in (0, 1):
        own = jobs[number::2]
        write_responses(own, ResponseFile(tmp_path, HEADER, number), deployment, lambda *said: None, lambda: False)
    assert set(ResponseFile(tmp_path, HEADER).read()) == {job.key for job in jobs}


def test_answers_made_otherwise_are_not_mixed_in(deployment, prompts, tmp_path):
    jobs = plan_jobs(prompts, 1, 1, (0.0,), 0)
    write_responses(jobs, ResponseFile(tmp_path, HEADER), deployment, lambda share, line: None, lambda: False)
    with pytest.raises(RunError, match="were made with target 'tiny', not 'large': give the same, or name another"):
        ResponseFile(tmp_path, {**HEADER, "target": "large"}).repair()
    long = replace(jobs[0].prompt, lesson=replace(jobs[0].prompt.lesson, instruction="word " * 3000))
    with pytest.raises(RunError, match=r"prompt toy/toy-\d+ cannot be asked: the prompt has"):
        write_responses(
            [replace(jobs[0], prompt=long)], ResponseFile(tmp_path, HEADER), deployment, print, lambda: False
        )


def test_plain_prompts_in_their_three_forms(tmp_path):
    text, lines, chats = tmp_path / "a.txt", tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    asked = [f"Question {number}?" for number in range(40)]
    text.write_text("\n\n".join([*asked, asked[0]]))
    lines.write_text("".join(json.dumps({"prompt": line}) + "\n" for line in asked))
    chats.write_text("".join(json.dumps({"messages": [{"role": "user", "content": line}]}) + "\n" for line in asked))
    first, second, third = (read_prompts(path) for path in (text, lines, chats))
    assert first.all == second.all == third.all and len(first.of("validation")) == 2
    text.write_text("\n".join([*asked, "One\u2028question?"]))
    assert any(prompt.messages[0]["content"] == "One\u2028question?" for prompt in read_prompts(text).all)
    chats.write_text('{"messages": [{"role": "user"}]}\n')
    with pytest.raises(CorpusError, match="c.jsonl, line 1 is no prompt"):
        read_prompts(chats)
    text.write_text("Only one?\n")
    with pytest.raises(CorpusError, match="has 1 prompts to learn from and 0 to validate with"):
        read_prompts(text)
    with pytest.raises(CorpusError, match="does not exist"):
        read_prompts(tmp_path / "none")
