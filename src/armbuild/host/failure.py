"""Why a program failed: what it said, searched for the reason in bounded time."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from armbuild.errors import MissingError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from armbuild.errors import ArmbuildError

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
    r"(?<![\w:/])(/[^/\s`'\":()][^\s`'\":()]*)(?=[\s`'\":()])[^\n/]*(?:no space left|disk quota)"
    r"|free space in (/\S+[^\s.])",
    re.IGNORECASE,
)
"""What a program could not write, where it says so: it may have a folder of its own.

The lookahead takes a path as a whole, else the time grows with the cube of a line's length."""
TOO_LARGE = re.compile(r"received signal 25\b|file size limit exceeded", re.IGNORECASE)
"""What apt and shells say of a child that wrote a larger file than it may (SIGXFSZ)."""
OFFLINE = re.compile(
    r"request failed after|error sending request|max retries exceeded"
    r"|(?:could not|cannot|failed to) resolve host|name resolution|dns error"
    r"|network is unreachable|connection refused|no route to host|failure resolving|could not connect",
    re.IGNORECASE,
)
"""What downloaders say where there is no network."""
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
FULL = 1 << 20  # bytes free: below this a tool that failed did so for want of space, whatever it says


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
        return _shortened(read_ends(file, 0))


def read_ends(file: BinaryIO, start: int) -> str:
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


def explained(
    what: str,
    heard: str,
    printed: str,
    log: Path,
    *,
    env: Mapping[str, str] | None,
    status: int,
    error: type[ArmbuildError],
) -> ArmbuildError:
    """Return the error of a program that failed, by what it wrote to standard error and to standard output.

    A full disk and hosts that do not answer are a MissingError, all else is an ``error``.
    """
    heard, printed = _shortened(heard), _shortened(printed)
    text = heard + printed
    if NO_SPACE.search(text) or shutil.disk_usage(log.parent).free < FULL:
        return MissingError(no_space(what, log, text, env))
    reason = first_error(text, heard) if text.strip() else _describe(status)
    if (found := UNANSWERED.search(text)) and OFFLINE.search(found[2]):
        cause = found[2].strip().rpartition("\n")[2].partition(": ")[2]
        return MissingError(f"{what} failed: no answer from {found[1]}: {cause}\n  log: {log}")
    if (found := APT_UNANSWERED.search(text)) and OFFLINE.search(found[2]):
        return MissingError(f"{what} failed: no answer from {found[1]}: {found[2][:300]}\n  log: {log}")
    if OFFLINE.search(reason):
        return MissingError(f"{what} failed: no answer from the network: {reason[:400]}\n  log: {log}")
    return error(f"{what} failed: {reason[:400]}\n  log: {log}")


def _describe(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def no_space(what: str, log: Path, text: str = "", env: Mapping[str, str] | None = None) -> str:
    """Return the sentence about a full disk, which names the place that the program could not write."""
    lines = itertools.islice((line for line in text.splitlines() if NO_SPACE.search(line)), 10)
    found = next(filter(None, map(FULL_PLACE.search, lines)), None)
    place = (found[1] or found[2]) if found else _full_folder(log, env)
    return f"{what}: no space left on the device that holds {place} (log: {log})"


def temporary_folder(env: Mapping[str, str] | None = None) -> Path:
    """Return the folder of temporary files, also one that is full: `tempfile.gettempdir` passes over it."""
    return Path((os.environ if env is None else env).get("TMPDIR") or "/tmp")  # noqa: S108


def _full_folder(log: Path, env: Mapping[str, str] | None) -> Path:
    """Return the folder of a program's temporary files if that alone is full, else the one of its log."""
    full = [
        folder
        for folder in (log.parent, temporary_folder(env))
        if folder.is_dir() and shutil.disk_usage(folder).free < FULL
    ]
    return full[0] if full else log.parent
