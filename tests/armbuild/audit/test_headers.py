"""ELF headers that would keep a reader busy for hours, or fill its memory: refused, in bounded time."""

from __future__ import annotations

import struct

import pytest
from tests.armbuild import wheels

from armbuild.artifact import elffile
from armbuild.audit import audit_path, auditor, code, effort
from armbuild.audit.elf import read_elf

SVE, RET = 0x04E0E3E0, 0xD65F03C0
NOTHING, PROGBITS, STRINGS = 0, 1, 3
LOADED, DYNAMIC = 1, 2


def header(*, segments=0, segments_at=0, sections=0, sections_at=0, names=0):
    return struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 183, 1, 0, segments_at, sections_at, 0,
        64, 56, segments, 64, sections, names,
    )  # fmt: skip


def section(name, kind, offset=0, size=0):
    return struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, offset, size, 0, 0, 1, 0)


def segment(kind, offset, size, address=0):
    return struct.pack("<IIQQQQQQ", kind, 4, offset, address, address, size, size, 0x10000)


def refusal(path, content):
    path.write_bytes(content)
    report = audit_path(path)
    assert not report.ok
    return report.errors[0]


def test_thousands_of_names_in_one_long_run_of_letters_are_not_all_read(tmp_path, monkeypatch):
    monkeypatch.setattr(elffile, "MAX_READ", 8 << 20)
    count, letters = 1000, b"a" * 60_000 + b"\0"
    table = [section(0, NOTHING), section(0, STRINGS, 64 + 64 * count, len(letters))]
    table += [section(number, PROGBITS) for number in range(count - 2)]
    content = header(sections=count, sections_at=64, names=1) + b"".join(table) + letters
    assert "take too long to follow" in refusal(tmp_path / "x.so", content)


def test_more_sections_and_segments_than_any_file_has_are_refused(tmp_path):
    for count in (100_001, 1 << 32):
        beyond = header(sections_at=64) + section(0, NOTHING, size=count)
        assert "implausible number" in refusal(tmp_path / "x.so", beyond)
    segments = header(segments=60_000, segments_at=64) + segment(LOADED, 0, 0) * 60_000
    assert "implausible number" in refusal(tmp_path / "x.so", segments)


def test_a_second_dynamic_segment_is_refused(tmp_path):
    content = header(segments=1000, segments_at=64) + segment(DYNAMIC, 64 + 56_000, 16) * 1000 + bytes(16)
    assert "more than one dynamic segment" in refusal(tmp_path / "x.so", content)


@pytest.fixture
def using(elf):
    """A file in which eight functions use an extension."""
    return elf([(f"f{number}", ".text", [SVE, RET]) for number in range(8)])


def test_functions_that_use_extensions_are_counted_over_all_files(tmp_path, using, monkeypatch):
    (tmp_path / "a.so").write_bytes(using)
    (tmp_path / "b.so").write_bytes(using)
    monkeypatch.setitem(effort.LIMITS, "uses", 16)
    assert audit_path(tmp_path).ok
    monkeypatch.setitem(effort.LIMITS, "uses", 15)
    assert audit_path(tmp_path).errors == ("refused: its functions use extensions in more than 15 ways",)
    monkeypatch.setattr(code, "MAX_USES", 7)
    assert "more than 7 uses of extensions" in audit_path(tmp_path).errors[0]


def test_elf_files_and_their_sections_are_counted(tmp_path, elf, monkeypatch):
    for name in ("a.so", "b.so", "c.so"):
        (tmp_path / name).write_bytes(elf())
    sections = len(read_elf(tmp_path / "a.so").sections)
    monkeypatch.setitem(effort.LIMITS, "sections", 3 * sections)
    assert audit_path(tmp_path).ok
    monkeypatch.setitem(effort.LIMITS, "sections", 3 * sections - 1)
    assert "its ELF files have more than" in audit_path(tmp_path).errors[0]
    monkeypatch.setitem(effort.LIMITS, "files", 2)
    assert audit_path(tmp_path).errors == ("refused: it has more than 2 ELF files and static libraries",)


def test_static_libraries_of_a_wheel_count(tmp_path, monkeypatch):
    """100,000 empty ones were each copied to the disk, in 23 s."""
    path = wheels.write(
        tmp_path, "thing-1.0-py3-none-any.whl", {f"thing/{name}.a": b"!<arch>\n" for name in "abc"}
    )
    monkeypatch.setitem(effort.LIMITS, "files", 4)  # with the extension module
    assert not any("refused" in error for error in audit_path(path).errors)
    monkeypatch.setitem(effort.LIMITS, "files", 3)
    assert audit_path(path).errors == ("refused: it has more than 3 ELF files and static libraries",)


def test_documents_that_a_caller_wants_are_kept_up_to_a_limit_and_then_an_error(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(bytes(100))
    monkeypatch.setattr(auditor, "_ALL_KEPT_LIMIT", 250)
    report = audit_path(tmp_path, keep=lambda _name: True)
    assert list(report.texts) == ["a", "b"]
    assert len(report.errors) == 1
    assert "c: refused" in report.errors[0]
    shared = effort.Effort()
    kept = [audit_path(tmp_path, keep=lambda _name: True, effort=shared).texts for _ in range(2)]
    assert list(map(list, kept)) == [["a", "b"], []]  # else a hundred images keep as much each
    monkeypatch.setattr(auditor, "_KEPT_LIMIT", 99)
    assert len(audit_path(tmp_path, keep=lambda _name: True).errors) == 3


def test_mapping_symbols_are_found_by_section(tmp_path, elf):
    """Words after ``$d`` are data, in that section alone."""
    content = elf(
        [("f", ".text", [RET, SVE]), ("g", "other", [SVE, RET])],
        mapping=[("$x", ".text", 0), ("$d", ".text", 4), ("$x", "other", 0)],
    )
    (tmp_path / "x.so").write_bytes(content)
    (file,) = audit_path(tmp_path / "x.so").files
    assert [function.name for function in file.functions] == ["g"]
