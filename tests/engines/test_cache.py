"""Things made once: by one process of several, whole or not at all."""

from __future__ import annotations

import threading
import time

import pytest

from spec_planner.engines.cache import cache_directory, make_once
from spec_planner.engines.decoder_config import ModelError


def test_the_environment_says_where(monkeypatch, tmp_path):
    monkeypatch.setenv("SPEC_PLANNER_CACHE", str(tmp_path / "a"))
    assert cache_directory() == tmp_path / "a"
    monkeypatch.delenv("SPEC_PLANNER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_directory() == tmp_path / "b" / "spec_planner"


def test_it_is_made_once_while_others_wait(tmp_path):
    made = []

    def make(scratch):
        made.append(scratch)
        time.sleep(0.1)
        (scratch / "content").write_text("whole")

    threads = [threading.Thread(target=make_once, args=(tmp_path / "x" / "it", make, "it")) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and (tmp_path / "x" / "it" / "content").read_text() == "whole"


def test_what_is_made_can_be_read_by_others(tmp_path):
    def make(scratch):
        (scratch / "part").mkdir(mode=0o700)
        (scratch / "part" / "secret").touch(mode=0o600)

    make_once(tmp_path / "it", make, "it")
    assert (tmp_path / "it" / "part" / "secret").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "it" / "part").stat().st_mode & 0o777 == 0o755


def test_what_fails_leaves_nothing_and_can_be_tried_again(tmp_path):
    def fail(scratch):
        (scratch / "half").write_text("")
        raise ModelError("no such tensor")

    with pytest.raises(ModelError, match="no such tensor"):
        make_once(tmp_path / "it", fail, "it")
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert make_once(tmp_path / "it", lambda scratch: None, "it").is_dir()


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot write the graph to .*: free space or set SPEC_PLANNER_CACHE"):
        make_once(tmp_path / "file" / "it", lambda scratch: None, "the graph")
