"""Who may import whom. Data flows one way, and the decoding core runs with nothing but numpy installed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_CONTRACTS = {f"spec_planner.decoding.{name}" for name in ("contracts", "draft_tree", "sampling")}
_TORCH = {"torch", "safetensors", "transformers", "gguf"}
_ONNX = {"onnx", "onnxruntime", "openvino"}
_ROS = {"rclpy", "action_msgs", "builtin_interfaces", "diagnostic_msgs", "lifecycle_msgs", "rcl_interfaces", "std_msgs"}
_ROS |= {"unique_identifier_msgs", "spec_planner_msgs"}

# layer → what it may import besides itself and the standard library; a prefix allows everything below it
ALLOWED = {
    "spec_planner/decoding": {"numpy"},
    "spec_planner/language": {
        *{"numpy", "spec_planner.quiet", "spec_planner.resources", "yaml", "transformers", "tokenizers", "jinja2"},
        "llguidance",
    },
    "spec_planner/world": {"numpy", "spec_planner.language"},
    "spec_planner/tasks": {
        *{
            "spec_planner.language",
            "spec_planner.world",
            "spec_planner.resources",
            "yaml",
            "unified_planning",
            "up_pyperplan",
        }
    },
    "spec_planner/learning": {
        *{"numpy", "torch", "transformers", "safetensors", "spec_planner.quiet", "spec_planner.resources"},
        *{"spec_planner.language", "spec_planner.tasks.task", "spec_planner.engines.decoder_config"},
    },
    "spec_planner/finetune": {
        *{"numpy", "torch", "peft", "safetensors", "spec_planner.learning", "spec_planner.engines.adapter"},
        *{"spec_planner.language", "spec_planner.tasks.task", "spec_planner.quiet", "spec_planner.engines.identity"},
        *{"spec_planner.engines.decoder_config", "drafters.training"},  # Medusa-2: heads learn with the adapter
        *{f"spec_planner.train.{name}" for name in ("batches", "learner", "result")},
    },
    "spec_planner/train": {
        *{"numpy", "torch", "safetensors", "spec_planner.learning", "spec_planner.config", "spec_planner.factory"},
        "spec_planner.engine_choice",
        *{"spec_planner.language", "spec_planner.tasks.task", "spec_planner.decoding", "drafters.training"},
        *{f"spec_planner.engines.{name}" for name in ("checkpoint", "decoder_config", "identity")},
    },
    "spec_planner/graphs": {"numpy", "onnx", "ml_dtypes"},
    "spec_planner/engines": {
        *{"numpy", "spec_planner.quiet", "spec_planner.resources", "spec_planner.graphs"},
        *{*_TORCH, *_ONNX, *_CONTRACTS},
    },
    # the networks are written as graphs, in drafters/graphs alone
    "drafters": {"numpy", "torch", "safetensors", "spec_planner.graphs", *_CONTRACTS},
    "drafters/training": {"torch", "safetensors", "drafters"},
    # TensorRT itself is imported by name, in engine_trt/trt_module.py alone
    "engine_trt": {
        *{"numpy", "ml_dtypes", "onnx", "torch", "spec_planner.__version__", "spec_planner.graphs", *_CONTRACTS},
        *{f"spec_planner.engines.{name}" for name in ("cache", "checkpoint", "decoder_config", "identity", "passes")},
        *{f"spec_planner.engines.{name}" for name in ("onnx_export", "session_target", "torch_graphs")},
        *{"spec_planner.engines.torch_session", "drafters.checkpoint", "drafters.registry"},
        "drafters.graphs.net_graphs",
    },
    "spec_planner/pipeline": {"spec_planner.decoding", "spec_planner.language", "spec_planner.world"},
    "spec_planner/bench": {
        *{"spec_planner.pipeline", "spec_planner.language", "spec_planner.decoding.sampling"},
        *{"spec_planner.world", "spec_planner.tasks.task", "spec_planner.resources", "spec_planner.quiet"},
        # bench engines: every engine as users get it, and others on the same weights
        *{"spec_planner.config", "spec_planner.factory", "spec_planner.target_loading", "spec_planner.decoding"},
        *{f"spec_planner.engines.{name}" for name in ("cache", "checkpoint", "decoder_config", "identity")},
        *{"numpy", "torch", "transformers", "gguf", "llama_cpp", "matplotlib"},
    },
    "spec_planner/certify": {
        *{"numpy", "spec_planner.__version__", "spec_planner.config", "spec_planner.resources"},
        *{"spec_planner.decoding", "spec_planner.pipeline", "spec_planner.engines.table_target"},
        "spec_planner.machine",
    },
    "spec_planner/cli": {
        *{"numpy", "yaml", "spec_planner.__version__", "spec_planner.config", "spec_planner.resources"},
        *{"spec_planner.factory", "spec_planner.pipeline", "spec_planner.certify", "spec_planner.language"},
        *{f"spec_planner.{name}" for name in ("drafter_choice", "engine_choice", "shipped_drafters", "machine")},
        *{"spec_planner.world", "spec_planner.tasks", "spec_planner.finetune", "spec_planner.bench"},
        "spec_planner.train",
        # doctor looks at what would be loaded, without loading it
        *{f"spec_planner.engines.{name}" for name in ("cache", "decoder_config", "default_model")},
        "spec_planner.memory",
        *{"spec_planner.engines.threads", "spec_planner.engines.adapter", "torch", "drafters.training.trainee"},
        *{"engine_trt", "spec_planner.engines.identity"},  # export and build
    },
    "spec_planner/demo": {
        *{f"spec_planner.language.{name}" for name in ("plan", "scene", "skills")},
        "spec_planner.resources",
        *_ROS,
    },
    "spec_planner/nodes": {
        *{"numpy", "spec_planner.config", "spec_planner.factory", "spec_planner.pipeline", "spec_planner.certify"},
        "spec_planner.drafter_choice",
        *{f"spec_planner.language.{name}" for name in ("plan", "skills", "scene", "history")},  # plain data
        "spec_planner.decoding.metrics",
        *_ROS,
    },
    "spec_planner/config.py": {"spec_planner.decoding.sampling"},
    "spec_planner/memory": {
        *{f"spec_planner.{name}" for name in ("config", "drafter_choice", "graphs.block_quant")},
        *{f"spec_planner.engines.{name}" for name in ("decoder_config", "default_model", "passes")},
        *{"spec_planner.decoding.prefix_cache", "torch"},  # torch: whether there is a GPU
    },
    "spec_planner/machine.py": set(),
    "spec_planner/quiet.py": {"transformers"},
    "spec_planner/resources.py": set(),
    "spec_planner/shipped_drafters.py": {"spec_planner.resources"},
    "spec_planner/target_loading.py": {
        *{"spec_planner.config", "engine_trt.trt_target", "spec_planner.engines"},
    },
    "spec_planner/draft_loading.py": {
        *{"drafters.registry", "torch", "spec_planner.config", "spec_planner.target_loading", *_CONTRACTS},
        *{f"spec_planner.engines.{name}" for name in ("decoder_config", "onnx_runner")},
    },
    "spec_planner/engine_choice.py": {
        *{f"spec_planner.{name}" for name in ("__version__", "config", "machine", "target_loading")},
        *{f"spec_planner.engines.{name}" for name in ("cache", "decoder_config", "identity", "threads")},
        *{"torch", "spec_planner.memory", *_CONTRACTS},
    },
    "spec_planner/drafter_choice.py": {
        *{"spec_planner.config", "spec_planner.shipped_drafters", "spec_planner.decoding", "drafters"},
        *{f"spec_planner.engines.{name}" for name in ("identity", "default_model")},
        "spec_planner.graphs.block_quant",
    },
}
# Who know concrete targets or drafters.
MAKERS = ("factory.py", "target_loading.py", "draft_loading.py", "drafter_choice.py")
HEAVY = {"rclpy", "torch", "tensorrt", "onnxruntime", "openvino", "transformers", "spec_planner_msgs"}


def imports_of(path: Path) -> set[str]:
    """Absolute names of every module a file imports, inside functions too."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join(base + (node.module.split(".") if node.module else []))
            # ``from .. import x`` and ``from ..folder import x`` name modules; ``from ..a import b`` names a
            folder = not node.module or (ROOT / Path(*module.split("."))).is_dir()
            names |= {f"{module}.{alias.name}" for alias in node.names} if folder else {module}
    return names


def files(layer: str) -> list[Path]:
    found = [ROOT / layer] if layer.endswith(".py") else sorted((ROOT / layer).rglob("*.py"))
    assert found, f"layer {layer} has no files: the table in this test is out of date"
    return found


def below(name: str, allowed: set[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in allowed)


@pytest.mark.parametrize("layer", ALLOWED)
def test_a_layer_imports_only_what_the_table_allows(layer):
    own = layer.replace("/", ".")
    for path in files(layer):
        for name in imports_of(path):
            allowed = below(name, {own, *ALLOWED[layer]}) or name.split(".")[0] in sys.stdlib_module_names
            assert allowed, f"{path.relative_to(ROOT)} imports {name}, which {layer} may not"


def test_nobody_imports_the_nodes():
    for path in [*files("spec_planner"), *files("drafters"), *files("engine_trt")]:
        if "nodes" in path.relative_to(ROOT).parts:
            continue
        for name in imports_of(path):
            assert not below(name, {"spec_planner.nodes"}), f"{path.relative_to(ROOT)} imports {name}"


def test_only_the_factory_knows_concrete_classes():
    concrete = {"drafters", "engine_trt"}
    concrete |= {f"spec_planner.engines.{name}_target" for name in ("torch", "onnx", "openvino", "exported")}
    for path in files("spec_planner"):
        parts = path.relative_to(ROOT / "spec_planner").parts
        if path.name in MAKERS or parts[0] == "engines":
            continue
        for name in imports_of(path):
            learning = {layer: {"drafters.training"} for layer in ("train", "finetune")}
            learning["cli"] = {"drafters.training.trainee", "engine_trt"}  # names; export and build make no target
            allowed = not below(name, concrete) or below(name, learning.get(parts[0], set()))
            assert allowed, f"{path.relative_to(ROOT)} imports {name}, which only these may: {', '.join(MAKERS)}"


def test_the_core_runs_where_nothing_heavy_is_installed():
    """Import and use the core with every heavy library made unimportable."""
    script = f"""
import sys
for name in {sorted(HEAVY)!r}:
    sys.modules[name] = None
import pkgutil, importlib, spec_planner.decoding as core
for module in pkgutil.iter_modules(core.__path__):
    importlib.import_module("spec_planner.decoding." + module.name)
import numpy as np
from spec_planner.engines.table_target import TableTarget
from spec_planner.decoding.contracts import PromptInput
from spec_planner.decoding.draft_budget import FixedBudget
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.sampling import SamplingParams
from spec_planner.decoding.stopping import Stopping
from drafters.lookup import LookupDrafter
rows = np.eye(5, dtype=np.float32)
target = TableTarget(lambda context: rows[(context[-1] + 1) % 5], 5)
prompt = PromptInput((0, 1, 2, 3, 4, 0))
rule, budget = RULES["drafter-invariant"], FixedBudget(4)
steps = decode(target, LookupDrafter(), prompt, SamplingParams(), Stopping(9), rule, budget)
print([token for step in steps for token in step.tokens])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[1, 2, 3, 4, 0, 1, 2, 3, 4]"
