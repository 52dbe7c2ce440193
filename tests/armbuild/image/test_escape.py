"""A program that tries to leave its sandbox in two dozen ways, as root and as an ordinary user."""

import ctypes
import os
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.armbuild.image import small

from armbuild.image import sandbox

NOBODY = 65534
# bwrap is fetched from a Debian archive where the machine has none
pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("escape") / "escape"
    source = Path(__file__).with_name("escape.c")
    subprocess.run(["cc", "-static", "-O1", "-Wall", "-Werror", "-o", path, source], check=True)
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A place for bwrap that every user may read."""
    return tmp_path_factory.mktemp("cache")


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
def laid(tmp_path, program, cache, monkeypatch):
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
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(cache))
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
