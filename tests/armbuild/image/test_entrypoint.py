import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import armisa
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


def test_a_core_below_the_floor_gets_a_sentence():
    reason = entrypoint.refusal(FACTS, armisa.Isa.from_target("cortex-a72"))
    assert "Cortex-A72 lacks atomics" in reason
    assert "armv8.1-a or newer" in reason
    assert "\n" not in reason


@pytest.mark.parametrize("core", ["neoverse-n1", "neoverse-v1", "cortex-a76"])
def test_a_core_at_the_floor_or_above_is_let_through(core):
    assert not entrypoint.refusal(FACTS, armisa.Isa.from_target(core))


def test_features_that_nobody_knows_do_not_keep_the_server_from_starting():
    blind = armisa.Isa.from_target("cortex-a72")
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
    assert done.stdout.split() == [str(entrypoint.TOO_LITTLE)]
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


def test_a_container_is_reached_from_outside_unless_another_address_is_named():
    assert entrypoint.with_host(["/model"]) == ["/model", "--host", "0.0.0.0"]  # noqa: S104
    for arguments in (
        ["/model", "--host", "::"],
        ["/model", "--host=::1"],
        ["--uds", "/run/socket", "/model"],
    ):
        assert entrypoint.with_host(arguments) == arguments


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
            "4 of 256 GiB by cgroup v2",
        ),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": str(129 << 30)}, "129 of 256 GiB by cgroup v1"),
        ({"sys/fs/cgroup/memory.max": str(768 << 20)}, "0.75 of 256 GiB"),
        ({"sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/memory.high": str(3 << 29)}, "1.5 of 256 GiB"),
        ({"sys/fs/cgroup/memory.max": str(512 << 30)}, "256 GiB, no limit"),
        (
            {"proc/self/cgroup": "0::/a.slice/b\n", "sys/fs/cgroup/a.slice/cpu.max": "27000 10000"},
            "2.7 CPUs' worth of time",
        ),
    ],
)
def test_the_limits_of_the_container_are_five_lines(tmp_path, files, said):
    root = machine(tmp_path, files={"proc/meminfo": f"MemTotal: {256 << 20} kB\n", **files})
    (root / "sys/fs/cgroup/a.slice/b").mkdir(parents=True, exist_ok=True)
    lines = entrypoint.report(FACTS, armisa.detect(root), ["serve", "/my model"], root)
    assert len(lines) == 5
    assert any(said in line for line in lines), lines
    assert lines[4] == "  armllm serve '/my model'"


def test_what_the_machine_does_not_tell_is_not_claimed(tmp_path):
    blind = armisa.Isa(machine="aarch64", cores=(), products=(), features=frozenset())
    assert "needs atomics: this machine does not tell" in entrypoint.report(FACTS, blind, [], tmp_path)[0]
    able = armisa.Isa.from_target("neoverse-n1")
    assert entrypoint.report(FACTS, able, [], tmp_path)[0].endswith("needs atomics: there")


def test_a_limit_of_memory_that_torch_alone_exceeds_is_a_sentence(tmp_path, monkeypatch, capfd):
    """The kernel would kill the server while it imports torch; `docker run` would show nothing but 137."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    root = machine(tmp_path, files={"sys/fs/cgroup/memory.max": str(256 << 20)})
    assert entrypoint.main(["/m"], root) == 3
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("armllm: error: 256 MiB of memory are too little")


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
        ([], "0.0.0.0:8000"),
        (["/m", "--port", "9"], "0.0.0.0:9"),
        (["/m", "--port=9", "--port", "10"], "0.0.0.0:10"),
        (["/m", "--host", "::1", "--port=9"], "::1:9"),
        (["/m", "--uds", "/run/s"], "/run/s"),
        (["/m", "--uds=s"], str(Path.cwd() / "s")),
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


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.2", "localhost", "::", "::1", "uds"])  # noqa: S104
def test_the_health_check_reaches_a_server_wherever_it_listens(tmp_path, monkeypatch, host):
    monkeypatch.chdir(tmp_path)
    arguments = ["/m", "--uds", "s"] if host == "uds" else ["/m", "--host", host]
    family = socket.AF_UNIX if host == "uds" else socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as server:
        try:
            server.bind("s" if host == "uds" else (host, 0))
        except OSError as error:
            pytest.skip(f"nothing can listen on {host} here: {error}")
        server.listen()
        if host != "uds":
            arguments += ["--port", str(server.getsockname()[1])]
        answer = threading.Thread(target=_answer, args=(server,))
        answer.start()
        assert not health.check(health.address_of(arguments))
        answer.join()


def _answer(server):
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
