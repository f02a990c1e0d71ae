"""Which model a directory holds, whatever the directory is called: what a drafter was trained for."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from .decoder_config import ModelError

_SAMPLES, _SAMPLE_BYTES = 64, 4096


def target_identity(directory: Path) -> str:
    """A name for the weights in ``directory``, read in milliseconds.

    A model with a planning adapter merged in is known by the adapter: merging rounds differently on other machines. Any
    other by a hash over samples of its weight files.

    Raises:
        ModelError: there are no weights, or ``spec_planner.json`` is damaged.
    """
    note = directory / "spec_planner.json"
    if note.is_file():
        try:
            content = json.loads(note.read_text(encoding="utf-8"))
            adapter = content.get("adapter")
        except (OSError, ValueError, AttributeError) as error:
            raise ModelError(f"{note} cannot be read ({error}): write the model again") from error
        if adapter:
            return f"adapter-{adapter}"
    digest, paths = hashlib.sha256(), sorted(directory.glob("*.safetensors"))
    if not paths:
        raise ModelError(f"no .safetensors file in {directory}: give a complete Hugging Face model directory")
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{size}\n".encode())
        with path.open("rb") as file:
            for index in range(_SAMPLES):
                file.seek(index * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return f"weights-{digest.hexdigest()[:12]}"
