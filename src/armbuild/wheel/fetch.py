"""The folder of a project: a source tree, an unpacked sdist file, or a requirement's sdist."""

from __future__ import annotations

import os
import re
import sys
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement

from armbuild.artifact import archives
from armbuild.errors import CheckFailed, MissingError, UsageError, one_line
from armbuild.host import cache, download, failure, limits, process, pythons

if TYPE_CHECKING:
    from collections.abc import Sequence

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SDIST = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
PLATFORM = "aarch64-manylinux_2_28"
_LONGEST = 255
"""Bytes of a file's name that Linux takes."""
_MOST_FILES = 60_000
"""Files and folders of an sdist, with those that paths imply. Each takes longer to make than to read."""
LATEST = 4354732800
"""The first of January 2108, to which the dates of a zip archive do not reach."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the sources of an sdist came from."""

    uri: str
    """The address it was downloaded from, or its file name."""
    sha256: str
    epoch: int
    """When its newest file was written, in seconds since 1970: the SOURCE_DATE_EPOCH of its wheels."""


@dataclass(frozen=True, kw_only=True)
class Located:
    """A project's folder, and its sdist when it came as one."""

    folder: Path
    origin: Origin | None = None


def locate(text: str, *, python: str | None = None, hashes: Sequence[str] = ()) -> Located:
    """Return the sources that ``text`` names: a folder, an sdist file, an address, or a requirement.

    A requirement is resolved by uv, with the user's own index settings, for Python ``python`` ("3.11"); its
    sdist must match the hash that the index states and one of ``hashes`` ("sha256:HEX") where these are
    given. Raises UsageError for what names nothing or does not match, MissingError for an index that does
    not answer.
    """
    wanted = [_checked_hash(item) for item in hashes]
    path = Path(text)
    if path.is_dir():
        if wanted:
            raise UsageError(f"--hash: {text} is a folder; only an sdist has a hash")
        return Located(folder=path)
    if path.is_file():
        return _unpacked(path, path.name, wanted)
    if re.match(r"(?:https?|file)://", text):
        address, _, fragment = text.partition("#")
        stated = re.search(r"sha256=([0-9a-fA-F]{64})", fragment)
        return _downloaded(address, stated[1].lower() if stated else None, wanted)
    if _looks_like_a_path(text):
        raise UsageError(f"{text}: no such folder or file")
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise UsageError(
            f"{text}: neither a folder, nor an sdist, nor a requirement ({str(error).splitlines()[0]})"
        ) from error
    if requirement.url:
        return locate(requirement.url, hashes=hashes)
    return _resolved(requirement, python or pythons.number(pythons.running()), wanted)


def _checked_hash(text: str) -> str:
    match = re.fullmatch(r"(?:sha256[:=])?([0-9a-fA-F]{64})", text)
    if match is None:
        raise UsageError(f"--hash {text}: not sha256: and 64 hexadecimal digits")
    return match[1].lower()


def _looks_like_a_path(text: str) -> bool:
    return (
        text.startswith((".", "/", "~")) or text.endswith((*SDIST, ".whl")) or "/" in text.partition("@")[0]
    )


def _resolved(requirement: Requirement, python: str, wanted: list[str]) -> Located:
    """Ask uv which file it would take. It reads metadata only; nothing of the project runs."""
    from armbuild.host import isolation  # noqa: PLC0415 - a folder needs no installer

    with cache.work_folder("resolve") as work:
        (work / "wanted.in").write_text(f"{requirement}\n")
        lock = work / "pylock.toml"
        try:
            process.run(
                [
                    isolation.uv_program(),
                    "pip",
                    "compile",
                    "-q",
                    "--no-deps",
                    "--python-version",
                    python,
                    "--python-platform",
                    PLATFORM,
                    "--format",
                    "pylock.toml",
                    "-o",
                    lock,
                    work / "wanted.in",
                ],
                log=work / "resolve.log",
                what=f"resolving {requirement}",
                env=isolation.clean(),
                error=MissingError,
                limits=limits.DOWNLOAD,
            )
        except MissingError as error:
            raise _unresolved(requirement, failure.read_log(work / "resolve.log")) or error from error
        packages: list[dict[str, Any]] = tomllib.loads(lock.read_text()).get("packages", [])
    if not packages:
        raise UsageError(f"{requirement}: its marker is false for Python {python} on AArch64 Linux")
    package = packages[0]
    sdist = package.get("sdist")
    if not sdist:
        raise UsageError(
            f"{requirement}: {package['name']} {package.get('version', '')} has no sdist on the index: "
            "ask for a version that has one, or give the project's folder"
        )
    where = sdist.get("url") or Path(sdist["path"]).absolute().as_uri()
    return _downloaded(where, sdist.get("hashes", {}).get("sha256"), wanted)


def _unresolved(requirement: Requirement, log: str) -> MissingError | None:
    """What uv says about a requirement that no file fulfils, which it wraps at the terminal's width."""
    cause = re.search(r"\bBecause .*?(?=,\s+we\s+can\s+conclude|\Z)", log, re.DOTALL)
    if cause is None:
        return None
    found = " ".join(cause[0].split())
    if "was not found in the package registry" in found:
        folder = "no such folder or file here, and " if str(requirement) == requirement.name else ""
        return MissingError(f"{requirement}: {folder}no such project on the package index")
    return MissingError(f"{requirement}: {found:.1000}")


def _downloaded(address: str, stated: str | None, wanted: list[str]) -> Located:
    try:
        name = urllib.parse.unquote(urllib.parse.urlsplit(address).path.rpartition("/")[2])
    except ValueError as error:
        raise UsageError(f"{address}: not an address ({error})") from error
    if not name.endswith(SDIST) or "/" in name or one_line(name) != name or len(os.fsencode(name)) > _LONGEST:
        raise UsageError(f"{name or address}: not an sdist's file name ({', '.join(SDIST)})")
    with cache.scratch_folder("download", cache.root() / "work") as work:
        download.fetch(address, file := work / name)
        return _unpacked(file, address, wanted, stated)


def _unpacked(file: Path, uri: str, wanted: list[str], stated: str | None = None) -> Located:
    """Unpack an sdist into the cache, under its own hash."""
    if not file.name.endswith(SDIST):
        raise UsageError(f"{file.name}: not an sdist ({', '.join(SDIST)})")
    digest = cache.sha256(file)
    for what, expected in (("the index states", [stated] if stated else []), ("--hash asks for", wanted)):
        if expected and digest not in expected:
            raise UsageError(
                f"{file.name}: its sha256 is {digest}, {what} {' or '.join(expected)}: not the file meant"
            )
    folder = cache.fill(cache.root() / "sdists" / digest[:24], lambda empty: _unpack(file, empty))
    (inside,) = [entry for entry in folder.iterdir() if entry.is_dir()]
    times = (int(entry.stat().st_mtime) for entry in archives.walk(inside))
    epoch = min(max(times, default=0), LATEST)
    return Located(folder=inside, origin=Origin(uri=uri, sha256=digest, epoch=epoch))


def _unpack(file: Path, folder: Path) -> None:
    unpack = archives.unpack_zip if file.name.endswith(".zip") else archives.unpack_tar
    try:
        unpack(file, folder, _MOST_FILES)
    except (*archives.BROKEN, CheckFailed) as error:
        if isinstance(error, OSError) and error.errno in archives.OF_THIS_MACHINE:
            raise
        reason = str(error).partition("\n")[0].rstrip(":")
        raise UsageError(f"{file.name}: damaged, or not an sdist ({reason})") from error
    entries = list(folder.iterdir())
    if len(entries) != 1 or not entries[0].is_dir():
        raise UsageError(f"{file.name}: not an sdist: it must hold one folder, NAME-VERSION")
    if not any((entries[0] / name).is_file() for name in ("pyproject.toml", "setup.py")):
        raise UsageError(f"{file.name}: not an sdist: it has neither pyproject.toml nor setup.py")
