"""Every drafter that ships for the default model, as a graph against its torch twin."""

from __future__ import annotations

import pytest

pytest.importorskip("onnxruntime")

from drafters.registry import load_drafter
from spec_planner.engines.default_model import model_directory
from spec_planner.engines.identity import target_identity
from spec_planner.engines.onnx_target import OnnxTarget
from spec_planner.shipped_drafters import DISTILLED, NAMED, TREES_OF, find_shipped

from .test_compiled import check_same, compiler_in


@pytest.fixture(scope="module")
def target():
    target = OnnxTarget.load(model_directory("default"), context_length=256, threads=1)
    yield target
    target.close()


@pytest.mark.parametrize(
    ("name", "branches"), [("eagle3", 3), *((name, 1) for name in sorted({DISTILLED, *NAMED} - set(TREES_OF)))]
)
def test_it_drafts_as_in_torch(name, branches, target, tmp_path, monkeypatch):
    directory = find_shipped(name, target_identity(model_directory("default")))
    drafters = [load_drafter(directory, target, branches, each) for each in (None, compiler_in(tmp_path, monkeypatch))]
    check_same(*drafters, width=target.info.hidden_size, vocabulary=target.info.vocabulary_size)
