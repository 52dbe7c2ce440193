import json
import os
import platform
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath

import pytest
from tests.armbuild.image import small

from armbuild.artifact import archives
from armbuild.errors import CheckFailed, MissingError
from armbuild.host import bubblewrap, process, seccomp
from armbuild.image import client, sandbox
from armbuild.image.sandbox import Sandbox

ENVIRONMENT = {"PATH": "/bin", "LD_PRELOAD": "/lib/tcmalloc.so", "NO_PROXY": "localhost,127.0.0.1"}


def box(root, **changes):
    usual = {
        "user": 10001,
        "group": 10001,
        "emulator": Path("/q"),
        "bwrap": ("bwrap",),
        "devices": ("--dev-bind", "/dev/null", "/dev/null"),
        "work": root.parent / "w",
    }
    return Sandbox(root=root, **{**usual, **changes})


def test_without_a_sandbox_values_with_commas_reach_the_emulated_program_whole(tmp_path):
    unprotected = sandbox.make_unprotected(tmp_path, Path("/q"))
    command, outer = unprotected.command(["/usr/bin/python3"], ENVIRONMENT, "neoverse-n1")
    inner = [command[index + 1] for index, word in enumerate(command) if word == "-E"]
    own = f"ARMLLM_EMULATOR=/q -L {tmp_path} -cpu neoverse-n1"  # by which the image starts its processes
    assert inner == ["PATH=/bin", "LD_PRELOAD=/lib/tcmalloc.so", own]  # QEMU cuts what follows -E at commas
    assert outer == {"NO_PROXY": "localhost,127.0.0.1"}
    assert unprotected.place(Path("model")) == str(tmp_path / "model"), "QEMU maps no path of access(2)"
    assert "without a sandbox" in unprotected.describe()
    with pytest.raises(MissingError, match="--engine podman"):
        sandbox.make_unprotected(tmp_path, None)


def test_the_images_variables_reach_its_program_and_none_that_starts_it(tmp_path):
    command, outer = box(tmp_path).command(["/usr/bin/python3"], ENVIRONMENT, "neoverse-n1")
    options = command[: command.index("/dev/qemu-aarch64", command.index("--seccomp"))]
    values = {options[at + 1]: options[at + 2] for at, word in enumerate(options) if word == "--setenv"}
    own = {"ARMLLM_EMULATOR": "/dev/qemu-aarch64 -cpu neoverse-n1"}  # by which the image starts its processes
    assert values == {**ENVIRONMENT, **own}
    assert set(outer) == {"PATH"}
    assert "--clearenv" in options


def test_a_script_is_emulated_by_its_interpreter_and_found_on_the_images_path(tmp_path):
    small.tree(
        tmp_path,
        {
            "usr/bin/python3.11": b"\x7fELF",
            "usr/bin/python3": ("->", "/usr/bin/python3.11"),
            "usr/local/bin/armllm": "#!/usr/bin/python3 -I\nimport armllm\n",
        },
    )
    for name in ("/usr/local/bin/armllm", "armllm"):
        words, _ = box(tmp_path).command([name, "serve"], {"PATH": "/bin:/usr/local/bin"}, None)
        assert words[-4:] == ["/usr/bin/python3", "-I", "/usr/local/bin/armllm", "serve"]
    words, _ = box(tmp_path).command(["/usr/bin/python3", "-V"], {}, None)
    assert words[-2:] == ["/usr/bin/python3", "-V"]
    assert sandbox.find(tmp_path, "none", {"PATH": "/usr/bin"}) is None


def test_an_interpreter_ends_at_a_zero_and_a_long_path_is_not_searched_to_its_end(tmp_path):
    small.tree(tmp_path, {"bin/x": b"#!/bin/sh\0 -x\n", "f200/y": "", "bin/z": b"#!\0"})
    words, _ = box(tmp_path).command(["/bin/x"], {}, None)
    assert words[-2:] == ["/bin/sh", "/bin/x"]
    words, _ = box(tmp_path).command(["/bin/z"], {}, None)
    assert words[-1] == "/bin/z"
    path = ":".join(f"/f{number}" for number in range(201))
    assert sandbox.find(tmp_path, "y", {"PATH": path}) is None
    assert sandbox.find(tmp_path, "y", {"PATH": path[-200:]})


def test_the_number_of_a_program_that_has_ended_may_be_anothers(tmp_path):
    """Of none that bwrap started for us: this process, a child of it, and one that is not there."""
    with subprocess.Popen(["sleep", "100"]) as other:
        for number in (os.getpid(), other.pid, 2**31 - 1):
            (tmp_path / "first.json").write_text(json.dumps({"child-pid": number}))
            there = box(tmp_path / "root", work=tmp_path)
            assert there._first() is None
            there.terminate(None)
        assert other.poll() is None
        other.kill()


@pytest.mark.parametrize("target", ["{outside}", "../{outside}", "/../../..{outside}"])
def test_what_the_test_reads_of_an_image_is_a_file_in_it(tmp_path, target):
    secret = tmp_path / "secret"
    secret.write_text("root:x:0:0::/:/bin/sh\nmodel:x:7:8::/:/bin/sh\n")
    os.mkfifo(tmp_path / "pipe")
    link = ("->", target.format(outside=secret))
    root = small.tree(tmp_path / "root", {"etc/passwd": link, "bin/pipe": None, "loop": ("->", "loop")})
    for name in ("/etc/passwd", "/bin", "/bin/pipe", "/etc/none"):
        with pytest.raises(FileNotFoundError):
            archives.open_file(root, PurePosixPath(name))
    with pytest.raises(CheckFailed, match="too many links"):
        archives.open_file(root, PurePosixPath("/loop"))
    with pytest.raises(CheckFailed, match="'model' is neither a number"):
        sandbox._ids(root, "model")
    with pytest.raises(CheckFailed, match="neither a number"):
        sandbox._ids(root, "9" * 5000)


USERS = (
    "root:x:0:0::/:/bin/sh\nmodel:x:7:8::/:/bin/sh\n../../etc:x:9:9::/:\n--uid:x:5:5::/:\n"
    "big:x:99999999999:1::/:\n"
)


@pytest.mark.parametrize(
    ("user", "ids"),
    [
        ("", (0, 0)), ("root", (0, 0)), ("model", (7, 8)), ("7", (7, 8)), ("model:3", (7, 3)),
        ("11", (11, 0)), ("11:staff", (11, 50)), ("model:staff", (7, 50)), (":staff", (0, 50)),
        ("../../etc", (9, 9)), ("--uid", (5, 5)),
    ],
)  # fmt: skip
def test_a_user_of_an_image_is_who_a_runtime_takes_him_for(tmp_path, user, ids):
    small.tree(tmp_path, {"etc/passwd": USERS, "etc/group": "root:x:0:\nstaff:x:50:\nodd:x:x:\n"})
    assert sandbox._ids(tmp_path, user) == ids


@pytest.mark.parametrize(
    "user",
    [
        "big",
        "-1",
        "4294967295",
        "99999999999",
        "1:-1",
        "1:none",
        "1:odd",
        "1:2:3",
        "\u0661",
        "\u00b2",
        " 1",
        "0x0",
    ],
)
def test_a_user_of_an_image_that_is_none_is_refused(tmp_path, user):
    small.tree(tmp_path, {"etc/passwd": USERS, "etc/group": "odd:x:x:\n"})
    with pytest.raises(CheckFailed, match="is neither a number nor in its /etc/"):
        sandbox._ids(tmp_path, user)


def test_a_fifo_of_the_image_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        archives.open_file(tmp_path, PurePosixPath("/pipe"))


def test_mount_points_are_folders_of_the_root_and_the_machines_files_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(bubblewrap, "find", lambda **_: ("bwrap",))
    victim = tmp_path / "victim"
    victim.write_text("mine")
    victim.chmod(0o600)
    links = {name: ("->", str(victim)) for name in ("qemu-aarch64", "dev", "sys", "tmp", "proc")}
    root = small.tree(tmp_path / "root", links)
    sandbox.make(root, "0:0", victim, tmp_path)
    assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("mine", 0o600)
    assert all((root / name).is_dir() and not (root / name).is_symlink() for name in sandbox.MOUNTED)
    assert (root / "qemu-aarch64").is_symlink(), "nothing is laid into the root"


def test_where_no_sandbox_can_be_had_nothing_runs_and_it_is_said_why(tmp_path, monkeypatch):
    (tmp_path / "bwrap").write_text(
        "#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2; exit 1\n"
    )
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(bubblewrap, "_fetched", lambda _mirror: (str(tmp_path / "bwrap"),))
    with pytest.raises(MissingError, match="uid map: Permission denied") as caught:
        sandbox.make(tmp_path, "0:0", None, tmp_path)
    assert "--unsafe-no-sandbox" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2


def test_a_machine_without_a_filter_of_system_calls_has_no_sandbox():
    with pytest.raises(MissingError, match="s390x"):
        seccomp.program("s390x")
    for machine in seccomp.ARCHITECTURES:
        code = list(struct.iter_unpack("=HBBI", seccomp.program(machine)))
        jumps = [(at, max(yes, no)) for at, (kind, yes, no, _) in enumerate(code) if kind & 7 == 5]
        assert all(at + 1 + length < len(code) for at, length in jumps), "the kernel refuses such a filter"


@pytest.mark.network
def test_a_server_is_reached_in_its_own_network_and_ends_when_asked(tmp_path):
    """The root is this machine's own, read-only, for its Python."""
    (tmp_path / "filter").write_bytes(seccomp.program(platform.machine()))
    there = box(Path("/"), emulator=None, work=tmp_path, bwrap=bubblewrap.find(instead=""))
    python = str(Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}"))
    command, outer = there.command([python, "-c", SERVER], {}, None)
    log = tmp_path / "log"
    server = process.start(command, output=tmp_path / "out", log=log, env=outer, timeout=60, what="it")
    try:
        asking = client.Client(8000, "none", there.connect)
        while not asking.healthy():
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        with pytest.raises(OSError, match=r"refused|timed out"):
            client.dial(8000).close()
        question = [python, "-c", "import socket; socket.create_connection(('127.0.0.1', 8000))"]
        beside, outer = there.command(question, {}, None)
        done = subprocess.run(beside, env=outer, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        there.terminate(server)
        while (status := server.poll()) is None:
            time.sleep(0.02)
        assert status == 7, log.read_text()
        assert not asking.healthy()
    finally:
        server.kill()


SERVER = """
import http.server, signal, sys
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
http.server.HTTPServer(("127.0.0.1", 8000), Healthy).serve_forever()
"""
