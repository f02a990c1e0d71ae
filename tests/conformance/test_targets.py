"""Every target through the conformance suite."""

from __future__ import annotations

import pytest
import torch

from spec_planner.engines.table_target import TableTarget
from spec_planner.engines.torch_graphs import GraphedTorchSession
from spec_planner.engines.torch_target import TorchTarget
from tests.decoding.toys import logits_of
from tests.models import load_onnx, load_openvino, make_tiny_model

from .target_suite import BitwiseSuite, ModelTargetSuite, TargetSuite


class TestTableTarget(TargetSuite):
    tolerance = 0.0

    @pytest.fixture(scope="class")
    def target(self):
        return TableTarget(logits_of(1, 1.0, 41), 41)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"], scope="class")
class TestTorchTarget(ModelTargetSuite):
    @pytest.fixture(scope="class")
    def target(self, family, tmp_path_factory):
        directory = make_tiny_model(tmp_path_factory.mktemp("model") / family, family)
        return TorchTarget.load(directory, context_length=128, device="cpu")


@pytest.mark.parametrize("family", ["llama"], scope="class")
@pytest.mark.parametrize("precision", ["bfloat16", "float16"], scope="class")
class TestRoundedTorchTarget(ModelTargetSuite):
    # Numbers are rounded on the way, in another order in another width. Logits span ±8.
    tolerance = 0.5
    feature_tolerance = 2**-8

    @pytest.fixture(scope="class")
    def target(self, family, precision, tmp_path_factory):
        directory = make_tiny_model(tmp_path_factory.mktemp("model") / family, family)
        return TorchTarget.load(directory, context_length=128, device="cpu", precision=precision)


def replayed(target: TorchTarget) -> TorchTarget:
    """``target`` with its passes recorded as on a GPU, but replayed by running them again over the same inputs."""

    def rerun(compute):
        results = compute()

        def replay():
            for result, again in zip(results, compute(), strict=True):
                result.copy_(again)

        return replay, results

    session = target._session
    target._session = GraphedTorchSession(session.decoder, target._extents.capacity, target._widths, rerun)
    return target


@pytest.mark.parametrize("family", ["llama", "qwen3"], scope="class")
class TestReplayedTorchTarget(ModelTargetSuite):
    @pytest.fixture(scope="class")
    def target(self, family, tmp_path_factory):
        directory = make_tiny_model(tmp_path_factory.mktemp("model") / family, family)
        return replayed(TorchTarget.load(directory, context_length=128, device="cpu"))


class TestReplayedTorchTargetBitwise(BitwiseSuite):
    @pytest.fixture(scope="class")
    def target(self, tmp_path_factory):
        directory = make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
        return replayed(TorchTarget.load(directory, context_length=640, device="cpu", pass_width=8))


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")


@on_a_gpu
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"], scope="class")
class TestTorchTargetOnAGpu(ModelTargetSuite):
    tolerance = 2e-3

    @pytest.fixture(scope="class")
    def target(self, family, tmp_path_factory):
        directory = make_tiny_model(tmp_path_factory.mktemp("model") / family, family)
        return TorchTarget.load(directory, context_length=128, device="cuda")


@on_a_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"], scope="class")
class TestTorchTargetOnAGpuBitwise(BitwiseSuite):
    @pytest.fixture(scope="class")
    def target(self, precision, tmp_path_factory):
        directory = make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
        return TorchTarget.load(directory, context_length=640, device="cuda", precision=precision, pass_width=8)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"], scope="class")
class TestTorchTargetBitwise(BitwiseSuite):
    @pytest.fixture(scope="class")
    def target(self, precision, tmp_path_factory):
        directory = make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
        return TorchTarget.load(directory, context_length=640, device="cpu", precision=precision, pass_width=8)


class _OnnxSuite(ModelTargetSuite):
    @pytest.fixture(scope="class")
    def target(self, family, precision, tmp_path_factory):
        directory = make_tiny_model(tmp_path_factory.mktemp("model") / family, family)
        return load_onnx(directory, context_length=128, precision=precision)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"], scope="class")
@pytest.mark.parametrize("precision", ["float32"], scope="class")
class TestOnnxTarget(_OnnxSuite):
    pass


@pytest.mark.parametrize("family", ["llama"], scope="class")
@pytest.mark.parametrize("precision", ["int8", "int4"], scope="class")
class TestQuantisedOnnxTarget(_OnnxSuite):
    # Activations are rounded to 8 bits on the way in: a last-bit difference may turn one of them. Logits span ±8.
    tolerance = 0.5


@pytest.mark.parametrize("family", ["llama", "qwen3"], scope="class")
@pytest.mark.parametrize("precision", ["float32", "int8", "int4"], scope="class")
class TestOnnxTargetBitwise(BitwiseSuite):
    @pytest.fixture(scope="class")
    def target(self, family, precision, tmp_path_factory):
        directory = make_tiny_model(tmp_path_factory.mktemp("model") / family, family)
        return load_onnx(directory, context_length=640, precision=precision, pass_width=8)


class _OpenVinoSuite(ModelTargetSuite):
    @pytest.fixture(scope="class")
    def target(self, family, precision, tmp_path_factory):
        directory = make_tiny_model(tmp_path_factory.mktemp("model") / family, family)
        return load_openvino(directory, context_length=128, precision=precision, pass_width=8)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"], scope="class")
@pytest.mark.parametrize("precision", ["float32"], scope="class")
class TestOpenVinoTarget(_OpenVinoSuite):
    pass


@pytest.mark.parametrize("family", ["llama"], scope="class")
@pytest.mark.parametrize("precision", ["bfloat16", "int8"], scope="class")
class TestRoundedOpenVinoTarget(_OpenVinoSuite):
    # The reference is fed in passes of one row, and numbers are rounded on the way. Logits span ±8.
    tolerance = 1.0
    feature_tolerance = 2**-8


@pytest.mark.parametrize("family", ["llama", "qwen3"], scope="class")
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"], scope="class")
class TestOpenVinoTargetBitwise(BitwiseSuite):
    @pytest.fixture(scope="class")
    def target(self, family, precision, tmp_path_factory):
        directory = make_tiny_model(tmp_path_factory.mktemp("model") / family, family)
        return load_openvino(directory, context_length=640, precision=precision, pass_width=8)
