"""The certificate passes what is right and, above all, fails what is wrong: each planted fault is caught."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from drafters.draft_model import ModelDrafter
from drafters.lookup import LookupDrafter
from spec_planner.certify.certificate import Settings, Subject, certify
from spec_planner.certify.document import to_json, to_markdown, write
from spec_planner.certify.law_test import LawTest, detectable_shift
from spec_planner.certify.recording import Question
from spec_planner.decoding.accept import Acceptance
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.sampling import Law
from spec_planner.engines.table_target import TableTarget
from spec_planner.engines.torch_target import TorchTarget
from tests.decoding.toys import logits_of
from tests.models import make_tiny_model

VOCABULARY = 30
PROMPTS = [Question(ids) for ids in ((1, 2, 3, 4, 5), (4, 4, 2, 4, 4, 2, 4), (9, 8, 7, 9, 8, 7, 9))]
SETTINGS = Settings(tokens=800, tokens_per_run=24)
MATCHING = RULES["drafter-invariant"]


def table(seed=1, sharpness=2.0):
    return TableTarget(logits_of(seed, sharpness, VOCABULARY), VOCABULARY)


def subject(drafter=None, rule=MATCHING, budget=4, name="subject"):
    return Subject(name, drafter or ModelDrafter(table(seed=2)), rule, budget)


def run(target, *subjects, settings=SETTINGS):
    return certify(target, subjects, PROMPTS, frozenset(), settings)


def test_all_exact_ways_pass_on_a_table():
    subjects = [
        subject(LookupDrafter(min_ngram=1), name="lookup, chain"),
        subject(LookupDrafter(min_ngram=1, branches=3), name="lookup, tree"),
        subject(ModelDrafter(table(seed=2)), name="draft model, chain"),
        subject(ModelDrafter(table(seed=2), siblings=2), name="draft model, tree"),
        subject(ModelDrafter(table(seed=2)), RULES["rejection"], name="rejection"),
        subject(ModelDrafter(table(seed=2)), RULES["block"], name="block"),
        subject(ModelDrafter(table(seed=2), siblings=2), RULES["traversal"], name="traversal"),
        subject(ModelDrafter(table(seed=2), siblings=2), RULES["recursive-rejection"], name="recursive"),
    ]
    certificate = run(table(), *subjects, settings=dataclasses.replace(SETTINGS, tokens=3200))
    assert certificate.passed, certificate.problems
    assert certificate.mismatches == 0 and certificate.tokens >= 3200
    laws = [cell for cell in certificate.cells if cell.law]
    assert len(laws) == 4 and all(cell.law.tokens >= 200 and cell.rule_error <= 1e-12 for cell in laws)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def load(model, **options):
    return TorchTarget.load(model, context_length=256, device="cpu", **options)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_torch_target_passes_to_the_bit_at_one_width(model, precision):
    target = load(model, precision=precision, pass_width=8)
    drafter = ModelDrafter(target.first_layers(1, 256))
    certificate = run(target, subject(drafter), settings=dataclasses.replace(SETTINGS, bitwise=True))
    assert certificate.passed, certificate.problems
    assert all(cell.rows_equal_in_bits == cell.tokens > 0 for cell in certificate.cells)


def test_a_torch_target_passes_with_trees(model):
    target = load(model)
    certificate = run(target, subject(ModelDrafter(target.first_layers(1, 256), siblings=2), budget=6))
    assert certificate.passed, certificate.problems
    assert 0 < certificate.noise < 1e-3


# --- planted faults ---


def test_a_width_dependent_kernel_is_caught(model):
    class Skewed(TorchTarget):
        def verify(self, tree):
            output = super().verify(tree)
            output._logits = output._logits + 0.1 * (tree.num_nodes > 1)
            output._logits[..., 5] += 0.5 * (tree.num_nodes > 1)
            return output

    target = Skewed(load(model)._decoder, 256, "skewed", "float32")
    certificate = run(target, subject(ModelDrafter(load(model))))
    assert any("disagree by up to" in problem for problem in certificate.problems)


def test_bits_that_differ_are_caught_where_bits_are_promised(model):
    target = load(model)  # passes of several widths: tokens agree, bits do not
    certificate = run(target, subject(ModelDrafter(load(model))), settings=dataclasses.replace(SETTINGS, bitwise=True))
    assert certificate.mismatches == 0
    assert any("logit rows differ in bits" in problem for problem in certificate.problems)


def test_an_off_by_one_in_the_commit_is_caught(model):
    class Shifted(TorchTarget):
        def commit(self, path):
            moved = len(path) > 1
            super().commit(path)
            if moved:  # the last accepted node's keys come from the slot before it
                self._session._cache.move(self._one(self._length - 2), self._length - 1)

        def _one(self, slot):
            import torch

            return torch.tensor([slot])

    target = Shifted(load(model)._decoder, 256, "shifted", "float32")
    certificate = run(target, subject(ModelDrafter(load(model))))
    assert not certificate.passed
    drafts_often_accepted = [cell for cell in certificate.cells if cell.acceptance_length > 1.5]
    assert drafts_often_accepted and all("0 divergences" not in problem for problem in certificate.problems)


def test_a_tree_commit_that_keeps_the_wrong_branch_is_caught(model):
    class WrongBranch(TorchTarget):
        def commit(self, path):
            length, wanted = self._length, len(path)
            super().commit(path)
            if list(path) != list(range(wanted)):  # forget to move: the first branch's keys stay
                keys = self._session._cache.keys
                for i in range(1, wanted):
                    keys[:, :, length + i] = keys[:, :, length]

    target = WrongBranch(load(model)._decoder, 256, "wrong branch", "float32")
    drafter = ModelDrafter(load(model).first_layers(1, 256), siblings=3)
    assert not run(target, subject(drafter, budget=9)).passed


def test_a_wrong_rule_is_caught():
    def keep_everything(tree, laws, random, position) -> Acceptance:
        right = MATCHING(tree, laws, random, position)
        if not tree.num_draft_tokens:
            return right
        return Acceptance((0, 1), right.next_token, "bonus")

    eager = dataclasses.replace(MATCHING, name="eager", judge=keep_everything)
    certificate = run(table(), subject(rule=eager), settings=dataclasses.replace(SETTINGS, temperatures=(1.0,)))
    assert any("divergences by more than a near tie" in problem for problem in certificate.problems)
    unfair = dataclasses.replace(eager, same_tokens=False)
    certificate = run(table(), subject(rule=unfair), settings=dataclasses.replace(SETTINGS, temperatures=(1.0,)))
    assert any("total variation" in problem for problem in certificate.problems)
    assert any("do not follow the target's law" in problem for problem in certificate.problems)


def test_a_wrong_drafter_law_is_caught():
    class Boastful(ModelDrafter):
        """Always drafts the likeliest token, and records the law as if it had drawn from it."""

        def draft(self, stem, budget, sampler):
            tree = super().draft(stem, 1, sampler)
            law = tree.draft_laws[0]
            best = int(law.ids[np.argmax(law.probabilities)])
            return DraftTree.chain((*stem, best), tree.proposal, (law,))

    settings = dataclasses.replace(SETTINGS, temperatures=(1.0,), tokens=3000)
    honest = run(table(), subject(ModelDrafter(table()), RULES["rejection"]), settings=settings)
    assert honest.passed, honest.problems
    certificate = run(table(), subject(Boastful(table(seed=2)), RULES["rejection"]), settings=settings)
    assert any("do not follow the target's law" in problem for problem in certificate.problems)


# --- the statistics ---


def test_the_law_test_accepts_the_true_law_and_rejects_a_tilted_one():
    generator = np.random.default_rng(0)
    law = Law.of([0.5, 0.3, 0.1, 0.07, 0.03])
    fair, tilted = LawTest(), LawTest()
    for _ in range(4000):
        fair.add(law, int(generator.choice(5, p=law.probabilities)))
        tilted.add(law, int(generator.choice(5, p=[0.6, 0.25, 0.08, 0.05, 0.02])))
    assert not fair.rejected and tilted.rejected
    fair.add(Law.of([0, 1]), 0)
    assert fair.rejected  # an impossible token
    assert detectable_shift(20_000) < detectable_shift(2_000)


def test_the_documents_hold_what_was_found(tmp_path, model):
    target = load(model)
    certificate = run(target, subject(ModelDrafter(target.first_layers(1, 256))))
    content = to_json(certificate, target.info, model, {})
    paths = write(content, tmp_path / "out")
    read = json.loads(paths[0].read_text())
    assert read["verdict"] == "pass" and read["mismatches"] == 0 and read["tokens"] == certificate.tokens
    assert len(read["hashes"]["model.safetensors"]) == 64 and read["versions"]["torch"]
    page = to_markdown(read)
    assert page.startswith("# Certificate of exactness: PASS") and str(read["tokens"]) in page
    assert not list((tmp_path / "out").glob(".*"))
    failed = dataclasses.replace(certificate, problems=["something was off"])
    assert "## Why it failed" in to_markdown(to_json(failed, target.info, model, {}))
