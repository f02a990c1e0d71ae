"""The conformance suites on the GPU and the TensorRT that are here: engines exported, built, opened and run.

Needs onnx, torch and hypothesis, and neither ONNX Runtime nor ROS. How to run it on a Jetson: docs/tensorrt.md.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
import torch

from engine_trt.trt_module import load_tensorrt
from engine_trt.trt_target import TrtTarget
from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.engines.decoder_config import EngineUnavailable
from spec_planner.engines.torch_target import TorchTarget
from tests.conformance.target_suite import BitwiseSuite, ModelTargetSuite
from tests.models import make_tiny_model

CONTEXT = 128


def why_not_on_gpu() -> str:
    """Why no engine can run here; "" where one can."""
    try:
        load_tensorrt()
    except EngineUnavailable as error:
        return str(error)
    return "" if torch.cuda.is_available() else "torch sees no GPU"


on_gpu = pytest.mark.skipif(bool(why_not_on_gpu()), reason=why_not_on_gpu())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("gpu") / "tiny")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPEC_PLANNER_CACHE", str(tmp_path_factory.mktemp("gpu") / "cache"))
        yield


@on_gpu
@pytest.mark.parametrize("precision", ["float32", "float16"], scope="class")
class TestConformance(ModelTargetSuite):
    @pytest.fixture(scope="class")
    def target(self, precision, model):
        return TrtTarget.load(model, context_length=CONTEXT, precision=precision)


@on_gpu
@pytest.mark.parametrize("precision", ["float32", "float16"], scope="class")
class TestBitwise(BitwiseSuite):
    @pytest.fixture(scope="class")
    def target(self, precision, model):
        return TrtTarget.load(model, context_length=640, precision=precision, pass_width=8)


@on_gpu
def test_float32_is_no_shorter_float(model):
    """The reference's logits within 1e-4 of some 10, which products of 10-bit factors (TF32) do not reach."""
    rows = []
    for target in (
        TorchTarget.load(model, context_length=CONTEXT, device="cpu"),
        TrtTarget.load(model, context_length=CONTEXT, precision="float32"),
    ):
        target.extend(PromptInput(tuple(range(3, 63))))
        output = target.verify(DraftTree.chain(range(80, 88)))
        rows.append(np.stack([output.logits_row(node) for node in range(8)]))
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-4)
