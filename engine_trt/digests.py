"""Hashes of files as large as a model, read in parts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

_READ_BYTES = 1 << 24


def sha256_of(paths: Sequence[Path]) -> str:
    """SHA-256 over the contents of ``paths``, one after another. Raises ``OSError`` where one cannot be read."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while part := file.read(_READ_BYTES):
                digest.update(part)
    return digest.hexdigest()
