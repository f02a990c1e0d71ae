"""What memory there is, from files as kernels write them."""

from __future__ import annotations

import pytest

from spec_planner.memory.available import main_memory, resident_bytes

GIB = 1 << 30
UNLIMITED = 9223372036854771712  # what version 1 says where there is no limit


def system(root, groups: str = "", available: int = 8 * GIB, **files: str):
    """A root with /proc and the control groups' files, named by their path with slashes."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal:       {16 * GIB // 1024} kB\nMemFree:          1000 kB\nMemAvailable:   {available // 1024} kB\n"
    )
    (root / "proc/self/cgroup").write_text(groups)
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return root


def test_without_a_group_the_machine_decides(tmp_path):
    memory = main_memory(system(tmp_path))
    assert (memory.device, memory.available, memory.total) == ("cpu", 8 * GIB, 16 * GIB)


def test_a_limit_of_version_2_counts_less_what_is_used_but_not_cached(tmp_path):
    root = system(
        tmp_path,
        "0::/robot\n",
        **{
            "sys/fs/cgroup/robot/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/robot/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/robot/memory.stat": f"anon 7\ninactive_file {GIB // 2}\nactive_file {3 * GIB // 2}\n",
        },
    )
    assert main_memory(root).available == 3 * GIB
    assert main_memory(root).total == 4 * GIB


def test_a_limit_of_a_group_above_counts_and_max_is_none(tmp_path):
    files = {
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/b/memory.current": "5\n",
        "sys/fs/cgroup/a/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/a/memory.current": f"{GIB}\n",
    }
    assert main_memory(system(tmp_path, "0::/a/b\n", **files)).available == GIB


def test_a_limit_of_version_1(tmp_path):
    groups = "8:pids:/\n4:memory:/docker/7f\n0::/\n"
    files = {
        "sys/fs/cgroup/memory/docker/7f/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/docker/7f/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/docker/7f/memory.stat": (
            f"inactive_file 1\ntotal_inactive_file {GIB // 4}\ntotal_active_file {GIB // 4}\n"
        ),
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{UNLIMITED}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{9 * GIB}\n",
    }
    memory = main_memory(system(tmp_path, groups, **files))
    assert (memory.available, memory.total) == (3 * GIB // 2, 2 * GIB)


def test_a_container_sees_its_group_at_the_mount(tmp_path):
    files = {
        "sys/fs/cgroup/memory.max": f"{GIB}\n",
        "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",  # over it, for a moment
    }
    memory = main_memory(system(tmp_path, "0::/../elsewhere\n", **files))
    assert (memory.available, memory.total) == (0, GIB)


def test_more_room_in_the_group_than_on_the_machine_is_no_room(tmp_path):
    files = {"sys/fs/cgroup/memory.max": f"{12 * GIB}\n", "sys/fs/cgroup/memory.current": "0\n"}
    assert main_memory(system(tmp_path, "0::/\n", available=GIB, **files)).available == GIB


@pytest.mark.parametrize("content", ["", "MemAvailable: many kB\n"])
def test_what_the_system_does_not_say_is_unknown(content, tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(content)
    assert main_memory(tmp_path).available is None
    assert resident_bytes(tmp_path) == 0


def test_a_group_says_what_an_old_kernel_does_not(tmp_path):
    files = {"sys/fs/cgroup/memory.max": f"{GIB}\n", "sys/fs/cgroup/memory.current": "0\n"}
    root = system(tmp_path, "0::/\n", **files)
    (root / "proc/meminfo").write_text(f"MemTotal: {16 * GIB // 1024} kB\n")
    assert main_memory(root).available == GIB
    (root / "sys/fs/cgroup/memory.max").write_text(f"{UNLIMITED}\n")
    assert main_memory(root).available is None


def test_this_machine_says_something():
    memory = main_memory()
    assert 0 < memory.available <= memory.total
    assert 1e6 < resident_bytes() < memory.total
