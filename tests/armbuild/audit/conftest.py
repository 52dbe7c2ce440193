"""ELF files and wheels made byte by byte, so that each test can be wrong in exactly one way."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import struct
import zipfile
from typing import TYPE_CHECKING

import pytest
from packaging.tags import parse_tag

from armbuild.audit import audit_path

if TYPE_CHECKING:
    from pathlib import Path

RET = 0xD65F03C0
AARCH64, X86_64 = 183, 62


def make_elf(
    functions=(("f", ".text", [RET]),),
    *,
    machine=AARCH64,
    align=0x10000,
    debug=False,
    symbols=True,
    stack_flags=6,
    mapping=(),
    load_flags=5,
    kind=3,
    constants=(),
):
    """Return a shared object of functions (name, section, words), mapping symbols, and constants.

    Constants are a section and its bytes.
    """
    code: dict[str, bytearray] = {}
    places = []
    for name, section, instructions in functions:
        body = code.setdefault(section, bytearray())
        places.append((name, section, len(body), 4 * len(instructions)))
        body += struct.pack(f"<{len(instructions)}I", *instructions)
    sections = [("", 0, 0, b"", 0, 0)]  # name, type, flags, content, link, entry size
    sections += [(name, 1, 6, bytes(body), 0, 0) for name, body in code.items()]
    sections += [(name, 1, 2, content, 0, 0) for name, content in constants]
    if debug:
        sections.append((".debug_info", 1, 0, b"debug", 0, 0))
    if symbols:
        numbers = {name: index for index, (name, *_) in enumerate(sections)}
        strings, table = b"\0", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
        for name, section, offset, size in places:
            table += struct.pack(
                "<IBBHQQ", len(strings), 0x12, 0, numbers[section], _base(sections, section) + offset, size
            )
            strings += name.encode() + b"\0"
        for mark, section, offset in mapping:
            table += struct.pack(
                "<IBBHQQ", len(strings), 0, 0, numbers[section], _base(sections, section) + offset, 0
            )
            strings += mark.encode() + b"\0"
        sections.append((".symtab", 2, 0, table, len(sections) + 1, 24))
        sections.append((".strtab", 3, 0, strings, 0, 0))
    names = b"\0"
    offsets = []
    for name, *_ in [*sections, (".shstrtab",)]:
        offsets.append(len(names))
        names += name.encode() + b"\0"
    sections.append((".shstrtab", 3, 0, names, 0, 0))
    body, headers = b"", b""
    for (name, type_, flags, content, link, entry), name_offset in zip(sections, offsets, strict=True):
        offset = _base(sections, name) if name else 0
        headers += struct.pack(
            "<IIQQQQIIQQ",
            name_offset,
            type_,
            flags,
            offset if flags else 0,
            offset,
            len(content),
            link,
            0,
            8,
            entry,
        )
        body += content
    end = 64 + 2 * 56 + len(body)
    segments = struct.pack("<IIQQQQQQ", 1, load_flags, 0, 0, 0, end, end, align)
    segments += struct.pack("<IIQQQQQQ", 0x6474E551, stack_flags, 0, 0, 0, 0, 0, 16)
    head = b"\x7fELF\2\1\1" + bytes(9)
    head += struct.pack(
        "<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, end, 0, 64, 56, 2, 64, len(sections), len(sections) - 1
    )
    return head + segments + body + headers


def _base(sections, wanted):
    offset = 64 + 2 * 56
    for name, _, _, content, *_ in sections:
        if name == wanted:
            return offset
        offset += len(content)
    raise KeyError(wanted)


def make_wheel(
    folder: Path,
    files,
    *,
    tag="cp311-cp311-manylinux_2_28_aarch64",
    name="demo",
    version="1.0",
    inner_tag=None,
    inner_name=None,
    record=None,
):
    """Write a wheel; ``record`` may change the rows of RECORD before they are written."""
    info = f"{inner_name or name}-{version}.dist-info"
    content = dict(files)
    content[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {inner_name or name}\nVersion: {version}\n".encode()
    )
    tags = "".join(f"Tag: {line}\n" for line in sorted(map(str, parse_tag(inner_tag or tag))))
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\n{tags}".encode()
    rows = [
        [
            entry,
            "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(),
            len(data),
        ]
        for entry, data in content.items()
    ] + [[f"{info}/RECORD", "", ""]]
    rows = record(rows) if record else rows
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    content[f"{info}/RECORD"] = buffer.getvalue().encode()
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, data in content.items():
            archive.writestr(entry, data)
    return path


def build_info(**changes):
    """Return the bytes of armllm/build_info.json."""
    info = {
        "schema": 1,
        "version": "1.0",
        "machine": "aarch64",
        "targets": ["neon"],
        "baseline": "armv8-a",
        "compiler": "test",
    }
    return json.dumps({**info, **changes}).encode()


@pytest.fixture
def elf():
    return make_elf


@pytest.fixture
def wheel(tmp_path):
    def make(files, **options):
        return make_wheel(tmp_path, files, **options)

    return make


@pytest.fixture
def own_wheel(tmp_path):
    """Make an armllm wheel: kernel code in section armllm.neon, consistent unless told otherwise."""

    def make(
        *,
        functions=(("k", "armllm.neon", [RET]), ("f", ".text", [RET])),
        info=None,
        version="1.0",
        extra=None,
        **elf_options,
    ):
        files = {
            "armllm/_kernels.cpython-311-aarch64-linux-gnu.so": make_elf(
                functions, symbols=False, **elf_options
            ),
            "armllm/build_info.json": build_info(**(info or {})),
            **(extra or {}),
        }
        return make_wheel(tmp_path, files, name="armllm", version=version)

    return make


def broken(path, word):
    report = audit_path(path)
    assert not report.ok
    assert any(word in error for error in report.errors), report.errors
    assert all(len(error.splitlines()) == 1 for error in report.errors)
    json.dumps(report.as_dict())
