"""Start the program of a step: quiet on success, its first error and its log on failure."""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from armbuild.errors import ArmbuildError, BuildError, ExcessError, MissingError, UsageError, one_line
from armbuild.host import family

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from armbuild.host.limits import Limits

COMPILER_ERROR = re.compile(
    r"(?:^|[\s:])(?:(?:fatal|internal compiler) )?error(?:\[[\w-]+\])?: ", re.IGNORECASE
)
LINKER_ERROR = re.compile(
    r"undefined (?:reference|symbol)|cannot find -l|unable to find .*library", re.IGNORECASE
)
CMAKE_ERROR = re.compile(r"^CMake Error\b")
EXCEPTION = re.compile(
    r"^(?:  )?(?:[A-Za-z_][\w.]*\.)?\w*(?:Error|Exception|Failed|Exit|Warning|Interrupt)\b(?!\()"
)
SUMMARY = re.compile(
    r"\berror: (?:command|subprocess|metadata-generation|the following arguments|failed building wheel"
    r"|failed to build (?:one|installable))\b|^failed to build \S",
    re.IGNORECASE,
)
"""What front ends say after the reason."""
UNSOLVABLE = re.compile(r"(?m)^[ \t]*(?:cause: )?(Because .*)$")
"""What uv says below "No solution found"."""
NO_SPACE = re.compile(
    r"no space left on device|\bNoSpaceLeft\b|disk quota exceeded|have enough free space in", re.IGNORECASE
)
FULL_PLACE = re.compile(
    r"(?<![\w:/])(/[^/\s`'\":()][^\s`'\":()]*)[^\n/]*(?:no space left|disk quota)|free space in (/\S+[^\s.])",
    re.IGNORECASE,
)
"""What a program could not write, where it says so: it may have a folder of its own."""
TOO_LARGE = re.compile(r"received signal 25\b|file size limit exceeded", re.IGNORECASE)
"""What apt and shells say of a child that wrote a larger file than it may (SIGXFSZ)."""
OFFLINE = re.compile(
    r"request failed after|error sending request|max retries exceeded"
    r"|(?:could not|cannot|failed to) resolve host|name resolution|dns error"
    r"|network is unreachable|connection refused|no route to host|failure resolving|could not connect",
    re.IGNORECASE,
)
"""What downloaders say where there is no network."""
GIT = (
    "env", "GIT_ALLOW_PROTOCOL=none", "git", "--no-optional-locks", "-c", "core.fsmonitor=false",
    "-c", "core.hooksPath=/dev/null", "-c", "log.showSignature=false",
)  # fmt: skip
"""How git is asked about a project: settings of a repository may name programs, for fetching too."""
UNANSWERED = re.compile(
    r"(?i)failed to (?:fetch:|download) `?(?:\w+://)?([^/\s`]+)(?:[/`]\S*)?\n"
    r"((?:\s*(?:cause|caused by): .*\n?)+)"
)
"""What uv says of a host, and below it why, the last reason in the end."""
APT_UNANSWERED = re.compile(r"(?m)^[EW]: Failed to fetch \w+://([^/\s]+)(?:/\S*)?[ \t]+(\S.*)")
"""What apt says of a host, and why."""
COLOR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
LONGEST_LINE = 2000
"""Characters of a line that are searched: the time grows with their square for some patterns."""
MOST_SEARCHED = 8 << 20
"""Bytes of a failed program's output that are searched: half at its beginning, half at its end."""
QUESTION_SECONDS = 120.0
MOST = 64 << 20
"""The most bytes that are read of a program's standard output, which may have no end."""
FULL = 1 << 20  # bytes free: below this a tool that failed did so for want of space, whatever it says


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
        heard = _read_ends(sink, start).partition("\n")[2]  # the first line is our own
        if limits and child.returncode and TOO_LARGE.search(heard):
            excess = limits.too_large
        if excess:
            raise ExcessError(f"{what}: ended, because {excess}\n  log: {log}")
        stdout.seek(0)
        output = stdout.read(MOST)
        sink.write(output)
        if child.returncode:
            sink.flush()
            printed = output.decode(errors="replace")
            _fail(what, heard, printed, log, env=env, status=child.returncode, error=error)
    return output.decode(errors="replace")


@contextlib.contextmanager
def _full_disk_is_named(what: str, log: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise MissingError(_no_space(what, log)) from error


def _no_space(what: str, log: Path, text: str = "", env: Mapping[str, str] | None = None) -> str:
    lines = itertools.islice((line for line in text.splitlines() if NO_SPACE.search(line)), 10)
    found = next(filter(None, map(FULL_PLACE.search, lines)), None)
    place = (found[1] or found[2]) if found else _full_folder(log, env)
    return f"{what}: no space left on the device that holds {place} (log: {log})"


def _full_folder(log: Path, env: Mapping[str, str] | None) -> Path:
    """Return the folder of a program's temporary files if that alone is full, else the one of its log."""
    temporary = Path((os.environ if env is None else env).get("TMPDIR") or tempfile.gettempdir())
    full = [
        folder
        for folder in (log.parent, temporary)
        if folder.is_dir() and shutil.disk_usage(folder).free < FULL
    ]
    return full[0] if full else log.parent


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
    return one_line(COLOR.sub(" ", found)).strip()


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


def first_error(text: str, heard: str = "") -> str:
    """Return the line of a build's output that says why it failed.

    Where none stands out it is the last one, of standard error where that is given as ``heard``.
    """
    if "No solution found" in text and (found := UNSOLVABLE.search(text)):
        return found[1]
    # "level=warning" is how container engines say that they try again.
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and "level=warning" not in line]
    for index, line in enumerate(lines):
        if CMAKE_ERROR.match(line):
            return _with_cmake_reason(line, lines[index + 1 :])
        if (COMPILER_ERROR.search(line) or LINKER_ERROR.search(line)) and not SUMMARY.search(line):
            return line.strip()
    for line in reversed(lines):
        if EXCEPTION.match(line) and not SUMMARY.search(line):
            return line.strip()
    for line in lines:
        if SUMMARY.search(line):
            return line.strip()
    last = heard.split("\n") if heard.strip() else lines
    return next((line.strip() for line in reversed(last) if line.strip()), "it said nothing")


def _with_cmake_reason(line: str, following: list[str]) -> str:
    """CMake writes the reason, indented and in short lines, below the line that says where."""
    below = itertools.dropwhile(lambda text: not text.startswith("  "), following)
    reason = [text.strip() for text in itertools.takewhile(lambda text: text.startswith("  "), below)]
    return f"{line.rstrip(':')}: {' '.join(reason[:3])}" if reason else line


def read_log(log: Path) -> str:
    """Return what of a log is searched for a reason, however much a program wrote."""
    with log.open("rb") as file:
        return _shortened(_read_ends(file, 0))


def _read_ends(file: BinaryIO, start: int) -> str:
    """Return what follows ``start``; of what is long, the beginning and the end."""
    half = MOST_SEARCHED // 2
    size = file.seek(0, os.SEEK_END)
    file.seek(start)
    found = file.read(half)
    file.seek(max(start + len(found), size - half))
    return (found + file.read(half)).decode(errors="replace")


def _shortened(text: str) -> str:
    """Return a text without colors, of which the middle is left out where it, or a line, is long."""
    text = COLOR.sub("", _ends(text, MOST_SEARCHED))
    return "".join(_ends(line, LONGEST_LINE) for line in text.splitlines(keepends=True))


def _ends(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most // 2] + text[-most // 2 :]


def _fail(
    what: str,
    heard: str,
    printed: str,
    log: Path,
    *,
    env: Mapping[str, str] | None,
    status: int,
    error: type[ArmbuildError],
) -> NoReturn:
    heard, printed = _shortened(heard), _shortened(printed)
    text = heard + printed
    if NO_SPACE.search(text) or shutil.disk_usage(log.parent).free < FULL:
        raise MissingError(_no_space(what, log, text, env))
    reason = first_error(text, heard) if text.strip() else _describe(status)
    if (found := UNANSWERED.search(text)) and OFFLINE.search(found[2]):
        cause = found[2].strip().rpartition("\n")[2].partition(": ")[2]
        raise MissingError(f"{what} failed: no answer from {found[1]}: {cause}\n  log: {log}")
    if (found := APT_UNANSWERED.search(text)) and OFFLINE.search(found[2]):
        raise MissingError(f"{what} failed: no answer from {found[1]}: {found[2][:300]}\n  log: {log}")
    if OFFLINE.search(reason):
        raise MissingError(f"{what} failed: no answer from the network: {reason[:400]}\n  log: {log}")
    raise error(f"{what} failed: {reason[:400]}\n  log: {log}")


def _describe(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


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
