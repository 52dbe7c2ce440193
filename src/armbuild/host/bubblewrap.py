"""Bubblewrap (`bwrap`), which makes sandboxes without root rights: the system's own, else Debian's."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import subprocess
from typing import TYPE_CHECKING

from armbuild.errors import MissingError
from armbuild.host import cache
from armbuild.target import debian, qemu

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

SUITES = ("bookworm", "trixie")
ISOLATED = (
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    "--die-with-parent", "--new-session", "--cap-drop", "ALL",
)  # fmt: skip
"""What every sandbox has: namespaces but for the network's, and no rights, although root should start it."""


CORES = "--core=1"
"""What prlimit says in front: no core file, and no program of the machine that gets one through a pipe.

Such a program runs as root outside, and a limit of 0 does not keep the kernel from starting it (core(5)).
"""


def find(*, instead: str, mirror: str | None = None) -> tuple[str, ...]:
    """Return the command line that begins a bwrap which works here, downloaded if the system has none.

    Raises MissingError with the reason, and with what to do ``instead``, when none can be had or this machine
    allows no namespaces.
    """
    installed = shutil.which("bwrap")
    command: tuple[str, ...] = (installed,) if installed else ()
    reason = _refusal(command) if command else "bwrap is not installed"
    if reason:
        try:
            command = _fetched(mirror)
        except MissingError as error:
            advice = f"apt-get install bubblewrap, or {instead}"
            raise MissingError(f"no sandbox: {reason}; {str(error).splitlines()[0]}\n  {advice}") from error
        if reason := _refusal(command):
            raise MissingError(f"this machine allows no sandbox: {reason}\n  {instead}")
    limiting = shutil.which("prlimit")
    if limiting is None:
        raise MissingError(f"no sandbox: prlimit is not there: apt-get install util-linux\n  {instead}")
    return (limiting, CORES, "--", *command)


def devices(paths: Iterable[Path], work: Path, *, instead: str) -> Iterator[str]:
    """Yield the options that show ``paths`` of /dev, as copies in ``work`` where the caller owns them.

    A program that is the same user could change the mode of a device outside. Raises MissingError where none
    can be made.
    """
    for path in paths:
        found = path.stat()
        shown = path
        if found.st_uid == os.geteuid():
            shown = work / f"device-{path.name}"
            try:
                shown.unlink(missing_ok=True)
                os.mknod(shown, stat.S_IFCHR, found.st_rdev)
                shown.chmod(stat.S_IMODE(found.st_mode))
                if path.name != "tty":  # which cannot be opened without a terminal
                    shown.open("rb").close()  # nor can any on a file system without devices
            except OSError as error:
                raise MissingError(
                    f"no sandbox: {path} is yours, and {work} takes no copy of it: {error.strerror}"
                    f"\n  {instead}"
                ) from error
        yield from ("--dev-bind", str(shown), str(path))


def _refusal(command: Sequence[str]) -> str:
    """Return why bwrap makes no sandbox here, empty when it does."""
    mounts = (
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--size",
        "4096",
        "--perms",
        "1777",
        "--tmpfs",
        "/run",
    )
    asked = subprocess.run(
        [*command, *ISOLATED, "--unshare-net", *mounts, "--", *command, "--version"],
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    lines = asked.stderr.decode(errors="replace").strip().splitlines()
    return "" if asked.returncode == 0 else (lines[-1] if lines else f"bwrap ends with {asked.returncode}")


def _fetched(mirror: str | None) -> tuple[str, ...]:
    """Return Debian's bwrap behind its own loader and libraries, which run on any Linux."""
    architecture = qemu.DEBIAN_ARCHITECTURES.get(platform.machine(), platform.machine())
    reasons = []
    for suite in SUITES:

        def make(folder: Path, suite: str = suite) -> None:
            debian.install(("bubblewrap",), folder, suite=suite, architecture=architecture, mirror=mirror)

        try:
            folder = cache.fill(cache.root() / "bubblewrap" / f"{suite}-{architecture}", make)
        except MissingError as error:
            reasons.append(str(error).splitlines()[0])
            continue
        loader = next(folder.glob("usr/lib/*/ld*.so.*"))
        return (str(loader), "--library-path", str(loader.parent), str(folder / "usr/bin/bwrap"))
    raise MissingError("; ".join(reasons))
