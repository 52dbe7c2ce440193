"""Live detection over made-up /proc and /sys trees, and on the machine that runs the tests."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from armisa import detect, host
from armisa.explanation import explain

FEATURES = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
)


def write(root, path, content):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def cpu(root, number, midr, capacity=1024):
    base = f"sys/devices/system/cpu/cpu{number}"
    write(root, f"{base}/regs/identification/midr_el1", f"{midr:#018x}\n")
    write(root, f"{base}/cpu_capacity", f"{capacity}\n")
    write(root, f"{base}/topology/thread_siblings_list", f"{number}\n")


@pytest.fixture
def arm(tmp_path, monkeypatch):
    """An AArch64 machine with six cores: four Cortex-A78, two Cortex-A55."""
    monkeypatch.setattr(host, "machine", lambda: "aarch64")
    monkeypatch.setattr(host, "hwcaps", lambda: {"hwcap": None, "hwcap2": None, "hwcap3": None})
    monkeypatch.setattr(host, "vector_bits", lambda _unit: None)
    monkeypatch.setattr(host, "affinity", lambda: 6)
    write(tmp_path, "sys/devices/system/cpu/online", "0-5\n")
    text = ""
    for number in range(6):
        part = 0xD41 if number < 4 else 0xD05
        cpu(tmp_path, number, 0x410F0000 | part << 4, 1024 if number < 4 else 300)
        text += f"processor\t: {number}\nFeatures\t: {FEATURES}\nCPU implementer\t: 0x41\n"
        text += f"CPU part\t: {part:#x}\nCPU revision\t: 0\n\n"
    write(tmp_path, "proc/cpuinfo", text)
    write(tmp_path, "proc/meminfo", "MemTotal:        8000000 kB\n")
    write(tmp_path, "sys/devices/system/node/node0/cpulist", "0-5\n")
    return tmp_path


def test_threads_bind_to_performance_cores(arm):
    isa = detect(arm)
    assert [(core.name, core.count, core.performance) for core in isa.cores] == [
        ("Cortex-A78", 4, True),
        ("Cortex-A55", 2, False),
    ]
    assert (isa.threads, isa.binding, isa.numa_nodes) == (4, "0-3", 1)
    assert isa.memory_bytes == 8_000_000 << 10


def test_quota_of_a_container_limits_the_threads(arm):
    write(arm, "sys/fs/cgroup/cpu.max", "200000 100000\n")
    write(arm, "sys/fs/cgroup/memory.max", "1073741824\n")
    isa = detect(arm)
    assert (isa.threads, isa.binding) == (2, None)
    assert isa.memory_bytes == 1 << 30
    assert any("2 CPUs" in note for note in isa.notes)


def test_quota_of_the_first_control_group_version_counts_too(arm):
    write(arm, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n")
    write(arm, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert detect(arm).threads == 1


@pytest.mark.parametrize(("quota", "threads"), [("270000", 2), ("390000", 3), ("400000", 4), ("50000", 1)])
def test_a_part_of_a_cpu_is_no_thread(arm, quota, threads):
    """A thread that is stopped for part of every period keeps all others waiting at the barrier."""
    write(arm, "sys/fs/cgroup/cpu.max", f"{quota} 100000\n")
    assert detect(arm).threads == threads


def test_affinity_limits_the_threads(arm, monkeypatch):
    monkeypatch.setattr(host, "affinity", lambda: 3)
    isa = detect(arm)
    assert isa.threads == 3
    assert any("3 of 6" in note for note in isa.notes)


def test_missing_sources_are_noted_never_fatal(arm, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    isa = detect(empty)
    assert isa.features == frozenset()
    assert isa.architecture is None
    assert any("cpuinfo" in note for note in isa.notes)
    assert any("MIDR" in note or "names the cores" in note for note in isa.notes)
    assert any("NUMA" in note for note in isa.notes)


def test_threads_of_one_numa_node(arm):
    write(arm, "sys/devices/system/node/node0/cpulist", "0-1\n")
    write(arm, "sys/devices/system/node/node1/cpulist", "2-5\n")
    isa = detect(arm)
    assert (isa.numa_nodes, isa.binding) == (2, "2-3")


def test_masked_cpuinfo_is_replaced_by_the_auxiliary_vector(arm, monkeypatch):
    write(arm, "proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd41\n")
    monkeypatch.setattr(host, "hwcaps", lambda: {"hwcap": 0b11 | 1 << 20, "hwcap2": 1 << 14, "hwcap3": None})
    assert detect(arm).features == {"fp", "asimd", "asimddp", "bf16"}


def test_emulator_is_recognized_by_the_program_that_really_runs(arm):
    write(arm, "proc/thread-self/exe", "")
    (arm / "proc/thread-self/exe").write_bytes(b"\x7fELF\2\1\1" + bytes(11) + (62).to_bytes(2, "little"))
    assert detect(arm).emulated
    (arm / "proc/thread-self/exe").write_bytes(b"\x7fELF\2\1\1" + bytes(11) + (183).to_bytes(2, "little"))
    assert not detect(arm).emulated


@pytest.mark.parametrize(
    ("version", "cautioned"),
    [
        ("5.9.16", True),
        ("4.14.0-tegra", True),
        ("5.10.0-8-arm64", False),
        ("6.8.0-1021-aws", False),
        ("?", False),
    ],
)
def test_kernels_before_5_10_may_hide_bf16_and_i8mm(arm, monkeypatch, version, cautioned):
    monkeypatch.setattr(platform, "release", lambda: version)
    isa = detect(arm)
    assert isa.kernel_version == version
    assert any("older than 5.10" in note for note in isa.notes) == cautioned


@pytest.mark.parametrize(("size", "cautioned"), [(4096, False), (16384, True), (65536, True), (None, False)])
def test_large_pages_are_cautioned_of(arm, monkeypatch, size, cautioned):
    monkeypatch.setattr(host, "page_size", lambda: size)
    isa = detect(arm)
    assert isa.page_size == size
    assert any(f"pages are {(size or 0) >> 10} KiB" in note for note in isa.notes) == cautioned


@pytest.mark.parametrize(("kilobytes", "fits"), [(1_000_000, 0), (8 << 20, 6), (512 << 20, 510)])
def test_memory_for_weights_and_cache_leaves_the_system_its_part(arm, kilobytes, fits):
    write(arm, "proc/meminfo", f"MemTotal:        {kilobytes} kB\n")
    assert any(f"KV cache fit in {fits} GiB" in line for line in explain(detect(arm)))


def test_memory_that_nobody_tells_is_not_invented(arm):
    (arm / "proc/meminfo").unlink()
    isa = detect(arm)
    assert isa.memory_bytes is None
    assert not any(line.startswith("memory:") for line in explain(isa))


def test_limit_of_a_parent_control_group_counts(arm):
    write(arm, "proc/self/cgroup", "0::/pod/box\n")
    write(arm, "sys/fs/cgroup/pod/memory.max", "2147483648\n")
    write(arm, "sys/fs/cgroup/pod/box/memory.max", "max\n")
    assert detect(arm).memory_bytes == 2 << 30


def test_vector_length_is_the_systems_when_prctl_tells_it(arm, monkeypatch):
    monkeypatch.setattr(host, "hwcaps", lambda: {"hwcap": 0b11 | 1 << 22, "hwcap2": 0, "hwcap3": None})
    monkeypatch.setattr(host, "vector_bits", lambda unit: 512 if unit == "sve" else None)
    assert detect(arm).sve_vector_bits == 512


def test_sysfs_and_cpuinfo_that_name_different_cores_are_noted(arm):
    for number in range(6):
        cpu(arm, number, 0x410FD0C0)
    isa = detect(arm)
    assert [core.name for core in isa.cores] == ["Neoverse-N1"]
    assert any("different cores" in note for note in isa.notes)


def test_hardware_threads_of_one_core_count_once(arm):
    for number in range(4):
        write(
            arm,
            f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list",
            f"{number & 2}-{number | 1}\n",
        )
    assert detect(arm).threads == 2


@pytest.mark.parametrize("content", ["node -", "0-", "a-b", "", "0-3,5,-", "9999999999"])
def test_odd_cpu_lists_are_survived(content):
    assert isinstance(host.cpu_list(content), tuple)


def test_this_machine_is_described():
    isa = detect()
    assert isa.machine == platform.machine()
    assert isa.page_size == os.sysconf("SC_PAGE_SIZE")
    assert isa.threads >= 1
    assert not isa.emulated


def test_detect_needs_the_standard_library_only():
    """The factory and CI images import it where nothing is installed."""
    code = (
        "import sys\nfrom armisa import detect\ndetect().as_dict()\n"
        "bad = {'numpy', 'typer', 'click', 'elftools', 'auditwheel', 'torch'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
