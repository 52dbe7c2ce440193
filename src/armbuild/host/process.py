"""Start the program of a step: quiet on success, its first error and its log on failure."""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from armbuild.errors import ArmbuildError, BuildError, ExcessError, MissingError, UsageError, one_line
from armbuild.host import failure, family

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from armbuild.host.limits import Limits

GIT = (
    "env", "GIT_ALLOW_PROTOCOL=none", "git", "--no-optional-locks", "-c", "core.fsmonitor=false",
    "-c", "core.hooksPath=/dev/null", "-c", "log.showSignature=false",
)  # fmt: skip
"""How git is asked about a project: settings of a repository may name programs, for fetching too."""
QUESTION_SECONDS = 120.0
MOST = 64 << 20
"""The most bytes that are read of a program's standard output, which may have no end."""


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    log: Path,
    what: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    error: type[ArmbuildError] = BuildError,
    limits: Limits | None = None,
) -> str:
    """Run ``command`` to its end, append all it says to ``log``, and return its standard output.

    ``env`` replaces the whole environment. A failure raises ``error`` with ``what``, the first real error
    line and the log's path; a full disk, a program that is not there and one that exceeds ``limits`` raise
    MissingError, the last one ExcessError. An interrupt kills all that the command started before it goes on.
    """
    arguments = [os.fspath(part) for part in command]
    with (
        _full_disk_is_named(what, log),
        log.open("a+b") as sink,
        tempfile.TemporaryFile(dir=log.parent) as stdout,
    ):
        start = _write_header(sink, arguments)
        child = _spawn(arguments, what=what, cwd=cwd, env=env, stdout=stdout, stderr=sink)
        outputs = (stdout.fileno(), sink.fileno())
        _outputs.append(outputs)
        try:
            if excess := limits.wait(child) if limits else "":
                _kill_group(child)
            child.wait()
        except BaseException:
            _kill_group(child)
            raise
        finally:
            _outputs.remove(outputs)
            _ended(child)
        heard = failure.read_ends(sink, start).partition("\n")[2]  # the first line is our own
        if limits and child.returncode and failure.TOO_LARGE.search(heard):
            excess = limits.too_large
        if excess:
            raise ExcessError(f"{what}: ended, because {excess}\n  log: {log}")
        stdout.seek(0)
        output = stdout.read(MOST)
        sink.write(output)
        if child.returncode:
            sink.flush()
            printed = output.decode(errors="replace")
            raise failure.explained(what, heard, printed, log, env=env, status=child.returncode, error=error)
    return output.decode(errors="replace")


@contextlib.contextmanager
def _full_disk_is_named(what: str, log: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise MissingError(failure.no_space(what, log)) from error


def latest_line() -> str:
    """Return what a program of ``run`` wrote last, such as ninja's ``[3/40] Building x.o``; else nothing."""
    found = ""
    newest = 0
    for descriptor in (item for outputs in list(_outputs) for item in outputs):
        with contextlib.suppress(OSError):  # closed by now
            state = os.fstat(descriptor)
            text = os.pread(descriptor, 4096, max(0, state.st_size - 4096)).decode(errors="replace")
            lines = [
                line for line in re.split(r"[\r\n]+", text) if line.strip() and not line.startswith("$ ")
            ]
            if lines and state.st_mtime_ns >= newest:
                newest, found = state.st_mtime_ns, lines[-1]
    return one_line(failure.COLOR.sub(" ", found)).strip()


def succeeds(
    command: Sequence[str | os.PathLike[str]],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str | None:
    """Return what a question such as ``git log -1`` answers, None when it fails or takes long."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [os.fspath(part) for part in command],
            cwd=cwd,
            env=env,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=QUESTION_SECONDS,
        )
        if done.returncode == 0:
            return done.stdout.decode(errors="replace").strip()
    return None


def start(
    command: Sequence[str | os.PathLike[str]],
    *,
    output: Path,
    log: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float,
    what: str,
    limits: Limits | None = None,
) -> Running:
    """Start ``command`` beside others and return it.

    Its standard output goes to ``output``, its standard error to ``log``. After ``timeout`` seconds it is
    killed, once somebody polls it; when it exceeds ``limits``, at once. ``stop_all`` ends it when it is no
    longer wanted.
    """
    arguments = [os.fspath(part) for part in command]
    with output.open("wb") as stdout, log.open("ab") as stderr:
        _write_header(stderr, arguments)
        child = _spawn(arguments, what=what, cwd=cwd, env=env, stdout=stdout, stderr=stderr)
    running = Running(child, log, timeout)
    if limits:
        threading.Thread(target=running.watch, args=[limits], daemon=True).start()
    return running


class Running:
    """A process that runs beside this one."""

    def __init__(self, child: subprocess.Popen[bytes], log: Path, timeout: float) -> None:
        self._child, self._log, self._timeout = child, log, timeout
        self._deadline = time.monotonic() + timeout
        self.excess = ""
        """Why it was ended, where it exceeded its limits."""

    def watch(self, limits: Limits) -> None:
        """Wait for its end, and end it when it exceeds ``limits``."""
        if excess := limits.wait(self._child):
            self.excess = excess
            self._child.kill()  # what a sandbox holds ends with it, faster than it could start more
            _kill_group(self._child)

    def poll(self) -> int | None:
        """Return its exit status, None while it runs; past its time it is killed."""
        child = self._child
        if child.poll() is None and time.monotonic() > self._deadline:
            _kill_group(child)
            with self._log.open("a") as stderr:
                stderr.write(f"killed after {self._timeout:.0f} s\n")
        if child.poll() is not None and child in _running:
            _ended(child)
        return child.returncode

    def terminate(self) -> None:
        """Ask the process itself, not its children, to end (SIGTERM)."""
        self._child.terminate()

    def kill(self) -> None:
        """End the process and all it started."""
        _kill_group(self._child)
        _ended(self._child)


def stop_all() -> None:
    """Kill everything that ``start`` started and that still runs."""
    for child in list(_running):
        _kill_group(child)
        _ended(child)


def end_leftovers(folder: Path) -> None:
    """End what a killed run left working in ``folder``, whose lock is now the caller's.

    Those are this user's processes that work there and have no terminal: all that ``run`` starts have none.
    """
    for _ in range(100):
        left = [number for number in _working_in(folder.resolve()) if number != os.getpid()]
        if not left:
            return
        for number in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.02)


def _working_in(folder: Path) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended by now, or is another user's
            if (entry / "cwd").readlink().is_relative_to(folder):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX" and fields[4] == "0":  # its state and its terminal
                    yield int(entry.name)


_running: set[subprocess.Popen[bytes]] = set()
_outputs: list[tuple[int, int]] = []
"""The descriptors that programs of ``run`` write to now."""


def _write_header(sink: BinaryIO, arguments: list[str]) -> int:
    start = sink.seek(0, os.SEEK_END)
    command = " ".join(shlex.join(arguments).splitlines())  # readers take what follows the line as said
    sink.write(os.fsencode(f"$ {command}\n"))
    sink.flush()
    return start


def _spawn(
    arguments: list[str],
    *,
    what: str,
    cwd: Path | None,
    env: Mapping[str, str] | None,
    stdout: BinaryIO | int,
    stderr: BinaryIO,
) -> subprocess.Popen[bytes]:
    _survivor(os.getpid())  # before there is something to end
    try:
        child = subprocess.Popen(
            arguments,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,  # to be killed as one
        )
    except FileNotFoundError as error:
        raise MissingError(
            f"{what}: {error.filename} is not there (`armbuild doctor` says what to install)"
        ) from error
    except PermissionError as error:
        raise MissingError(f"{what}: {error.filename} may not be executed") from error
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        raise UsageError(f"{what}: its command line or its variables are too long for Linux") from error
    _begun(child)
    return child


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """End the child and all it started: politely first, so that compilers remove what they half wrote."""
    members: set[int] = set()
    for number in (signal.SIGTERM, signal.SIGKILL):
        members |= family.members([child.pid])  # whose parents may be dead the second time
        family.send(members, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=family.PATIENCE)


def _begun(child: subprocess.Popen[bytes]) -> None:
    _running.add(child)
    _tell(f"+{child.pid}")


def _ended(child: subprocess.Popen[bytes]) -> None:
    _running.discard(child)
    _tell(f"-{child.pid}")


def _tell(line: str) -> None:
    """Tell a line to the program that ends our programs when this process is killed (kill -9)."""
    with contextlib.suppress(OSError):  # somebody killed that one, too
        os.write(_survivor(os.getpid()), f"{line}\n".encode())


@functools.cache
def _survivor(_process: int) -> int:
    """Start that program, once in each process, and return the pipe to it. No child gets the pipe's end."""
    reading, writing = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", family.__file__],
        cwd="/",
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(reading)

    def finish() -> None:
        _tell(family.FINISHED)
        os.close(writing)
        child.wait()

    atexit.register(finish)
    return writing
