"""Freed memory, given back to the system."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """After a model was closed: the C library keeps hundreds of megabytes of it for later, which others cannot use and
    the next memory budget would find taken. glibc only; elsewhere nothing happens.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
