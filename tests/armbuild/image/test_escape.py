"""Programs that try to leave their sandbox in 90 ways, as root and as an ordinary user."""

import ctypes
import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.armbuild.image import small

from armbuild.host import limits, process
from armbuild.image import sandbox
from armbuild.target import qemu

NOBODY = 65534
# bwrap is fetched from a Debian archive where the machine has none
pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("escape") / "escape"
    source = Path(__file__).with_name("escape.c")
    subprocess.run(["cc", "-static", "-O1", "-Wall", "-Werror", "-o", path, source], check=True)
    return path


@pytest.fixture(scope="module", params=["this machine", "emulated"])
def leaving(request, tmp_path_factory):
    """A second program, and its emulator: QEMU makes other system calls than the program does."""
    emulated = request.param == "emulated"
    folder = tmp_path_factory.mktemp("leave")
    compiler = "aarch64-linux-gnu-gcc" if emulated else "cc"
    source = Path(__file__).with_name("leave.c")
    flags = ["-static", "-O1", "-Wall", "-Werror"]
    subprocess.run([compiler, *flags, "-o", folder / "leave", source, "-lrt"], check=True)
    if not emulated:
        return folder / "leave", None
    copy = folder / "qemu-aarch64"  # where every user may read it
    shutil.copyfile(qemu.find(("neoverse-n1",)), copy)
    copy.chmod(0o755)
    return folder / "leave", copy


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """A place for bwrap that every user may read."""
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "escape-cache"))


@pytest.fixture
def outside():
    """What a program may reach only outside of its sandbox: arguments for escape.c."""
    with ExitStack() as stack:
        port = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        name = f"armbuild-{os.getpid()}"
        stack.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0{name}")
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(f"\0{name}-listens")
        listening.listen()
        key = 0x41000000 + os.getpid()
        library = ctypes.CDLL(None, use_errno=True)
        segment = library.shmget(key, 4096, 0o1666)
        assert segment >= 0
        stack.callback(library.shmctl, segment, 0, None)
        yield [str(os.getpid()), str(port), f"{name}-listens", str(key)]


def started(command, outer, user):
    options = {"user": user, "group": user, "extra_groups": []} if user else {}
    return subprocess.run(
        command, env=outer, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, **options
    )


def readable(*folders):
    for folder in folders:
        for parent in (folder, *folder.parents):
            if parent.stat().st_mode & 0o077 == 0:
                parent.chmod(0o755)


@pytest.fixture
def laid(tmp_path, program):
    """An unpacked image whose links lead to the machine: (root, work folder, a file of the machine)."""
    marker = tmp_path / "marker"
    marker.write_text("of the machine")
    above = "../" * len(tmp_path.parts)
    links = {"link": str(tmp_path), "up": above + str(tmp_path), "dev": "/etc", "proc": str(tmp_path)}
    files = {name: ("->", target) for name, target in (links | {"qemu-aarch64": str(marker)}).items()}
    root = small.tree(tmp_path / "root", {**files, "sys": "a file", "bin/escape": program.read_bytes()})
    (root / "bin/escape").chmod(0o4755)
    (work := tmp_path / "work").mkdir()
    work.chmod(0o777)
    return root, work, marker


@pytest.mark.parametrize("caller", [None, NOBODY], ids=["as it is", "as nobody"])
@pytest.mark.parametrize("user", ["0:0", "10001:10001"])
def test_an_image_that_tries_to_leave_reaches_nothing(laid, program, outside, user, caller):
    root, work, marker = laid
    if caller and os.geteuid():
        caller = None  # it is an ordinary user already
    box = sandbox.make(root, user, None, work)
    readable(work, root, program.parent, Path(box.bwrap[-1]).parent)
    direct = started([str(program), *outside], None, caller or NOBODY if os.geteuid() == 0 else None)
    for way in ("the machine's ports", "abstract sockets", "shared memory", "processes of the machine"):
        assert f"open: {way}" in direct.stdout, "or the program tries nothing"
    command, outer = box.command(["/bin/escape", *outside], {"PATH": "/bin"}, None)
    done = started(command, outer, caller)
    assert done.stdout == f"ready {user.replace(':', ' ')}\ndone\n", done.stdout + done.stderr
    assert done.returncode == 0
    assert marker.read_text() == "of the machine"
    assert not (root / "escaped").exists()


RIGHTS = bytes.fromhex("0100000200000400" + "00" * 12)  # CAP_SYS_PTRACE


@pytest.mark.parametrize("caller", [None, NOBODY], ids=["as it is", "as nobody"])
@pytest.mark.parametrize("user", ["0:0", "10001:10001"])
def test_other_ways_out_are_closed_to_the_program_and_to_its_emulator(tmp_path, leaving, user, caller):
    program, emulator = leaving
    root = small.tree(tmp_path / "root", {"bin/leave": program.read_bytes(), "link": ("->", "/etc")})
    (root / "bin/leave").chmod(0o6755)
    if os.geteuid():
        caller = None
    else:
        os.setxattr(root / "bin/leave", "security.capability", RIGHTS)
    (work := tmp_path / "work").mkdir()
    work.chmod(0o777)
    box = sandbox.make(root, user, emulator, work)
    readable(work, root, program.parent, Path(box.bwrap[-1]).parent)
    library = ctypes.CDLL(None, use_errno=True)
    key = 0x42000000 + os.getpid()
    queue = library.msgget(key, 0o1666)
    assert queue >= 0
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    changed = [path.stat().st_ctime_ns for path in sandbox.DEVICES]
    variables = {"PATH": "/bin", "QEMU_LD_PREFIX": "/proc/1/root", "QEMU_LOG_FILENAME": "tmp/log"}
    command, outer = box.command(["/bin/leave", str(os.getpid()), str(key), own_address()], variables, "max")
    output = tmp_path / "output"
    output.touch()
    if caller:
        os.chown(output, caller, caller)
    try:
        with output.open("r+b") as sink:
            options = {"user": caller, "group": caller, "extra_groups": []} if caller else {}
            done = subprocess.run(
                command,
                env={**outer, "ARMBUILD_SECRET": "a"},
                stdout=sink,
                stderr=subprocess.PIPE,
                check=False,
                stdin=subprocess.DEVNULL,
                **options,
            )
    finally:
        library.msgctl(queue, 0, None)
    assert output.read_text() == f"ready {user.replace(':', ' ')}\ndone\n", (
        output.read_text() + done.stderr.decode()
    )
    assert done.returncode == 0
    assert os.getpriority(os.PRIO_PROCESS, 0) == priority
    assert changed == [path.stat().st_ctime_ns for path in sandbox.DEVICES], "a chmod reached them"
    assert sorted(path.name for path in root.iterdir()) == ["bin", "dev", "link", "proc", "sys", "tmp"]


def own_address():
    """An address of this machine beside 127.0.0.1, which a sandbox has too."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 53))
        except OSError:
            return "192.0.2.2"
        return asking.getsockname()[0]


def test_a_fork_bomb_is_ended_though_root_has_no_limit_of_processes(tmp_path, program, monkeypatch):
    monkeypatch.setattr(limits, "LOOK_EVERY", 0.02)
    root = small.tree(tmp_path / "root", {"bin/escape": program.read_bytes()})
    (root / "bin/escape").chmod(0o755)
    box = sandbox.make(root, "0:0", None, tmp_path)
    command, outer = box.command(["/bin/escape", "bomb"], {}, None)
    most = limits.Limits(processes=100)
    output, log = tmp_path / "out", tmp_path / "log"
    bomb = process.start(command, env=outer, output=output, log=log, timeout=60, what="it", limits=most)
    while bomb.poll() is None:
        time.sleep(0.02)
    assert bomb.excess == "it had more than 100 processes", log.read_text()
    deadline = time.monotonic() + 30
    while box._first() is not None:  # the kernel ends one after the other
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.02)
