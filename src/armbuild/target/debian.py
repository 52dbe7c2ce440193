"""Packages from the Debian archive this machine already uses, without root rights.

Any suite and architecture: ``apt-get`` runs with a private configuration and only downloads; packages are
unpacked as plain archives, so no maintainer script runs and the host's own package state stays untouched.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from armbuild.errors import ExcessError, MissingError, UsageError, packages_of
from armbuild.host import cache, failure, limits, process
from armbuild.target import deb_files

if TYPE_CHECKING:
    from collections.abc import Iterator

SUITES = frozenset(
    {
        "bullseye",
        "bookworm",
        "trixie",
        "forky",
        "duke",
        "sid",
        "oldoldstable",
        "oldstable",
        "stable",
        "testing",
        "unstable",
    }
)
GLIBC = {"bullseye": "2.31", "bookworm": "2.36", "trixie": "2.41"}
"""Releases whose packages go into images, and their C library: the newest that wheels made there need."""
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
OWN_KEYRING = Path(__file__).parents[1] / "data/debian-archive-keyring.gpg"
"""The keys of bullseye to trixie, as Debian's package debian-archive-keyring has them: Ubuntu lacks them."""
OWN_KEYS = "armbuild"
"""In place of a keyring's path, the keys of OWN_KEYRING: its path is another in each environment."""
PUBLIC = "http://deb.debian.org/debian"
"""Debian's own address of its archive (https://deb.debian.org), where this machine names none."""
SECURITY = "-security"
"""How the suites with a release's security updates end; they build on the release itself."""
HELPER = Path("/usr/lib/apt/apt-helper")
LISTS_FRESH_SECONDS = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A Debian package archive: its address and what its signature is checked with."""

    uri: str
    signed_by: str = ""
    """A keyring's path or the key itself; empty: the keys that apt trusts on this machine."""
    trusted: bool = False
    """The host's own entry says ``trusted=yes``: its signature is not checked."""


def check_address(mirror: str) -> None:
    """Raise UsageError for an address that apt cannot read."""
    if not re.match(r"(?:https?|mirror|mirror\+https?)://[^/\s]\S*$|(?:mirror\+)?file:/\S+$", mirror):
        raise UsageError(
            f"--mirror {mirror}: not an address of a Debian archive, such as http://archive.example/debian"
        )


def archive(mirror: str | None = None) -> Archive:
    """Return the archive named by ``mirror``, ARMBUILD_MIRROR or the host's apt sources, else Debian's own.

    Raises MissingError when apt is not there, UsageError for an address apt cannot read.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise MissingError(
                f"{tool} is not there: Debian packages are read with apt and dpkg, on Debian, Ubuntu or in a "
                "container of either; here install both (`dnf install apt dpkg`, `pacman -S apt dpkg`, ...)"
            )
    return _find(mirror)


def ask(source: Archive, suite: str = "trixie") -> str:
    """Return why the archive does not answer a question for a release, empty when it does.

    apt itself asks, with the proxies and certificates that it is configured with.
    """
    with cache.work_folder("ask") as work:
        address = f"{source.uri.rstrip('/')}/dists/{suite}/InRelease"
        command = [str(HELPER), "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=20"]
        try:
            process.run(
                [*command, "download-file", address, str(work / "InRelease")],
                log=work / "ask.log",
                what=address,
                error=MissingError,
                limits=limits.DOWNLOAD,
            )
        except MissingError as error:
            cause = re.search(r"(?m)^Err:.*\n\s+(.*\S)", failure.read_log(work / "ask.log"))
            return f"{address}: {cause[1]}" if cause else str(error).splitlines()[0]
    return ""


def cache_folder(part: str, name: str, mirror: str | None = None) -> Path:
    """Return where a part of the cache has what came from the archive: another archive, another folder.

    It needs neither apt nor the archive itself, so that what is there already serves without them.
    """
    return cache.root() / part / f"{name}-{cache.digest(vars(_find(mirror)))}"


def _find(mirror: str | None) -> Archive:
    named = mirror or os.environ.get("ARMBUILD_MIRROR")
    found = _stated(SUITES)
    if not named:
        return found[0] if found else Archive(uri=PUBLIC, signed_by=OWN_KEYS)
    check_address(named)
    same = next((entry for entry in found if entry.uri.rstrip("/") == named.rstrip("/")), None)
    return same or Archive(uri=named, signed_by=str(KEYRING) if KEYRING.is_file() else OWN_KEYS)


def _stated(suites: frozenset[str]) -> list[Archive]:
    """Return the archives of ``suites`` that this machine's apt sources name."""
    return [
        entry
        for path in _source_files()
        for entry in parse_sources(path.read_text(errors="replace"), path.suffix, suites)
    ]


def security_address(source: Archive) -> str:
    """Return where an archive's security updates are: as this machine's sources say, else beside it."""
    if any(source.uri == entry.uri for entry in _stated(SUITES)):
        stated = _stated(frozenset(f"{suite}{SECURITY}" for suite in SUITES))
        return stated[0].uri if stated else f"{PUBLIC}{SECURITY}"
    return f"{source.uri.rstrip('/')}{SECURITY}"


def parse_sources(text: str, suffix: str, wanted: frozenset[str] = SUITES) -> list[Archive]:
    """Return the archives of ``wanted`` suites that a ``.list`` or ``.sources`` (deb822) file names."""
    entries = _parse_deb822(text) if suffix == ".sources" else _parse_one_line(text)
    return [
        Archive(uri=uri, signed_by=options.get("signed-by", ""), trusted=options.get("trusted") == "yes")
        for uri, suites, components, options in entries
        if "main" in components and wanted.intersection(suites) and not uri.startswith("cdrom:")
    ]


Entry = tuple[str, list[str], list[str], dict[str, str]]


def _parse_one_line(text: str) -> list[Entry]:
    entries: list[Entry] = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)\s+([^#]+)", line)
        if match:
            options = dict(option.split("=", 1) for option in (match[1] or "").split() if "=" in option)
            entries.append((match[2], [match[3]], match[4].split(), options))
    return entries


def _parse_deb822(text: str) -> list[Entry]:
    with packages_of("build"):
        from debian.deb822 import Deb822  # noqa: PLC0415 - an audit does without this extra

    entries: list[Entry] = []
    for stanza in Deb822.iter_paragraphs(text):
        enabled = stanza.get("Enabled", "yes").lower() not in ("no", "false", "0")
        if enabled and "deb" in stanza.get("Types", "").split():
            options = {name: stanza[name] for name in ("signed-by", "trusted") if name in stanza}
            suites, components = stanza.get("Suites", "").split(), stanza.get("Components", "").split()
            entries += [(uri, suites, components, options) for uri in stanza.get("URIs", "").split()]
    return entries


def _source_files() -> list[Path]:
    folder = Path("/etc/apt/sources.list.d")
    parts = sorted(folder.iterdir()) if folder.is_dir() else []
    files = [Path("/etc/apt/sources.list"), *(part for part in parts if part.suffix in (".list", ".sources"))]
    return [file for file in files if file.is_file() and os.access(file, os.R_OK)]


def download(
    packages: tuple[str, ...],
    *,
    suite: str,
    architecture: str,
    source: Archive,
    into: Path,
    dependencies: bool,
    log: Path,
) -> list[Path]:
    """Download ``packages`` of ``suite``, with all they depend on if asked, and return the .deb files.

    Raises MissingError when the archive cannot be reached, does not hold the suite or lacks a package.
    """
    with _lists(suite, architecture, source, log) as (apt, command, what):
        archives = apt / "archives"
        shutil.rmtree(archives, ignore_errors=True)
        (archives / "partial").mkdir(parents=True)
        install = ["install", "--download-only", "--no-install-recommends", "--yes", *packages]
        ask = install if dependencies else ["download", *packages]
        try:
            _apt([*command, *ask], what, log, cwd=archives)
        except ExcessError:
            raise
        except MissingError:  # the lists name files that have been replaced since: read them again, once
            _update(apt, command, what, log)
            _apt([*command, *ask], what, log, cwd=archives)
        files = sorted(archives.glob("*.deb"))
        if not files:
            raise MissingError(f"{what}: nothing was downloaded for {', '.join(packages)} (log: {log})")
        return [Path(shutil.move(file, into / file.name)) for file in files]


def state(*, suite: str, architecture: str, source: Archive, log: Path) -> str:
    """Return a digest of the archive's package lists, which are read again each day."""
    with _lists(suite, architecture, source, log) as (apt, _, _):
        seen = hashlib.sha256()
        for path in sorted((apt / "lists").iterdir()):
            if path.is_file() and path.name != "lock":
                seen.update(f"{path.name}\0".encode() + path.read_bytes())
        return seen.hexdigest()


@contextlib.contextmanager
def _lists(
    suite: str, architecture: str, source: Archive, log: Path
) -> Iterator[tuple[Path, list[str], str]]:
    """Hold the private apt folder of a suite with fresh lists: (folder, command, what to call it)."""
    apt = cache.root() / "apt" / f"{suite}-{architecture}-{cache.digest(vars(source))}"
    what = f"Debian {suite} ({architecture}) from {source.uri}"
    with cache.lock(apt):
        command = [*_configure(apt, suite, architecture, source), "-qq"]
        stamp = apt / "updated"
        if not stamp.exists() or time.time() - stamp.stat().st_mtime > LISTS_FRESH_SECONDS:
            _update(apt, command, what, log)
        yield apt, command, what


def _update(apt: Path, command: list[str], what: str, log: Path) -> None:
    stamp = apt / "updated"
    stamp.unlink(missing_ok=True)
    _apt([*command, "update", "--error-on=any"], what, log)
    stamp.touch()


def _apt(command: list[str], what: str, log: Path, cwd: Path | None = None) -> None:
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    process.run(
        command, log=log, what=what, env=environment, cwd=cwd, error=MissingError, limits=limits.DOWNLOAD
    )


def _configure(apt: Path, suite: str, architecture: str, source: Archive) -> list[str]:
    """Write our own configuration; return the apt-get that reads it after the host's (proxies stay)."""
    for name in ("lists/partial", "archives/partial", "empty"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    options = [f"arch={architecture}"]
    if source.trusted:
        options.append("trusted=yes")
    if source.signed_by == OWN_KEYS:
        key = Path(shutil.copyfile(OWN_KEYRING, apt / "key.gpg"))
        options.append(f"signed-by={key}")
    elif source.signed_by.startswith("/"):
        options.append(f"signed-by={source.signed_by}")
    elif source.signed_by:  # the key itself, as deb822 allows: blank lines are written as a dot
        key = apt / "key.asc"
        lines = (line.strip() for line in source.signed_by.splitlines())
        key.write_text("\n".join("" if line == "." else line for line in lines) + "\n")
        options.append(f"signed-by={key}")
    places = {suite.removesuffix(SECURITY): source.uri}
    if suite.endswith(SECURITY):
        places[suite] = security_address(source)
    entries = (f"deb [{' '.join(options)}] {uri} {name} main\n" for name, uri in places.items())
    (apt / "sources.list").write_text("".join(entries))
    settings = {
        "APT::Architecture": architecture,
        "APT::Sandbox::User": "root",  # as root, apt would else read our private folder as the user _apt
        "Dir::State": apt,
        "Dir::State::Lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt,
        "Dir::Cache::archives": apt / "archives",
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": apt / "empty",
        "Dir::Etc::preferences": apt / "empty/none",
        "Dir::Etc::preferencesparts": apt / "empty",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Debug::NoLocking": "true",
    }
    text = "".join(f'{name} "{value}";\n' for name, value in settings.items())
    for name in (
        "APT::Architectures",
        "APT::Update",
        "DPkg::Post-Invoke",
        "DPkg::Pre-Install-Pkgs",
        "DPkg::Pre-Invoke",
    ):
        text += f"#clear {name};\n"
    text += f'APT::Architectures {{ "{architecture}"; }};\n'
    (apt / "apt.conf").write_text(text)
    return ["apt-get", "-c", str(apt / "apt.conf")]


def install(
    packages: tuple[str, ...],
    root: Path,
    *,
    suite: str,
    architecture: str = "arm64",
    mirror: str | None = None,
    dependencies: bool = True,
    skip: re.Pattern[str] | None = None,
    only: frozenset[str] = frozenset(),
) -> None:
    """Download ``packages`` of ``suite`` and unpack them into ``root``.

    Packages whose file name matches ``skip`` are left out; ``only`` is as for
    ``deb_files.unpack``. Raises MissingError and BuildError as ``download`` and ``unpack`` do.
    """
    with cache.work_folder("debian") as work:
        files = download(
            packages,
            suite=suite,
            architecture=architecture,
            source=archive(mirror),
            into=work,
            dependencies=dependencies,
            log=work / "apt.log",
        )
        deb_files.unpack([file for file in files if not (skip and skip.match(file.name))], root, only=only)
