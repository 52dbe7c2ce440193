"""What a wheel file says about itself, read without installing it: names, tags, metadata, machine code."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import TYPE_CHECKING, Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from armbuild.artifact import archives, variant
from armbuild.errors import UsageError, one_line
from armisa.host import ELF_MACHINES

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterable, Iterator
    from mmap import mmap
    from pathlib import Path

    from packaging.tags import Tag

EXTENSION = re.compile(
    r"\.(?:(?:cpython-(?P<digits>\d+t?)|(?P<stable>abi3t?))(?:-(?P<triplet>[^.]+))?|pypy\d+-[^.]+)\.so$"
)
_MODULE = re.compile(
    r"(?:[^/]+\.data/(?:plat|pure)lib/)?(?P<module>\w+(?:/\w+)*)(?:\.(?:cpython-|abi3)[^./]*)?\.so"
)
STABLE_ABIS = frozenset({"abi3", "abi3t"})
"""Python's stable ABIs, with and without the global lock (PEP 384, PEP 803)."""
TRIPLETS = ("aarch64-linux-gnu", "aarch64-linux-musl")
_GNU_FOR_MUSL = ("36", "37", "38", "39", "310")
"""Pythons that name their extensions for GNU's C library where they have musl."""

_LONGEST = 1000
"""Characters of a name or a version that are looked at: no file name is as long."""


def needed_glibc(name: str) -> Version | None:
    """Return the glibc that a wheel of this name needs by its tags (PEP 600), None where they name none."""
    needed = re.findall(r"manylinux_(\d+)_(\d+)_", name)
    return min((Version(f"{major}.{minor}") for major, minor in needed), default=None)


@dataclass(frozen=True, kw_only=True)
class FileName:
    """The parts of a wheel's file name."""

    name: str
    """Normalized."""
    version: Version
    tags: frozenset[Tag]
    variant: str | None
    """The label of a wheel variant."""
    tag: str
    """Python, ABI and platforms as the name has them."""

    @property
    def machines(self) -> frozenset[str]:
        """The machine types of the platform tags; empty for a wheel that runs anywhere."""
        return frozenset(machine for tag in self.tags if (machine := machine_of(tag.platform)))


def parse_name(name: str) -> FileName:
    """Return the parts of a wheel's file name; raises UsageError that says what is wrong with it."""
    plain, label = variant.split(name)
    try:
        project, version, _, tags = parse_wheel_filename(plain)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise UsageError(f"not a wheel's file name: {error}") from error
    tag = "-".join(plain.removesuffix(".whl").split("-")[-3:])
    return FileName(name=project, version=version, tags=tags, variant=label, tag=tag)


def machine_of(platform: str) -> str | None:
    """Return the machine of a platform tag (``manylinux_2_28_aarch64``: aarch64), None for ``any``."""
    if platform == "any":
        return None
    match = re.fullmatch(
        r"(?:manylinux\w*?|musllinux_\d+_\d+|linux)_(aarch64|x86_64|i686|armv7l|ppc64le|s390x|riscv64|loongarch64)",
        platform,
    )
    return match[1] if match else platform


def renamings(named: FileName, metadata: str, declared: str) -> list[str]:
    """Return where METADATA and WHEEL contradict the file's name."""
    found = []
    headers = HeaderParser().parsestr(metadata)
    name, version = headers.get("Name", ""), headers.get("Version", "")
    if canonicalize_name(name[:_LONGEST]) != named.name:
        found.append(f"renamed: the file name says {named.name}, METADATA says {_shown(name)}")
    try:
        same = Version(version[:_LONGEST]) == named.version
    except ValueError:  # also where a number has too many digits
        same = False
    if not same:
        found.append(f"renamed: the file name says version {named.version}, METADATA says {_shown(version)}")
    tags = set(HeaderParser().parsestr(declared).get_all("Tag", []))
    expected = {str(tag) for tag in named.tags}
    if tags != expected:
        listed, stated = (", ".join(sorted(items)) for items in (expected, tags))
        found.append(f"renamed: the file name's tags ({listed}) are not those of WHEEL ({_shown(stated)})")
    return found


def _shown(text: str) -> str:
    return one_line(text)[:200] or "nothing"


@dataclass(frozen=True, kw_only=True)
class WheelFile:
    """A readable wheel."""

    path: Path
    name: str
    """Normalized."""
    version: str
    pythons: frozenset[str]
    """Interpreter tags, such as "cp311"."""
    abis: frozenset[str]
    platforms: frozenset[str]
    requires: tuple[str, ...]
    """``Requires-Dist`` lines."""
    variant: dict[str, Any] | None = None
    """What ``variant.json`` says in a wheel variant."""

    @property
    def python(self) -> str | None:
        """Return "3.11" ("3.14t") for a wheel of that CPython alone, None for one that serves several."""
        digits = [tag[3:] for tag in self.pythons if re.fullmatch(r"cp3\d+", tag)]
        free = "t" if self.is_free_threaded else ""
        return f"3.{digits[0]}{free}" if len(digits) == 1 and not self.is_stable_abi else None

    @property
    def is_free_threaded(self) -> bool:
        """Whether the wheel is only for CPythons without the global lock (PEP 703, PEP 803)."""
        return all(re.fullmatch(r"cp3\d+t|abi3t", tag) for tag in self.abis)

    @property
    def is_stable_abi(self) -> bool:
        """Whether the wheel keeps to a stable ABI (abi3, abi3t), and so serves later Pythons too."""
        return not STABLE_ABIS.isdisjoint(self.abis)

    def serves(self, version: str) -> bool:
        """Return whether CPython ``version`` ("3.11", "3.14t") may install it on AArch64."""
        free = version.endswith("t")
        if self.abis != {"none"} and all(abi.endswith("t") != free for abi in self.abis):
            return False
        minor = int(version.partition(".")[2].removesuffix("t"))
        stable = ("abi3t" if free else "abi3") in self.abis
        return any(
            tag in ("py3", f"py3{minor}", f"cp3{minor}")
            or (stable and re.fullmatch(r"cp3\d+", tag) and int(tag[3:]) <= minor)
            or (self.abis == {"none"} and re.fullmatch(r"(?:py|cp)3\d+", tag) and int(tag[3:]) <= minor)
            for tag in self.pythons
        )

    @property
    def is_musl(self) -> bool:
        """Whether the wheel is for systems with musl (PEP 656)."""
        return any(tag.startswith("musllinux") for tag in self.platforms)

    @property
    def is_pure(self) -> bool:
        """Whether the wheel claims to run on every machine."""
        return self.platforms == {"any"}

    @property
    def runs_on_aarch64(self) -> bool:
        """Whether the wheel claims to run on AArch64 Linux."""
        return any(
            tag == "any" or re.fullmatch(r"(?:many|musl)?linux.*_aarch64", tag) for tag in self.platforms
        )


def read(path: Path) -> WheelFile:
    """Read a wheel's name and metadata; raises UsageError for whatever is no intact wheel, in one line."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    try:
        named = parse_name(path.name)
    except UsageError as error:
        raise UsageError(f"{path.name}: {error} (NAME-VERSION-PYTHON-ABI-PLATFORM.whl)") from error
    try:
        with archives.open_zip(path) as archive:
            damaged = archive.testzip()
            if damaged:
                raise UsageError(f"{path.name}: damaged: {damaged} does not match its checksum")
            members = archive.namelist()
            folders = {member.split("/")[0] for member in members if re.match(r"[^/]+\.dist-info/", member)}
            if len(folders) != 1:
                raise UsageError(f"{path.name}: not a wheel: it has {len(folders)} .dist-info folders")
            folder = folders.pop()
            metadata = _text(archive, f"{folder}/METADATA", path)
            declared = _text(archive, f"{folder}/WHEEL", path)
            special = f"{folder}/{variant.MEMBER}"
            properties = archives.read_text(archive, special) if special in members else None
    except archives.BROKEN as error:
        raise UsageError(f"{path.name}: truncated or not a zip archive ({error})") from error
    try:
        described = variant.stated(properties, named.variant)
    except UsageError as error:
        raise UsageError(f"{path.name}: {error}") from error
    for problem in renamings(named, metadata, declared):
        raise UsageError(f"{path.name}: {problem}")
    return WheelFile(
        path=path,
        name=named.name,
        version=str(named.version),
        pythons=frozenset(tag.interpreter for tag in named.tags),
        abis=frozenset(tag.abi for tag in named.tags),
        platforms=frozenset(tag.platform for tag in named.tags),
        requires=tuple(HeaderParser().parsestr(metadata).get_all("Requires-Dist", [])),
        variant=described,
    )


def machine_code(path: Path) -> Iterator[tuple[str, str]]:
    """Give (name, machine) of every ELF file in a wheel, also of those inside static libraries."""
    with archives.open_zip(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                head = file.read(20)
                if head.startswith(b"\x7fELF"):
                    yield member.filename, elf_machine(head)
                elif head.startswith(b"!<arch>\n"):
                    for name, machine in library_code(head + file.read()):
                        yield f"{member.filename}({name})", machine


def extension_modules(path: Path) -> list[str]:
    """Return the names under which a wheel's extension modules are imported."""
    with archives.open_zip(path) as archive:
        names = [match for name in archive.namelist() if (match := _MODULE.fullmatch(name))]
    return sorted(match["module"].replace("/", ".") for match in names)


def library_code(content: bytes | mmap) -> Iterator[tuple[str, str]]:
    """Give (name, machine) of every ELF object in a static library."""
    for name, start in _archive_members(content):
        if start.startswith(b"\x7fELF"):
            yield name, elf_machine(start)


def elf_machine(head: bytes) -> str:
    """Return the machine that the first 20 bytes of an ELF file name; 32-bit and big-endian ones say so.

    A file that is cut before them names machine 0.
    """
    big_endian = head[5:6] == b"\2"
    order = ">" if big_endian else "<"
    number = struct.unpack(f"{order}H", head[18:20])[0] if len(head) >= 20 else 0
    name = ELF_MACHINES.get(number, f"machine {number}")
    return name + (" (32-bit)" if head[4:5] == b"\1" else "") + (" (big-endian)" if big_endian else "")


def other_libc(triplet: str, python: str, platforms: Iterable[str]) -> bool:
    """Return whether a suffix's ``triplet`` names a C library that no platform tag does.

    ``python`` are the suffix's digits, such as "311".
    """
    tags = list(platforms)
    gnu, musl = (any(tag.startswith(kind) for tag in tags) for kind in ("manylinux", "musllinux"))
    if triplet.endswith("-musl"):
        return gnu and not musl
    return musl and not gnu and python not in _GNU_FOR_MUSL


def mismatches(wheel: WheelFile) -> list[str]:
    """Return every contradiction between a wheel's tags, its extension suffixes and its machine code."""
    found = []
    some = False
    for name, machine in machine_code(wheel.path):
        some = True
        if machine != "aarch64":
            found.append(f"{name} is {machine} machine code")
        suffix = EXTENSION.search(name)
        if (
            suffix
            and suffix["triplet"]
            and (
                suffix["triplet"] not in TRIPLETS
                or other_libc(suffix["triplet"], suffix["digits"], wheel.platforms)
            )
        ):
            found.append(f"{name} is named for {suffix['triplet']}")
        if suffix and suffix["digits"] and wheel.python and f"3.{suffix['digits'][1:]}" != wheel.python:
            found.append(f"{name} is named for another Python than the wheel's {wheel.python}")
    if some and wheel.is_pure:
        found.append("it holds machine code but its tag says that it runs everywhere")
    if not some and not wheel.is_pure:
        found.append(
            "its tag names a machine but it holds no machine code: an optional extension was not built"
        )
    if not wheel.runs_on_aarch64:
        found.append(f"its tag is {', '.join(sorted(wheel.platforms))}")
    return found


def _text(archive: zipfile.ZipFile, name: str, path: Path) -> str:
    try:
        return archives.read_text(archive, name).decode("utf-8", errors="replace")
    except KeyError as error:
        raise UsageError(f"{path.name}: not a wheel: {name} is missing") from error


def _archive_members(content: bytes | mmap) -> Iterator[tuple[str, bytes]]:
    """Walk a static library (ar format: 60-byte headers, even offsets)."""
    position = 8
    while position + 60 <= len(content):
        name = content[position : position + 16].decode("latin-1").strip().rstrip("/")
        digits = content[position + 48 : position + 58].strip()
        if not digits.isdigit():
            return
        yield name, content[position + 60 : position + 80]
        position += 60 + int(digits) + int(digits) % 2
