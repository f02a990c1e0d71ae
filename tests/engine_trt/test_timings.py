"""Timings of kernels: kept, and never the reason why a build fails. The full TensorRT that makes any is not here."""

from __future__ import annotations

import pytest

from engine_trt.timings import Timings


class Cache:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def serialize(self) -> bytes:
        return self.content + b"+"


class Config:
    """A builder's configuration that takes timings of its own device only."""

    cache: Cache | None = None

    def create_timing_cache(self, content: bytes) -> Cache | None:
        return None if content == b"damaged" else Cache(content)

    def set_timing_cache(self, cache: Cache, ignore_mismatch: bool) -> bool:
        if cache is None:
            raise TypeError("incompatible function arguments")
        if cache.content == b"other device" and not ignore_mismatch:
            return False
        self.cache = cache
        return True

    def get_timing_cache(self) -> Cache | None:
        return self.cache


@pytest.mark.parametrize(
    ("before", "after"), [(None, b"+"), (b"mine", b"mine+"), (b"damaged", b"+"), (b"other device", b"+")]
)
def test_what_was_measured_is_used_and_kept(tmp_path, before, after):
    path, said = tmp_path / "deep" / "timing.cache", []
    if before is not None:
        path.parent.mkdir()
        path.write_bytes(before)
    timings, config = Timings(path, said.append), Config()
    timings.give(config)
    timings.keep(config)
    assert path.read_bytes() == after and not said
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_cannot_be_read_or_written_is_a_line_and_not_an_error(tmp_path):
    said: list[str] = []
    (tmp_path / "file").write_text("")
    timings, config = Timings(tmp_path / "file" / "timing.cache", said.append), Config()
    timings.give(config)
    timings.keep(config)
    assert len(said) == 1 and "cannot be kept in" in said[0] and "measures anew" in said[0]

    class Stubborn(Config):
        def create_timing_cache(self, content: bytes) -> None:
            return None

    other, config = Timings(tmp_path / "timing.cache", said.append), Stubborn()
    other.give(config)
    other.keep(config)
    assert "takes no timings" in said[1] and len(said) == 2 and not (tmp_path / "timing.cache").exists()
