"""The test of an image in a container, for `armbuild smoke IMAGE --engine podman`."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from armbuild.errors import MissingError, UsageError
from armbuild.host import limits, process
from armbuild.host.containers import ENGINES
from armbuild.image import reference
from armbuild.wheel.lanes import container

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from armbuild.host.process import Running


MOST_MEMORY = 4 << 30
# In the container: what comes on standard input goes to a port of its network, the answer to standard output.
RELAY = """
import os, socket, sys, threading
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10)
link.settimeout(None)
def send():
    while data := os.read(0, 65536):
        link.sendall(data)
threading.Thread(target=send, daemon=True).start()
while data := link.recv(65536):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
os._exit(0)
"""


@dataclass(kw_only=True)
class Contained:
    """How programs of one loaded image are started."""

    engine: str
    image: str
    root: Path
    """The same image unpacked, for what the test must know of it."""
    user: str
    python: str
    """The image's own interpreter."""
    name: str
    """Begins the containers' names, and is the label by which they are removed."""
    _server: str = ""
    """The container that was started last with a network of its own."""
    _relays: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def label(self) -> str:
        """On every container that is started."""
        return f"armbuild.wheel.smoke={self.name}"

    def describe(self) -> str:
        """Return in a few words what surrounds the program."""
        return f"as user {self.user}, read-only, without a network, by {self.engine}"

    def command(
        self, program: Sequence[str], environment: Mapping[str, str], cpu: str | None
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the environment that run the image's ``program`` on a QEMU ``cpu``.

        A program that starts while another runs on the same CPU shares that one's network, and nothing else.
        """
        variables = {**environment, **({"QEMU_CPU": cpu} if cpu else {})}
        own = f"{self.name}-{cpu or 'native'}"
        if own == self._server and self._runs():
            place = [f"--network=container:{own}"]
        else:
            self._server, place = own, [f"--name={own}", "--network=none"]
        memory = f"{min(MOST_MEMORY, limits.memory() * 3 // 4)}b"
        return [
            self.engine, "run", "--rm", *place, f"--label={self.label}", "--platform=linux/arm64",
            "--read-only", "--tmpfs=/tmp:mode=1777,size=1g", f"--user={self.user}",
            "--cap-drop=ALL", "--security-opt=no-new-privileges", f"--pids-limit={limits.STRANGER.processes}",
            f"--memory={memory}", f"--memory-swap={memory}", "--log-driver=none", "--no-healthcheck",
            *(f"--env={name}={value}" for name, value in variables.items()),
            *os.environ.get("ARMBUILD_ENGINE_OPTIONS", "").split(),
            f"--entrypoint={program[0]}", "--", self.image, *program[1:],
        ], dict(os.environ)  # fmt: skip

    def place(self, path: Path) -> str:
        """Return how the programs name a file of the image."""
        return f"/{path}"

    def connect(self, port: int) -> socket.socket:
        """Return a connection to ``port`` of the running container's own network.

        It is closed at once when nobody listens there. The image's Python passes on what is sent.
        """
        self.reap()
        here, there = socket.socketpair()
        command = [self.engine, "exec", "--interactive", self._server, self.python, "-I", "-S", "-c", RELAY]
        with there:
            end = there.fileno()
            relay = subprocess.Popen([*command, str(port)], stdin=end, stdout=end, stderr=subprocess.DEVNULL)
        self._relays.append(relay)
        return here

    def terminate(self, server: Running) -> None:
        """Ask the container, which gets the engine's signals, to end."""
        server.terminate()

    def reap(self, *, end: bool = False) -> None:
        """Forget the connections that have ended, and ``end`` the others."""
        for relay in self._relays:
            if end:
                relay.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                relay.wait(10 if end else 0)
        self._relays = [relay for relay in self._relays if relay.returncode is None]

    def _runs(self) -> bool:
        asked = [self.engine, "container", "inspect", "--format={{.State.Running}}", self._server]
        return process.succeeds(asked) == "true"


def check(engine: str, *, emulated: bool) -> None:
    """Raise UsageError for no engine, MissingError when it does not answer or runs no AArch64 programs."""
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine}: there are {', '.join(ENGINES)}")
    if shutil.which(engine) is None:
        raise MissingError(f"{engine} is not installed; without --engine none is needed")
    if process.succeeds([engine, "info"]) is None:
        raise MissingError(
            f"{engine} is installed but does not answer (`{engine} info`): start it, or leave --engine out"
        )
    if emulated and not container.registered():
        raise MissingError(
            "no handler for AArch64 programs in binfmt_misc: apt-get install qemu-user-static, or leave"
            " --engine out"
        )


@contextmanager
def loaded(
    engine: str, path: Path, name: str | None, root: Path, *, user: str, python: str, several: bool, log: Path
) -> Iterator[Contained]:
    """Load the archive at ``path``, which stays loaded, and remove the containers in the end.

    Of an archive for ``several`` platforms podman would load the one of this machine.
    Raises UsageError for what no engine loads, MissingError with the engine's reason.
    """
    if name is None or not path.is_file():
        raise UsageError(
            f"{path}: {engine} loads an archive that has a name: `armbuild docker --output FILE`"
        )
    if not reference.is_name(name):
        raise UsageError(f"{path}: it calls its image {name[:80]!r}, which is not an image's name")
    command: list[str | Path] = [engine, "load", "--input", path]
    if several and engine == "podman":
        command = [engine, "pull", "--quiet", "--platform=linux/arm64", f"oci-archive:{path}"]
    process.run(command, log=log, what=f"{engine} load", error=MissingError, limits=limits.ENGINE)
    box = Contained(
        engine=engine,
        image=name,
        root=root,
        user=user,
        python=python,
        name=f"armbuild-smoke-{secrets.token_hex(6)}",
    )
    try:
        yield box
    finally:
        box.reap(end=True)
        left = process.succeeds([engine, "ps", "--all", "--quiet", "--filter", f"label={box.label}"])
        if left:
            process.succeeds([engine, "rm", "--force", "--volumes", *left.split()])
