"""What is recorded and what is replayed; the numbers are the conformance suite's business."""

from __future__ import annotations

import pytest

from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.engines.torch_graphs import GraphedTorchSession
from spec_planner.engines.torch_target import TorchTarget
from tests.models import make_tiny_model


class Counted:
    """Records by keeping the function, replays by calling it again."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def __call__(self, compute):
        self.captures += 1
        results = compute()

        def replay():
            self.replays += 1
            for result, again in zip(results, compute(), strict=True):
                result.copy_(again)

        return replay, results


@pytest.fixture
def recorded(tmp_path):
    target, counted = TorchTarget.load(make_tiny_model(tmp_path / "tiny"), context_length=128, device="cpu"), Counted()
    decoder = target._session.decoder
    target._session = GraphedTorchSession(decoder, target._extents.capacity, target._widths, counted)
    target.extend(PromptInput((3, 1, 4, 1, 5)))  # no decode width
    assert counted.captures == counted.replays == 0
    return target, counted


def test_a_shape_is_recorded_once_and_replayed_with_other_numbers(recorded):
    target, counted = recorded
    first = target.verify(DraftTree.chain((7, 8, 9))).logits_row(2)
    target.commit([0])
    second = target.verify(DraftTree.chain((8, 9, 7, 2)))  # three and four nodes are one width
    assert (counted.captures, counted.replays) == (1, 2)
    target.verify(DraftTree.chain((1, 1, 1)))
    assert (counted.captures, counted.replays) == (1, 3)
    assert abs(second.logits_row(1) - first).max() < 1e-4  # the same tokens before it: 7 committed, then 8, 9


def test_another_width_extent_or_tap_is_recorded_by_itself(recorded):
    target, counted = recorded
    target.verify(DraftTree.root(7))
    target.verify(DraftTree.chain((7, 8)))
    assert counted.captures == 2
    target.extend(PromptInput(tuple(range(60))))  # past the first 64 slots
    target.verify(DraftTree.root(7))
    assert counted.captures == 3
    target.tap([1])
    assert target.verify(DraftTree.root(7)).features([0]).shape == (1, 1, 64)
    assert counted.captures == 4


def test_an_output_outlives_the_next_replay(recorded):
    target, _ = recorded
    output = target.verify(DraftTree.root(7))
    before = output.logits_row(0).copy()
    target.verify(DraftTree.root(250))
    assert (output.logits_row(0) == before).all()


def test_where_nothing_can_be_recorded_passes_run_as_they_are(recorded):
    target, counted = recorded
    before = target.verify(DraftTree.chain((7, 8, 9))).logits_row(2)
    failed = []

    def capture(compute):
        failed.append(compute())
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    target._session._capture = capture
    with pytest.warns(UserWarning, match=r"no CUDA graphs here \(operation not permitted when stream is capturing\)"):
        target.verify(DraftTree.root(7))
    again = target.verify(DraftTree.chain((7, 8, 9))).logits_row(2)
    assert len(failed) == 1 and (again == before).all()
