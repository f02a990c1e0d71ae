"""NVIDIA's own compiler on our graphs, for GPUs that are not here: what it reads, and what it makes of it."""

from __future__ import annotations

import dataclasses
import json

import pytest

pytest.importorskip("onnx")

from engine_trt import bindings, engine_key
from engine_trt.bindings import NATIVE, SCATTER
from engine_trt.build_engine import WORKSPACE_LIMIT, _Builder, build, read_record
from engine_trt.engine_cache import check_engine_directory, ensure_engine
from engine_trt.engine_key import EngineKey
from engine_trt.export import export_drafter, export_target
from engine_trt.timings import Timings
from engine_trt.trt_module import load_tensorrt
from spec_planner.engines.decoder_config import EngineUnavailable, ModelError
from spec_planner.engines.default_model import default_model_directory
from spec_planner.engines.identity import target_identity
from spec_planner.shipped_drafters import find_shipped
from tests.models import make_tiny_model

from .test_export import KINDS


def _without_compiler() -> str:
    """Why nothing can be built here; "" where it can."""
    try:
        offered = load_tensorrt().capabilities()
    except EngineUnavailable as error:
        return str(error)
    return "" if offered else "this TensorRT builds only for the GPU it runs on"


pytestmark = pytest.mark.skipif(bool(_without_compiler()), reason=_without_compiler())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Heads of 64, as fused attention wants them, and wide enough for blocks of 64."""
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256}
    return make_tiny_model(tmp_path_factory.mktemp("build") / "tiny", **sizes)


@pytest.fixture(scope="session")
def default_model():
    directory = default_model_directory()
    if not directory.is_dir():
        pytest.skip("the default model is not converted yet: `make test` does so")
    return directory


def made(model, tmp_path, precision: str, dialect: str, capability: str = "sm89", **options):
    """Manifest and record of an engine of ``model``."""
    manifest = export_target(
        model, tmp_path / "graphs", precision=precision, context_length=256, dialect=dialect, **options
    )
    record = build(tmp_path / "graphs", tmp_path / "engine", capability=capability)
    assert record == read_record(tmp_path / "engine") and manifest == bindings.read_manifest(tmp_path / "engine")
    return manifest, record


@pytest.mark.parametrize("dialect", [NATIVE, SCATTER])
@pytest.mark.parametrize(
    ("precision", "capability"),
    [("float32", "sm89"), ("float16", "sm86"), ("bfloat16", "sm89"), ("int8", "sm75"), ("int4", "sm86"),
     ("fp8", "sm89"), ("nvfp4", "sm120")],
)  # fmt: skip
def test_every_precision_builds_and_stays_what_it_is(model, tmp_path, precision, capability, dialect):
    if precision == "nvfp4" and dialect == SCATTER:
        pytest.skip("refused when it is exported")
    manifest, record = made(model, tmp_path, precision, dialect, capability)
    built, network = record.engines["decoder"], manifest.networks["decoder"]
    # Codes that were folded would show as two or four times their bytes.
    assert manifest.weight_bytes <= built.weights <= 1.01 * manifest.weight_bytes + 4096
    assert built.activations > 0 and built.plan == (tmp_path / "engine" / "decoder.plan").stat().st_size
    assert built.compiled.in_place == (len(network.profiles) * len(network.aliases) if dialect == NATIVE else 0)
    if precision != "float32":
        assert built.compiled.fused_attentions == 2 * len(network.profiles)
    plan = (tmp_path / "engine" / "decoder.plan").read_bytes()
    assert all(tensor.name.encode() in plan for tensor in network.tensors)


@pytest.mark.parametrize(("family", "options"), [("qwen2", {"tied": False}), ("qwen3", {"head_dim": 32})])
@pytest.mark.parametrize("dialect", [NATIVE, SCATTER])
def test_every_family_builds(tmp_path, family, options, dialect):
    model = make_tiny_model(tmp_path / family, family, intermediate_size=128, **options)
    _, record = made(model, tmp_path, "int4", dialect)
    assert record.engines["decoder"].plan > 0


def test_lent_weights_are_inputs(model, tmp_path):
    plain, lending = tmp_path / "plain", tmp_path / "lending"
    whole, built = made(model, plain, "float16", NATIVE)
    manifest, record = made(model, lending, "float16", NATIVE, lend=("embedding", "head"))
    assert manifest.lent == ("embedding",)
    without = record.engines["decoder"].weights
    assert built.engines["decoder"].weights - without == pytest.approx(320 * 256 * 2, rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_of_every_kind_builds(default_model, tmp_path, kind):
    checkpoint = find_shipped(kind, target_identity(default_model))
    manifest = export_drafter(default_model, checkpoint, tmp_path / "graphs", precision="float16", context_length=512)
    record = build(tmp_path / "graphs", tmp_path / "engine", capability="sm89")
    for name, network in manifest.networks.items():
        built = record.engines[name]
        assert built.compiled.in_place == len(network.aliases)
        assert 0 < built.weights <= 1.02 * manifest.weight_bytes


def test_a_drafter_binds_the_head_of_its_target(default_model, tmp_path):
    """A checkpoint without a head of its own rows: the whole head is an input, in the type the target lends it in."""
    checkpoint = find_shipped("eagle3", target_identity(default_model))
    bare = tmp_path / "mtp"
    bare.mkdir()
    source = find_shipped("mtp", target_identity(default_model))
    config = json.loads((source / "config.json").read_text())
    del config["draft_tokens"]
    (bare / "config.json").write_text(json.dumps(config))
    (bare / "model.safetensors").symlink_to(source / "model.safetensors")
    assert checkpoint is not None
    manifest = export_drafter(default_model, bare, tmp_path / "graphs", precision="float16", context_length=512)
    assert manifest.lent == ("head",)
    record = build(tmp_path / "graphs", tmp_path / "engine", capability="sm89")
    target = export_target(
        default_model, tmp_path / "target", precision="float16", context_length=512, lend=("embedding", "head")
    )

    def lent(manifest, name):
        tensors = (tensor for network in manifest.networks.values() for tensor in network.inputs)
        return next((tensor.dtype, tensor.shape) for tensor in tensors if tensor.name == name)

    assert lent(manifest, "head") == lent(target, "embedding")  # the default model's head is its embedding
    assert sum(built.plan for built in record.engines.values()) < 49152 * 576 * 2


def test_the_default_target_builds(default_model, tmp_path):
    manifest = export_target(default_model, tmp_path / "graphs", precision="float16", context_length=2048)
    record = build(tmp_path / "graphs", tmp_path / "engine", capability="sm89")
    built = record.engines["decoder"]
    assert built.compiled.in_place == 2 * 60 and built.compiled.fused_attentions == 2 * 30
    assert manifest.weight_bytes <= built.weights <= 1.001 * manifest.weight_bytes


def test_the_cache_builds_once_per_gpu_and_setting(model, tmp_path, monkeypatch):
    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(engine_key, "device_capability", lambda: "sm89")
    said: list[str] = []

    def ensure(**changes):
        return ensure_engine(model, **{"context_length": 64, "precision": "float16", **changes}, report=said.append)

    first = ensure()
    assert (
        "once, minutes" in " ".join(said)
        and any("0 % of its steps" in line for line in said)
        and (first / "decoder.plan").is_file()
    )
    said.clear()
    assert ensure() == first and not said
    assert check_engine_directory(first, model, context_length=64, precision="float16").context_length == 64
    monkeypatch.setattr(engine_key, "device_capability", lambda: "sm86")
    assert ensure() != first and not any("exporting" in line for line in said)  # the same graph, another GPU
    assert ensure(context_length=128) not in (first, ensure())
    with pytest.raises(ModelError, match="is for GPU sm89 and not sm86"):
        check_engine_directory(first, model, context_length=64, precision="float16")
    assert len(list((tmp_path / "cache" / "tensorrt" / "engines").iterdir())) == 4  # and the lock


def test_refusals_leave_nothing(model, tmp_path, monkeypatch):
    graphs, out = tmp_path / "graphs", tmp_path / "engine"
    manifest = export_target(model, graphs, precision="fp8", context_length=64)
    with pytest.raises(ModelError, match="precision fp8 needs a GPU of compute capability 89 or above, sm86 is below"):
        build(graphs, out, capability="sm86")
    with pytest.raises(ModelError, match="cannot build for sm12: it knows"):
        build(graphs, out, capability="sm12")
    with pytest.raises(KeyboardInterrupt):
        build(graphs, out, capability="sm89", interrupted=lambda: True)
    network = manifest.networks["decoder"]
    tensors = tuple(dataclasses.replace(t, shape=(7,)) if t.name == "start" else t for t in network.tensors)
    changed = dataclasses.replace(network, tensors=tensors)
    dataclasses.replace(manifest, networks={"decoder": changed}).write(graphs)
    with pytest.raises(ModelError, match=r"read as something else .start is int64 \(1,\), expected int64 \(7,\)"):
        build(graphs, out, capability="sm89")
    (graphs / "decoder.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelError, match="cannot read .*decoder.onnx"):
        build(graphs, out, capability="sm89")
    assert [path.name for path in tmp_path.iterdir()] == ["graphs"]


def test_ctrl_c_in_a_report_comes_out_of_the_build(model, tmp_path, monkeypatch):
    """TensorRT drops what its callbacks raise; the build has to bring it along."""
    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(engine_key, "device_capability", lambda: "sm89")
    export_target(model, tmp_path / "graphs", precision="float16", context_length=64)
    shares: list[float] = []

    def press(share, what):
        shares.append(share)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "graphs", tmp_path / "engine", capability="sm89", progress=press)
    assert len(shares) < 5  # and not at the end of it
    assert not (tmp_path / "engine").exists()

    def report(line):
        if "%" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_engine(model, context_length=64, precision="float16", report=report)
    with pytest.raises(KeyboardInterrupt):
        ensure_engine(model, context_length=64, precision="float16", interrupted=lambda: True)
    assert [path.name for path in (tmp_path / "cache" / "tensorrt" / "engines").iterdir()] == [".lock"]


def test_what_the_builder_is_told(model, tmp_path):
    manifest = export_target(model, tmp_path / "graphs", precision="float32", context_length=64)
    trt = load_tensorrt()
    builder = _Builder(trt, EngineKey.of(trt, manifest, "sm89"), NATIVE, Timings(None, print))
    log = trt.make_log()
    config = builder.config(trt.api.Builder(log.listener), manifest.networks["decoder"])
    assert not config.get_flag(trt.api.BuilderFlag.TF32)  # which it has by default
    assert config.get_flag(trt.api.BuilderFlag.REQUIRE_USER_ALLOCATION)
    assert config.get_memory_pool_limit(trt.api.MemoryPoolType.WORKSPACE) == WORKSPACE_LIMIT


def test_progress_is_told_and_tensorrt_rtx_measures_nothing(model, tmp_path):
    export_target(model, tmp_path / "graphs", precision="float16", context_length=64)
    seen: list[tuple[float, str]] = []
    build(tmp_path / "graphs", tmp_path / "engine", capability="sm89", timing_file=tmp_path / "timing",
          progress=lambda share, what: seen.append((share, what)))  # fmt: skip
    assert seen and all(0 < share <= 1 and what for share, what in seen)
    assert seen == sorted(seen, key=lambda entry: entry[0]) and seen[-1][0] > 0.8
    assert (tmp_path / "timing").exists() == load_tensorrt().keeps_timings
