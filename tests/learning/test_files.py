"""A file is the old one or the whole new one; a folder has one writer."""

from __future__ import annotations

import pytest

from spec_planner.learning.files import RunError, alone, scratch_folder, sweep, write_whole


def test_a_file_is_the_old_one_or_the_new_one(tmp_path):
    path = tmp_path / "state"
    write_whole(path, lambda scratch: scratch.write_text("old"))

    def fail(scratch):
        scratch.write_text("half of the n")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        write_whole(path, fail)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    write_whole(path, lambda scratch: scratch.write_text("new"))
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_folder_has_one_writer_at_a_time(tmp_path):
    with (
        alone(tmp_path / "cache"),
        pytest.raises(RunError, match="another run is writing to .*cache: wait for it"),
        alone(tmp_path / "cache"),
    ):
        pass
    with alone(tmp_path / "cache"):
        pass


def test_what_a_kill_leaves_is_swept_and_nothing_else(tmp_path):
    for name in (".state.safetensors.77", "state.safetensors", ".lock", ".gitignore"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".drafter.77" / "new").mkdir(parents=True)
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".gitignore", ".lock", "state.safetensors"]
    with pytest.raises(OSError), scratch_folder(tmp_path, "drafter") as folder:  # noqa: PT011
        (folder / "new").mkdir()
        raise OSError
    assert not list(tmp_path.glob(".drafter*"))
