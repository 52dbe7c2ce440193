"""A small container runtime: a program inside an unpacked image, read-only, as the image's user.

The program is untrusted. Bubblewrap gives it separate namespaces (users, mounts, processes, network,
IPC), an unpacked root that it cannot write and no rights; a seccomp filter and limits do the rest. Where that
is not available, nothing runs, unless the caller asks for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from armbuild.artifact import archives
from armbuild.errors import CheckFailed, MissingError
from armbuild.host import bubblewrap, family, limits, seccomp
from armbuild.image.client import dial

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from armbuild.host.process import Running

INSTEAD = "use --engine podman, or --unsafe-no-sandbox for an image that you trust as your own programs"
EMULATOR = "/dev/qemu-aarch64"
PASSWD_LIMIT = 1 << 20
MOST_FOLDERS = 100  # of PATH; each may be a chain of links
INITS = ("tini", "tini-static", "dumb-init", "catatonit")
MOUNTED = ("proc", "dev", "sys", "tmp")
DEVICES = tuple(Path("/dev", name) for name in ("null", "zero", "full", "random", "urandom"))
SHOWN = ("/sys/devices/system", "/sys/fs/cgroup")
"""Of this machine, read-only: the processors, and what a cgroup lets them use."""
HIDDEN = ("keys", "key-users", "latency_stats", "sched_debug", "timer_list")
"""Files of /proc that anybody may read, and that tell of the machine's other users."""
SCRATCH = 1 << 30  # bytes of /tmp and of /dev/shm, which are memory
LIMITS = ("--nofile=4096", "--nproc=4096", f"--fsize={1 << 30}")
# prlimit, then bwrap, with the filter and the file that gets the first process's number as descriptors. Where
# memory runs out, the kernel ends these programs before the machine's; they cannot write to /proc.
ENTER = """
filter=$1 info=$2; shift 2
echo 1000 >/proc/self/oom_score_adj
exec "$@" 8<"$filter" 9>"$info"
"""
DIAL = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10) as found:
    socket.send_fds(socket.socket(fileno=0), [b"+"], [found.fileno()])
"""


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """How programs of one unpacked image are started."""

    root: Path
    user: int
    group: int
    emulator: Path | None
    """None on the image's own machine."""
    bwrap: tuple[str, ...]
    """Begins its command line."""
    devices: tuple[str, ...]
    """Options that show them."""
    work: Path
    """A folder for the filter and for the messages of bwrap."""

    def describe(self) -> str:
        """Return in a few words what surrounds the program."""
        return f"as user {self.user}, read-only, in a sandbox without a network"

    def command(
        self, program: Sequence[str], environment: Mapping[str, str], cpu: str | None
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the environment that run the image's ``program`` on a QEMU ``cpu``.

        A program that starts while another runs shares that one's network, and nothing else.
        An init in front is left out under emulation: it would start a program that this machine cannot run.
        An emulator starts no scripts, so that their interpreter is named in front of them.
        """
        command = list(program)
        if self.emulator is not None:
            command = _machine_code(self.root, without_init(command), environment)
            emulator = [EMULATOR, *(("-cpu", cpu) if cpu else ())]
            command = [*emulator, *command]
            environment = {**environment, "ARMLLM_EMULATOR": shlex.join(emulator)}
        variables = [part for name, value in environment.items() for part in ("--setenv", name, value)]
        joined, first = self._network(), self.work / "first.json"
        information = self.work / "other.json" if joined else first
        isolated = (*bubblewrap.ISOLATED, "--as-pid-1", "--clearenv")
        options = [*isolated, *self._mounts(), *(() if joined else ("--unshare-net",)), *variables]
        command = [
            *joined, "sh", "-c", ENTER, "sh", str(self.work / "filter"), str(information),
            "prlimit", *LIMITS, f"--data={limits.memory()}", "--",
            *self.bwrap, *options, "--seccomp", "8", "--info-fd", "9", "--", *command,
        ]  # fmt: skip
        return command, {"PATH": os.environ.get("PATH", os.defpath)}

    def place(self, path: Path) -> str:
        """Return how the programs name a file of the image."""
        return f"/{path}"

    def connect(self, port: int) -> socket.socket:
        """Return a connection to ``port`` of the running program's own network; OSError for none."""
        here, there = socket.socketpair()
        with here, there:
            command = [*self._network(), sys.executable, "-I", "-S", "-c", DIAL, str(port)]
            done = subprocess.run(command, stdin=there.fileno(), capture_output=True, check=False)
            if done.returncode:
                raise ConnectionRefusedError(f"nobody listens on port {port} in the sandbox")
            _, (descriptor,), _, _ = socket.recv_fds(here, 1, 1)
        return socket.socket(fileno=descriptor)

    def terminate(self, server: Running) -> None:  # noqa: ARG002 - that is bwrap, which would kill it
        """Ask the program that was started first to end."""
        if (number := self._first()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGTERM)

    def _mounts(self) -> list[str]:
        user = ["--uid", str(self.user), "--gid", str(self.group)]
        size = ["--size", str(SCRATCH), "--perms", "1777", "--tmpfs"]
        shown = [part for path in SHOWN for part in ("--ro-bind-try", path, path)]
        emulator = ["--ro-bind", str(self.emulator), EMULATOR] if self.emulator else []
        # root, although without rights, owns the kernel's settings in /proc
        return [
            *user, "--ro-bind", str(self.root), "/", "--proc", "/proc", *_hidden(), "--remount-ro", "/proc",
            *size, "/tmp",  # noqa: S108 - the image's own
            "--tmpfs", "/sys", *shown, "--remount-ro", "/sys",
            "--tmpfs", "/dev", *self.devices, *emulator, "--symlink", "/proc/self/fd", "/dev/fd",
            *size, "/dev/shm", "--remount-ro", "/dev", "--chdir", "/",  # noqa: S108
        ]  # fmt: skip

    def _network(self) -> list[str]:
        """Return the command in front of one that is to share the running program's network."""
        number = self._first()
        if number is None:
            return []
        return ["nsenter", f"--target={number}", "--user", "--net", "--preserve-credentials", "--"]

    def _first(self) -> int | None:
        """Return the number, on this machine, of the program that was started first; None when none runs."""
        try:
            number = int(json.loads((self.work / "first.json").read_text())["child-pid"])
            ours = family.parent(family.parent(number)) == os.getpid()  # else it is another's number by now
        except (OSError, ValueError):
            return None
        return number if ours else None


@dataclass(frozen=True, kw_only=True)
class Unprotected:
    """How programs of an unpacked image are started without a sandbox: an emulator maps their paths."""

    root: Path
    emulator: Path

    def describe(self) -> str:
        """Return in a few words what surrounds the program."""
        return "as the caller, without a sandbox"

    def command(
        self, program: Sequence[str], environment: Mapping[str, str], cpu: str | None
    ) -> tuple[list[str], dict[str, str]]:
        """Return what ``Sandbox.command`` does."""
        command = _machine_code(self.root, without_init(list(program)), environment)
        emulator = [str(self.emulator), "-L", str(self.root), *(("-cpu", cpu) if cpu else ())]
        environment = {**environment, "ARMLLM_EMULATOR": shlex.join(emulator)}
        # -E keeps a variable from the programs that start QEMU, but would cut its value at each comma
        outer = {name: value for name, value in environment.items() if "," in value}
        inner = [f"{name}={value}" for name, value in environment.items() if name not in outer]
        options = [part for item in inner for part in ("-E", item)]
        inside = str(self.root / command[0].lstrip("/"))
        return [*emulator, *options, inside, *command[1:]], outer

    def place(self, path: Path) -> str:
        """Return how the programs name a file of the image: QEMU maps no path of access(2)."""
        return str(self.root / path)

    def connect(self, port: int) -> socket.socket:
        """Return a connection to ``port`` of this machine."""
        return dial(port)

    def terminate(self, server: Running) -> None:
        """Ask the program to end."""
        server.terminate()


def make(root: Path, user: str, emulator: Path | None, work: Path, *, mirror: str | None = None) -> Sandbox:
    """Return how to start programs in ``root`` as ``user`` ("10001:10001" or a name of its /etc/passwd).

    Raises MissingError when this machine has no sandbox.
    """
    program = seccomp.program(platform.machine())
    bwrap = bubblewrap.find(instead=INSTEAD, mirror=mirror)
    if shutil.which("nsenter") is None:
        raise MissingError(f"nsenter is not there: apt-get install util-linux\n  {INSTEAD}")
    (work / "filter").write_bytes(program)
    for name in MOUNTED:  # a link would lead the mount elsewhere
        place = root / name
        if place.is_symlink() or not place.is_dir():
            place.unlink(missing_ok=True)
            place.mkdir()
    number, group = _ids(root, user)
    devices = tuple(bubblewrap.devices(DEVICES, work, instead=INSTEAD))
    return Sandbox(
        root=root,
        user=number,
        group=group,
        emulator=emulator,
        bwrap=bwrap,
        devices=devices,
        work=work,
    )


def make_unprotected(root: Path, emulator: Path | None) -> Unprotected:
    """Return how to start programs in ``root`` as the caller; MissingError without an emulator."""
    if emulator is None:
        raise MissingError("--unsafe-no-sandbox is for emulated cores; here use --engine podman")
    return Unprotected(root=root, emulator=emulator)


def _hidden() -> Iterator[str]:
    """Yield the options that hide files of /proc: a device that cannot be opened lies above each.

    A program whose caller is root is the same user for the kernel, and could read what only root may.
    """
    for path in sorted(Path("/proc").iterdir()):
        if path.is_file() and (path.name in HIDDEN or not path.stat().st_mode & 0o004):
            yield from ("--ro-bind", os.devnull, str(path))


def without_init(command: list[str]) -> list[str]:
    """Return a command line without the init (tini and its like) in front."""
    if command and PurePosixPath(command[0]).name in INITS:
        rest = command[1:]
        if "--" in rest:
            return rest[rest.index("--") + 1 :]
        return [
            word
            for index, word in enumerate(rest)
            if not all(item.startswith("-") for item in rest[: index + 1])
        ]
    return command


def find(root: Path, name: str, environment: Mapping[str, str]) -> PurePosixPath | None:
    """Return where a program lies in the image, as seen from inside; None when it is not there."""
    folders = ["/"] if "/" in name else environment.get("PATH", "").split(":")[:MOST_FOLDERS]
    places = [PurePosixPath(folder, name) for folder in folders]

    def is_there(place: PurePosixPath) -> bool:
        with contextlib.suppress(OSError, CheckFailed):  # a name that no file can have is none
            return archives.inside(root, place).is_file()
        return False

    return next(filter(is_there, places), None)


def _machine_code(root: Path, command: list[str], environment: Mapping[str, str]) -> list[str]:
    place = find(root, command[0], environment)
    if place is None:
        return command
    with archives.open_file(root, place) as program:
        first = program.readline(256).partition(b"\0")[0]
    interpreter = (
        first[2:].decode(errors="replace").strip().split(maxsplit=1) if first.startswith(b"#!") else []
    )
    return [*interpreter, str(place), *command[1:]]


def _ids(root: Path, user: str) -> tuple[int, int]:
    """Return the numbers of ``user``, as a runtime finds them (OCI: config.md, "User")."""
    name, _, group = user.partition(":")
    users, groups = {"root": ["0", "0"]}, {"root": ["0"]}
    for file, known in (("/etc/passwd", users), ("/etc/group", groups)):
        for fields in _entries(root, file, len(known["root"])):
            known[fields[0]] = fields[2:]
            if file == "/etc/passwd":
                known.setdefault(fields[2], fields[2:])
    found = users.get(name or "root") or ([name, "0"] if _is_id(name) else None)
    if found is None:
        raise CheckFailed(f"the image's user {name[:80]!r} is neither a number nor in its /etc/passwd")
    own = [group] if _is_id(group) else groups.get(group) if group else found[1:]
    if own is None:
        raise CheckFailed(f"the image's group {group[:80]!r} is neither a number nor in its /etc/group")
    return int(found[0]), int(own[0])


def _entries(root: Path, path: str, numbers: int) -> Iterator[list[str]]:
    """Yield a name, a password and so many numbers of each line of /etc/passwd or /etc/group."""
    with contextlib.suppress(FileNotFoundError), archives.open_file(root, PurePosixPath(path)) as file:
        for line in file.read(PASSWD_LIMIT).decode(errors="replace").splitlines():
            fields = line.split(":")[: 2 + numbers]
            if len(fields) == 2 + numbers and all(map(_is_id, fields[2:])):
                yield fields


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < 2**32 - 1
