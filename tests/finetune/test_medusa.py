"""Medusa-2: the adapter and the heads learn together, and what is stored drafts for the new target as judged."""

from __future__ import annotations

import dataclasses
import functools
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from drafters.registry import load_drafter  # noqa: E402
from drafters.training.medusa2 import go_on  # noqa: E402
from drafters.training.trainee import make_trainee  # noqa: E402
from spec_planner.cli.main import main  # noqa: E402
from spec_planner.decoding.contracts import check_compatible  # noqa: E402
from spec_planner.engines.adapter import write_merged  # noqa: E402
from spec_planner.engines.identity import target_identity  # noqa: E402
from spec_planner.engines.torch_target import TorchTarget  # noqa: E402
from spec_planner.finetune import medusa as finetune_medusa  # noqa: E402
from spec_planner.finetune import run as finetune_run  # noqa: E402
from spec_planner.finetune.adapted_model import AdaptedModel  # noqa: E402
from spec_planner.finetune.learner import PlanLearner  # noqa: E402
from spec_planner.finetune.medusa import JointLearner, WarmHeads  # noqa: E402
from spec_planner.finetune.run import Settings, finetune  # noqa: E402
from spec_planner.language.tokenizer import Tokenizer  # noqa: E402
from spec_planner.learning.corpus import Encoder, read_corpus  # noqa: E402
from spec_planner.learning.files import RunError  # noqa: E402
from spec_planner.learning.packing import make_pack  # noqa: E402
from spec_planner.tasks.task import VALIDATION  # noqa: E402
from spec_planner.train.batches import make_batch  # noqa: E402
from spec_planner.train.learner import read_target_weights  # noqa: E402
from tests.drafters.training.toy_target import drafted_right  # noqa: E402
from tests.finetune.corpora import random_examples, write_tasks  # noqa: E402
from tests.models import make_tiny_model  # noqa: E402

ADAPTER, HEADS, STATE = "adapter_model.safetensors", "medusa_lm_head.safetensors", "state.safetensors"
CPU = torch.device("cpu")


def write_heads(target, directory, seed=1, noise=0.02, made_for=None, **options):
    """Heads a little off the target's own head, with a note as of ``spec-planner train``."""
    trainee = make_trainee("medusa", read_target_weights(target, CPU, torch.float32), {"num_heads": "3", **options})
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in trainee.net.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    directory.mkdir()
    trainee.save(directory, {"target": made_for or target_identity(target)})
    return directory


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> Settings:
    folder = tmp_path_factory.mktemp("medusa2")
    target = make_tiny_model(folder / "tiny")
    return Settings(
        target=target,
        tasks=write_tasks(folder / "tasks"),
        out=folder / "unset",
        steps=10,
        rank=4,
        learning_rate=1e-2,
        batch_tokens=1200,
        pack_tokens=600,
        general_share=0.2,
        medusa=write_heads(target, folder / "heads", draft_vocabulary="200"),
        evaluate_every=5,
        precision="float32",
    )


def run(settings, resume=False, stop=lambda: False):
    return finetune(settings, resume, lambda share, line: None, stop, ["spec-planner", "finetune"])


@pytest.fixture(scope="module")
def finished(settings):
    whole = dataclasses.replace(settings, out=settings.out.parent / "whole")
    return whole, run(whole)


def make_learners(settings, weight):
    model = AdaptedModel(settings.target, 4, 8, 0, CPU, torch.float32)
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.parameters.items():
            if "lora_B" in name:  # which begin at 0: the model is to be one that has learnt something
                parameter.normal_(std=0.02)
    heads = WarmHeads.read(settings.medusa, settings.target, target_identity(settings.target))
    trainee = heads.trainee(model, settings.target, random_examples(0))
    return model, PlanLearner(model), JointLearner(model, trainee, weight)


def test_plans_and_heads_get_better_and_the_card_says_what_came_out(finished, tmp_path):
    settings, summary = finished
    first, *_, last = summary["evaluations"]
    assert last["validation_loss"] < 0.8 * first["validation_loss"] and last["heads_loss"] < 0.8 * first["heads_loss"]
    write_merged(settings.target, settings.out, tmp_path / "merged")
    config = json.loads((settings.out / "drafter" / "config.json").read_text())
    assert config["spec_planner"]["target"] == target_identity(tmp_path / "merged") != target_identity(settings.target)
    assert len(config["medusa_rank_accuracy"]) == config["medusa_num_heads"] == 3
    assert config["draft_tokens"] == list(range(200))  # the heads' own, whatever the experts' plans say most
    card = (settings.out / "README.md").read_text()
    for sentence in ("is a new target: it says other things than tiny does", "exact with respect to the new target"):
        assert sentence in card
    assert "- medusa_weight: 0.2" in card and "| expert's tokens per Medusa pass |" in card


def test_what_is_stored_drafts_as_judged(finished, tmp_path):
    """In the merged model, whose arithmetic is another, the drafts are right exactly as often as training counted."""
    settings, summary = finished
    write_merged(settings.target, settings.out, tmp_path / "merged")
    target = TorchTarget.load(tmp_path / "merged", context_length=1024, device="cpu")
    drafter = load_drafter(settings.out / "drafter", target, 1)
    check_compatible(target.info, drafter)
    corpus, encoder = read_corpus(settings.tasks), Encoder(Tokenizer(settings.target))
    examples = [encoder.encode(each, corpus.skills[each.domain]) for each in corpus.of(VALIDATION)]
    batch = make_batch(make_pack(examples), {}, CPU)
    judged = (batch.windows(3)[:, 1:] >= 0).sum(0)
    shares = drafted_right(target, drafter, batch, 3).sum(0).double() / judged
    assert [round(share, 4) for share in shares.tolist()] == summary["heads"]["by_depth"][1]
    assert 0.1 < float(shares[0]) < 0.95, "a shift would not show"


@pytest.mark.parametrize("options", [{}, {"borrows_head": "false", "num_layers": "2"}], ids=str)
def test_the_loss_is_the_sum_that_the_paper_writes(settings, tmp_path, options):
    heads = write_heads(settings.target, tmp_path / "heads", noise=0.3, **options)
    model, plans, joint = make_learners(dataclasses.replace(settings, medusa=heads), 0.7)
    examples = random_examples(0)
    pack = make_pack(examples)
    expected = 0.0
    with torch.no_grad():
        for each in examples:  # one by one, without a forest
            h = model.hidden_states(make_pack([each]))
            for depth in range(3):
                x = torch.from_numpy(each.ids.astype(np.int64))[each.answer + 1 + depth :]
                source = h[each.answer - 1 :][: len(x)]
                logits = joint.trainee.net.logits(source, range(depth, depth + 1), model.head)[0]
                expected += 0.8**depth * float(F.cross_entropy(logits, x, reduction="sum"))
        (loss, count), (alone, same) = joint.loss(pack), plans.loss(pack)
    assert count == same == sum(len(each) - each.answer for each in examples)
    assert float(loss) == pytest.approx(float(alone) + 0.7 * expected, rel=1e-4)


def test_the_heads_loss_reaches_the_adapter_too(settings):
    model, plans, joint = make_learners(settings, 1.0)
    pack = make_pack(random_examples(0))
    hidden = model.hidden_states(pack)
    (joint.loss(pack)[0] - plans.loss(pack, hidden)[0]).backward()
    assert all(bool(parameter.grad.abs().max() > 1e-4) for parameter in joint.parameters.values())
    assert model.head.grad is None and model.embedding.grad is None


def test_of_a_large_vocabulary_the_heads_draw_the_same_part_for_the_same_pack(settings, monkeypatch):
    """So a resumed run draws what an uninterrupted one does; held-out packs are judged over all of it."""
    _, _, whole = make_learners(settings, 1.0)
    monkeypatch.setattr(finetune_medusa, "go_on", functools.partial(go_on, loss_vocabulary=40))
    _, _, part = make_learners(settings, 1.0)
    packs = make_pack(random_examples(0)), make_pack(random_examples(1))
    with torch.no_grad():
        first, again, full = (float(each.loss(packs[0])[0]) for each in (part, part, whole))
        part.loss(packs[1])
        assert first == again == float(part.loss(packs[0])[0]) < full
        assert torch.equal(part.measure(packs[0]), whole.measure(packs[0]))


def test_at_weight_0_the_adapter_steps_as_without_heads(settings, tmp_path):
    short = dataclasses.replace(settings, steps=4, medusa_weight=0.0, out=tmp_path / "joint")
    run(short)
    run(dataclasses.replace(short, medusa=None, out=tmp_path / "plain"))
    joint, plain = load_file(tmp_path / "joint" / STATE), load_file(tmp_path / "plain" / STATE)
    assert len(plain) > 50 and plain.pop("rng") is not None  # making heads draws numbers; nothing after it does
    assert all(torch.equal(joint[name], tensor) for name, tensor in plain.items())
    assert (tmp_path / "joint" / ADAPTER).read_bytes() == (tmp_path / "plain" / ADAPTER).read_bytes()
    begun, stored = (load_file(folder / HEADS) for folder in (settings.medusa, tmp_path / "joint" / "drafter"))
    assert all(torch.equal(stored[name], tensor) for name, tensor in begun.items())
    assert not (tmp_path / "plain" / "drafter").exists()


def test_the_heads_learn_at_a_rate_of_their_own(settings, tmp_path):
    """Adam's first step is the rate, whatever the gradient."""
    run(dataclasses.replace(settings, steps=1, medusa_rate=3.0, learning_rate=0.5, out=tmp_path))
    state, begun = load_file(tmp_path / STATE), load_file(settings.medusa / HEADS)
    adapter = max(float(state[name].abs().max()) for name in state if "parameter/" in name and "lora_B" in name)
    heads = max(float((state[f"parameter/medusa.{name}"] - tensor).abs().max()) for name, tensor in begun.items())
    assert heads == pytest.approx(3 * adapter, rel=1e-3)


def test_a_run_stopped_and_continued_ends_in_the_same_bits(finished, settings, tmp_path):
    whole, summary = finished
    parts = dataclasses.replace(settings, out=tmp_path / "parts")
    asked = iter([False] * 9)
    assert run(parts, stop=lambda: next(asked, True)) is None
    assert not (parts.out / "drafter").exists()
    rest = run(parts, resume=True)
    for file in (ADAPTER, "drafter/" + HEADS, "drafter/config.json"):
        assert (parts.out / file).read_bytes() == (whole.out / file).read_bytes()
    assert rest["numbers"] == summary["numbers"] and rest["heads"] == summary["heads"]


def test_what_is_said_of_heads_that_are_not_there_is_refused(settings, tmp_path, capsys):
    out = tmp_path / "out"
    asked = [
        "--target",
        str(settings.target),
        "--tasks",
        str(settings.tasks),
        "--out",
        str(out),
        "--medusa-weight",
        "1",
    ]
    assert main(["finetune", *asked]) != 0
    assert "are about heads: name some with --medusa" in capsys.readouterr().err and not out.exists()


def test_what_cannot_be_used_is_refused_before_the_model_is_loaded(finished, settings, tmp_path, monkeypatch):
    def load(*arguments):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(finetune_run, "AdaptedModel", load)
    other = make_tiny_model(tmp_path / "other", hidden_size=32)
    (tmp_path / "eagle").mkdir()
    save_file({"midlayer.input_layernorm.weight": torch.ones(4)}, tmp_path / "eagle" / "model.safetensors")
    for place, sentence in (
        (tmp_path / "none", "none holds no weights"),
        (tmp_path / "eagle", "eagle holds a drafter of kind 'eagle3', and only Medusa heads learn"),
        (write_heads(other, tmp_path / "small"), r"\[32, 32\], expected \[64, 64\]"),
        (write_heads(settings.target, tmp_path / "strange", made_for="adapter-abc"), "for another model .adapter-abc."),
    ):
        with pytest.raises(ValueError, match=sentence) as refused:
            run(dataclasses.replace(settings, out=tmp_path / "out", medusa=place))
        assert "\n" not in str(refused.value) and not (tmp_path / "out").exists()
    for changed, sentence in (({"medusa_weight": -0.1}, "--medusa-weight must be 0 or greater, got -0.1"),
                              ({"medusa_rate": 0.0}, "--medusa-rate must be greater than 0, got 0.0")):  # fmt: skip
        with pytest.raises(RunError, match=sentence):
            run(dataclasses.replace(settings, out=tmp_path / "out", **changed))
    whole, _ = finished
    with pytest.raises(RunError, match=r"begun with medusa '\w{12}', not None"):
        run(dataclasses.replace(whole, medusa=None), resume=True)
    with pytest.raises(RunError, match=r"begun with medusa_weight 0.2, not 0.5"):
        run(dataclasses.replace(whole, medusa_weight=0.5), resume=True)
