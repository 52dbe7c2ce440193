"""What is left is the least that machine, cgroup and parent cgroups have left; versions 1 and 2."""

from __future__ import annotations

import pytest

from armllm.engine.memory import available_memory, readable

MIB = 1 << 20


@pytest.fixture
def root(tmp_path):
    write(tmp_path, "proc/meminfo", "MemTotal: 9999999 kB\nMemAvailable: 1048576 kB\n")
    return tmp_path


def write(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def cgroup2(root, path, limit, usage, inactive_file=0):
    write(root, f"{path}/memory.max", f"{limit}\n")
    write(root, f"{path}/memory.current", f"{usage}\n")
    write(root, f"{path}/memory.stat", f"anon 5\ninactive_file {inactive_file}\n")


def test_without_cgroups_the_machine_decides(root):
    assert available_memory(root=root) == 1024 * MIB


def test_a_limit_above_the_machine_does_not_count(root):
    write(root, "proc/self/cgroup", "0::/a\n")
    cgroup2(root, "sys/fs/cgroup/a", "max", 5)
    assert available_memory(root=root) == 1024 * MIB
    cgroup2(root, "sys/fs/cgroup/a", 1 << 40, 5)
    assert available_memory(root=root) == 1024 * MIB


def test_the_tightest_cgroup_above_us_decides(root):
    write(root, "proc/self/cgroup", "0::/a/b\n")
    cgroup2(root, "sys/fs/cgroup/a", 300 * MIB, 100 * MIB)
    cgroup2(root, "sys/fs/cgroup/a/b", "max", 50 * MIB)
    assert available_memory(root=root) == 200 * MIB


def test_where_a_cgroup_slows_down_counts_as_its_limit(root):
    write(root, "proc/self/cgroup", "0::/a\n")
    cgroup2(root, "sys/fs/cgroup/a", "max", 50 * MIB)
    write(root, "sys/fs/cgroup/a/memory.high", f"{200 * MIB}\n")
    assert available_memory(root=root) == 150 * MIB


def test_page_cache_counts_as_left(root):
    write(root, "proc/self/cgroup", "0::/\n")
    cgroup2(root, "sys/fs/cgroup", 300 * MIB, 250 * MIB, inactive_file=100 * MIB)
    assert available_memory(root=root) == 150 * MIB


def test_a_container_that_sees_its_own_cgroup_as_the_root(root):
    write(root, "proc/self/cgroup", "0::/docker/0123\n")  # not there below the mount
    cgroup2(root, "sys/fs/cgroup", 64 * MIB, 60 * MIB)
    assert available_memory(root=root) == 4 * MIB


def test_version_1(root):
    write(root, "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n")
    write(root, "sys/fs/cgroup/memory/x/memory.limit_in_bytes", str(100 * MIB))
    write(root, "sys/fs/cgroup/memory/x/memory.usage_in_bytes", str(30 * MIB))
    write(root, "sys/fs/cgroup/memory/x/memory.stat", f"total_inactive_file {10 * MIB}\n")
    assert available_memory(root=root) == 80 * MIB


def test_more_used_than_allowed_is_nothing_left(root):
    write(root, "proc/self/cgroup", "0::/\n")
    cgroup2(root, "sys/fs/cgroup", 10 * MIB, 20 * MIB)
    assert available_memory(root=root) == 0


def test_a_numa_node_has_its_own_limit(root):
    lines = ["MemTotal: 900000 kB", "MemFree: 100 kB", "Active(file): 20 kB", "Inactive(file): 3 kB"]
    text = "".join(f"Node 1 {line}\n" for line in [*lines, "AnonPages: 7 kB", "HugePages_Total: 0"])
    write(root, "sys/devices/system/node/node1/meminfo", text)
    assert available_memory(1, root) == 123 * 1024
    assert available_memory(0, root) == 1024 * MIB, "a node that doesn't say limits nothing"
    assert available_memory(None, root) == 1024 * MIB


def test_this_machine_has_some():
    assert available_memory() > 0


def test_sizes_are_readable():
    sizes = {0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 5 << 20: "5 MiB", 123 << 30: "123 GiB"}
    assert {size: readable(size) for size in sizes} == sizes
