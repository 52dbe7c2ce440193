"""What a wheel file says about itself, read without installing it: names, tags, metadata, machine code."""

from __future__ import annotations

import email.parser
import re
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from armbuild.artifact import variant
from armbuild.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EM_AARCH64 = 183
MACHINES = {
    3: "i386",
    8: "mips",
    20: "ppc",
    21: "ppc64",
    22: "s390",
    40: "arm",
    62: "x86_64",
    183: "aarch64",
    243: "riscv",
    258: "loongarch",
}
"""e_machine of the System V ABI, as uname names it."""
EXTENSION = re.compile(
    r"\.(?:cpython-(?P<digits>\d+t?)-(?P<triplet>[^.]+)|(?P<abi3>abi3)|pypy\d+-[^.]+)\.so$"
)


def needed_glibc(name: str) -> Version | None:
    """Return the glibc that a wheel of this name needs by its tags (PEP 600), None where they name none."""
    needed = re.findall(r"manylinux_(\d+)_(\d+)_", name)
    return min((Version(f"{major}.{minor}") for major, minor in needed), default=None)


@dataclass(frozen=True, kw_only=True)
class WheelFile:
    """A readable wheel."""

    path: Path
    name: str
    """Normalised."""
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
        """Whether the wheel is for a CPython without the global lock (PEP 703)."""
        return all(re.fullmatch(r"cp3\d+t", tag) for tag in self.abis)

    @property
    def is_stable_abi(self) -> bool:
        """Whether the wheel keeps to the stable ABI (abi3), and so serves later Pythons too."""
        return "abi3" in self.abis

    def serves(self, version: str) -> bool:
        """Return whether CPython ``version`` ("3.11", "3.14t") may install it on AArch64."""
        free = version.endswith("t")
        if self.abis != {"none"} and free != self.is_free_threaded:
            return False
        minor = int(version.partition(".")[2].removesuffix("t"))
        return any(
            tag in ("py3", f"py3{minor}", f"cp3{minor}")
            or (self.is_stable_abi and re.fullmatch(r"cp3\d+", tag) and int(tag[3:]) <= minor)
            or (self.abis == {"none"} and re.fullmatch(r"(?:py|cp)3\d+", tag) and int(tag[3:]) <= minor)
            for tag in self.pythons
        )

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
    plain, label = variant.split(path.name)
    try:
        name, version, _, tags = parse_wheel_filename(plain)
    except InvalidWheelFilename as error:
        raise UsageError(
            f"{path.name}: not a wheel's file name (NAME-VERSION-PYTHON-ABI-PLATFORM.whl)"
        ) from error
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
            if damaged:
                raise UsageError(f"{path.name}: damaged: {damaged} does not match its checksum")
            members = archive.namelist()
            folders = {member.split("/")[0] for member in members if re.match(r"[^/]+\.dist-info/", member)}
            if len(folders) != 1:
                raise UsageError(f"{path.name}: not a wheel: it has {len(folders)} .dist-info folders")
            folder = folders.pop()
            metadata = _headers(archive, f"{folder}/METADATA", path)
            declared = _headers(archive, f"{folder}/WHEEL", path)
            described = _variant(archive, f"{folder}/{variant.MEMBER}", path, label)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{path.name}: truncated or not a zip archive ({error})") from error
    inside = (canonicalize_name(metadata.get("Name", "")), metadata.get("Version", ""))
    if inside != (name, str(version)) and inside != (name, path.name.split("-")[1].replace("_", "-")):
        raise UsageError(f"{path.name}: renamed: inside it is {inside[0]} {inside[1]}")
    if {str(tag) for tag in tags} != set(declared.get_all("Tag", [])):
        raise UsageError(
            f"{path.name}: renamed: inside it is tagged {', '.join(declared.get_all('Tag', ['nothing']))}"
        )
    return WheelFile(
        path=path,
        name=name,
        version=str(version),
        pythons=frozenset(tag.interpreter for tag in tags),
        abis=frozenset(tag.abi for tag in tags),
        platforms=frozenset(tag.platform for tag in tags),
        requires=tuple(metadata.get_all("Requires-Dist", [])),
        variant=described,
    )


def machine_code(path: Path) -> Iterator[tuple[str, str]]:
    """Give (name, machine) of every ELF file in a wheel, also of those inside static libraries."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                head = file.read(20)
                if head.startswith(b"\x7fELF"):
                    yield member.filename, elf_machine(head)
                elif head.startswith(b"!<arch>\n"):
                    for name, start in _archive_members(head + file.read()):
                        if start.startswith(b"\x7fELF"):
                            yield f"{member.filename}({name})", elf_machine(start)


def elf_machine(head: bytes) -> str:
    """Return the machine that the first 20 bytes of an ELF file name; 32-bit and big-endian ones say so."""
    order = ">" if head[5] == 2 else "<"
    number = struct.unpack(f"{order}H", head[18:20])[0] if len(head) >= 20 else 0
    name = MACHINES.get(number, f"machine {number}")
    return name + (" (32-bit)" if head[4] == 1 else "") + (" (big-endian)" if head[5] == 2 else "")


def mismatches(wheel: WheelFile) -> list[str]:
    """Return every contradiction between a wheel's tags, its extension suffixes and its machine code."""
    found = []
    some = False
    for name, machine in machine_code(wheel.path):
        some = True
        if machine != "aarch64":
            found.append(f"{name} is {machine} machine code")
        suffix = EXTENSION.search(name)
        if suffix and suffix["triplet"] and suffix["triplet"] != "aarch64-linux-gnu":
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


def _headers(archive: zipfile.ZipFile, name: str, path: Path) -> email.message.Message:
    try:
        text = archive.read(name).decode("utf-8", errors="replace")
    except KeyError as error:
        raise UsageError(f"{path.name}: not a wheel: {name} is missing") from error
    return email.parser.HeaderParser().parsestr(text)


def _variant(archive: zipfile.ZipFile, name: str, path: Path, label: str | None) -> dict[str, Any] | None:
    there = name in archive.namelist()
    if label is None or not there:
        if label or there:
            lacks = f"has no {variant.MEMBER}" if label else "is a wheel variant, and its name has no label"
            raise UsageError(f"{path.name}: renamed: it {lacks}")
        return None
    try:
        return variant.parse(archive.read(name), label)
    except UsageError as error:
        raise UsageError(f"{path.name}: {error}") from error


def _archive_members(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Walk a static library (ar format: 60-byte headers, even offsets)."""
    position = 8
    while position + 60 <= len(content):
        name = content[position : position + 16].decode("latin-1").strip().rstrip("/")
        digits = content[position + 48 : position + 58].strip()
        if not digits.isdigit():
            return
        yield name, content[position + 60 : position + 80]
        position += 60 + int(digits) + int(digits) % 2
