import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from armbuild import isa
from armbuild.image import entrypoint, health

FACTS = {
    "version": "0.1.0",
    "torch": "2.10.0",
    "machine": "aarch64",
    "floor": {"features": ["atomics"], "lowest_core": "armv8.1-a or newer"},
}


def machine(folder, *, facts=None, files=None):
    """A root as the entry point sees it."""
    content = {entrypoint.FACTS: json.dumps({**FACTS, **(facts or {})}), **(files or {})}
    for name, text in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_core_below_the_floor_is_told_so_in_a_sentence():
    reason = entrypoint.refusal(FACTS, isa.Isa.from_target("cortex-a72"))
    assert "Cortex-A72 lacks atomics" in reason
    assert "armv8.1-a or newer" in reason
    assert "\n" not in reason


@pytest.mark.parametrize("core", ["neoverse-n1", "neoverse-v1", "cortex-a76"])
def test_a_core_at_the_floor_or_above_is_let_through(core):
    assert not entrypoint.refusal(FACTS, isa.Isa.from_target(core))


def test_features_that_nobody_knows_do_not_keep_the_server_from_starting():
    blind = isa.Isa.from_target("cortex-a72")
    unknown = type(blind)(machine="aarch64", cores=(), products=(), features=frozenset())
    assert not entrypoint.refusal(FACTS, unknown)


def test_below_the_floor_nothing_of_the_engine_is_imported(tmp_path):
    """The check must come before any instruction that the core may lack."""
    root = machine(
        tmp_path,
        facts={"floor": {"features": ["no-such"], "lowest_core": "x"}, "machine": os.uname().machine},
    )
    code = (
        "import sys, pathlib; from armbuild.image import entrypoint;"
        f"status = entrypoint.main(['/m'], pathlib.Path({str(root)!r}));"
        "loaded = {name.split('.')[0] for name in sys.modules};"
        "print(status, *sorted(loaded & {'torch', 'armllm', 'numpy'}))"
    )
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(Path("/proc/cpuinfo").read_text())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(entrypoint.TOO_OLD)]
    assert done.stderr.startswith("armllm: error: this image needs a core of x")
    assert len(done.stderr.splitlines()) == 1


def test_outside_of_an_image_it_names_the_right_command(tmp_path, capsys):
    assert entrypoint.main([], tmp_path) == entrypoint.MISUSED
    assert "armllm serve" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["/models/own"]),
        (["--dtype", "bfloat16"], ["/models/own", "--dtype", "bfloat16"]),
        (["/models/other", "--port", "1"], ["/models/other", "--port", "1"]),
        (["--port", "1", "--model", "/x"], ["--port", "1", "--model", "/x"]),
        (["--model=/x"], ["--model=/x"]),
        (["--model-len", "5"], ["/models/own", "--model-len", "5"]),
    ],
)
def test_the_images_own_model_is_served_unless_another_is_named(arguments, expected):
    assert entrypoint.with_model(arguments, {"ARMLLM_MODEL": "/models/own"}) == expected
    assert entrypoint.with_model(arguments, {}) == arguments


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"sys/fs/cgroup/cgroup.controllers": "cpu", "sys/fs/cgroup/cpu.max": "150000 100000"},
            "1.5 CPUs' worth of time by cgroup v2",
        ),
        (
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            "2 CPUs' worth of time by cgroup v1",
        ),
        ({}, "no limit of time"),
        (
            {"sys/fs/cgroup/memory.max": str(4 << 30), "sys/fs/cgroup/cgroup.controllers": ""},
            "4 of 16.0 GiB by cgroup v2",
        ),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": str(2 << 30)}, "2 of 16.0 GiB by cgroup v1"),
    ],
)
def test_the_limits_of_the_container_are_told_in_five_lines(tmp_path, files, said):
    root = machine(tmp_path, files={"proc/meminfo": f"MemTotal: {16 << 20} kB\n", **files})
    lines = entrypoint.report(FACTS, isa.detect(root), ["serve", "/my model"], root)
    assert len(lines) == 5
    assert any(said in line for line in lines), lines
    assert lines[4] == "  armllm serve '/my model'"


def test_a_signal_before_the_server_is_up_ends_the_process(tmp_path):
    """PID 1 without a handler never sees SIGTERM: `docker stop` would wait for its ten seconds."""
    code = (
        "import os, signal, pathlib; from armbuild.image import entrypoint;"
        "entrypoint.detect = lambda root: os.kill(os.getpid(), signal.SIGTERM);"
        f"entrypoint.main([], pathlib.Path({str(machine(tmp_path))!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert "stopped before it served" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        ([], "8000"),
        (["/m", "--port", "9"], "9"),
        (["/m", "--port=9", "--port", "10"], "10"),
        (["/m", "--uds", "/run/s"], "/run/s"),
    ],
)
def test_the_health_check_finds_the_servers_address(tmp_path, arguments, address):
    words = ["/usr/bin/python3.11", "-m", "armbuild.image.entrypoint", *arguments]
    for number, line in {"1": ["/usr/bin/tini", "--", *words], "7": words, "self": []}.items():
        (tmp_path / number).mkdir()
        (tmp_path / number / "cmdline").write_bytes("".join(f"{word}\0" for word in line).encode())
    assert health.server_arguments(tmp_path) == arguments
    assert health.address_of(health.server_arguments(tmp_path)) == address


def test_a_server_that_does_not_answer_is_not_healthy(tmp_path):
    assert "no answer on 1" in health.check("1")
    assert "no answer" in health.check(str(tmp_path / "socket"))
    assert "no answer" in health.check("port")
