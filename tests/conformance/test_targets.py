"""Every target through the conformance suite."""

from __future__ import annotations

import pytest

from spec_planner.decoding.contracts import PromptInput
from spec_planner.engines.table_target import TableTarget
from tests.decoding.toys import logits_of
from tests.models import make_tiny_model

from .target_suite import PROMPT, TargetSuite


class TestTableTarget(TargetSuite):
    tolerance = 0.0

    @pytest.fixture(scope="class")
    def target(self):
        return TableTarget(logits_of(1, 1.0, 41), 41)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"], scope="class")
class TestTorchTarget(TargetSuite):
    @pytest.fixture(scope="class")
    def target(self, family, tmp_path_factory):
        from spec_planner.engines.torch_target import TorchTarget

        directory = make_tiny_model(tmp_path_factory.mktemp("model") / family, family)
        return TorchTarget.load(directory, context_length=128, device="cpu")

    def test_tapped_features_are_the_hidden_states(self, target):
        target.tap((0, 2))
        try:
            target.truncate(0)
            features = target.extend(PromptInput(PROMPT)).features(range(len(PROMPT)))
            assert features.shape == (len(PROMPT), 2, 64)
            head = target.lend("head")
            last = (features[-1, 1] @ head.T).numpy()
            target.truncate(len(PROMPT) - 1)
            assert abs(target.extend(PromptInput(PROMPT[-1:])).logits_row(0) - last).max() < 1e-4
        finally:
            target.tap(())
