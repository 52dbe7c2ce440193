"""The test of an image in a container, for `armbuild smoke IMAGE --engine podman`."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from armbuild.errors import MissingError, UsageError
from armbuild.host import limits, process
from armbuild.host.containers import ENGINES
from armbuild.image import reference
from armbuild.image.client import dial
from armbuild.wheel.lanes import container

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from armbuild.host.process import Running


@dataclass(frozen=True, kw_only=True)
class Contained:
    """How programs of one loaded image are started."""

    engine: str
    image: str
    root: Path
    """The same image unpacked, for what the test must know of it."""
    user: str
    label: str
    """On every container that is started, by which they are removed."""

    def describe(self) -> str:
        """Return in a few words what surrounds the program."""
        return f"as user {self.user}, read-only, by {self.engine}"

    def command(
        self, program: Sequence[str], environment: Mapping[str, str], cpu: str | None
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the environment that run the image's ``program`` on a QEMU ``cpu``."""
        variables = {**environment, **({"QEMU_CPU": cpu} if cpu else {})}
        return [
            self.engine, "run", "--rm", f"--label={self.label}", "--platform=linux/arm64", "--network=host",
            "--read-only", "--tmpfs=/tmp:mode=1777", f"--user={self.user}",
            *(f"--env={name}={value}" for name, value in variables.items()),
            *os.environ.get("ARMBUILD_ENGINE_OPTIONS", "").split(),
            f"--entrypoint={program[0]}", "--", self.image, *program[1:],
        ], dict(os.environ)  # fmt: skip

    def place(self, path: Path) -> str:
        """Return how the programs name a file of the image."""
        return f"/{path}"

    def connect(self, port: int) -> socket.socket:
        """Return a connection to ``port`` of this machine, whose network the container has."""
        return dial(port)

    def terminate(self, server: Running) -> None:
        """Ask the container, which gets the engine's signals, to end."""
        server.terminate()


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
    engine: str, path: Path, name: str | None, root: Path, *, user: str, several: bool, log: Path
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
    label = f"armbuild.wheel.smoke={os.getpid()}"
    try:
        yield Contained(engine=engine, image=name, root=root, user=user, label=label)
    finally:
        left = process.succeeds([engine, "ps", "--all", "--quiet", "--filter", f"label={label}"])
        if left:
            process.succeeds([engine, "rm", "--force", "--volumes", *left.split()])
