"""Objects of -ffunction-sections: thousands of sections, counted beside the header and the symbols."""

import struct
from random import Random

from tests.armbuild.audit.conftest import AARCH64, RET

from armbuild.audit import audit_path, code, section_batches
from armbuild.audit.code import scan
from armbuild.audit.elf import read_elf

CRC32B = 0x1AC04000
COUNTED_ELSEWHERE = 0xFFFF


def section(name, kind, offset, size, link=0):
    flags, entry = (6 if kind == 1 else 0), (24 if kind == 2 else 0)
    return struct.pack("<IIQQQQIIQQ", name, kind, flags, 0, offset, size, link, 0, 4, entry)


def an_object(functions, *, stated=None, numbers=True):
    """Return an object with each function in a section, numbered as if there were more than 65,279."""
    code, names, symbols, beside = b"", b"\0", struct.pack("<IBBHQQ", *[0] * 6), struct.pack("<I", 0)
    headers = b""
    for number, words in enumerate(functions, 1):
        headers += section(len(names), 1, 64 + len(code), 4 * len(words))
        symbols += struct.pack("<IBBHQQ", len(names) + 6, 0x12, 0, COUNTED_ELSEWHERE, 0, 4 * len(words))
        beside += struct.pack("<I", number if numbers else 0xFFFFFFF0)
        code += struct.pack(f"<{len(words)}I", *words)
        names += b".text.f%d\0" % number
    count = len(functions) + 4
    place = 64 + len(code)
    headers += section(0, 2, place, len(symbols), count - 1)
    headers += section(0, 18, place + len(symbols), len(beside), count - 3)
    headers += section(0, 3, place + len(symbols) + len(beside), len(names))
    first = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, stated or count, count - 1, 0, 0, 0)
    body = code + symbols + beside + names
    head = b"\x7fELF\2\1\1" + bytes(9)
    head += struct.pack(
        "<HHIQQQIHHHHHH", 1, AARCH64, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 0, COUNTED_ELSEWHERE
    )
    return head + body + first + headers


def test_an_object_of_many_sections_is_read_function_by_function(tmp_path):
    path = tmp_path / "x.o"
    path.write_bytes(an_object([[RET]] * 5000 + [[CRC32B, RET]]))
    report = audit_path(path, floor="armv8-a")
    assert [(item.function.name, item.function.section) for item in report.offences] == [
        ("f5001", ".text.f5001")
    ]
    assert report.files[0].known_functions == 5001
    assert report.errors == ("1 functions go beyond the floor armv8-a unguarded, to crc",)


def test_numbers_of_sections_that_are_none_are_read_to_an_end(tmp_path):
    path = tmp_path / "x.o"
    path.write_bytes(an_object([[RET], [CRC32B]], numbers=False))
    assert audit_path(path).ok, "a symbol of a section that is not there is a symbol of none"
    for count in (100_001, 1 << 40):
        path.write_bytes(an_object([[RET]], stated=count))
        assert "an implausible number of sections" in audit_path(path).errors[0]


LDR_LITERAL, UNDEFINED, HELPER = 0x58000040, 0x00000001, [0x39400210, 0x34000010, 0xB8A00041]


def test_sections_that_are_read_together_have_nothing_of_one_another(tmp_path, monkeypatch):
    """What is loaded as data, a helper's first words and broken words count in their own section alone."""
    random = Random(1)  # noqa: S311 - test data
    kinds = [CRC32B, RET, LDR_LITERAL, UNDEFINED, *HELPER]
    functions = [
        [*random.choices(kinds, k=random.randrange(1, 9)), *random.choice([[], HELPER])] for _ in range(300)
    ]
    path = tmp_path / "x.o"
    path.write_bytes(an_object(functions))

    def read():
        found = scan(path, read_elf(path))
        return found.words, found.self_checked, found.functions

    together = read()
    monkeypatch.setattr(section_batches, "WORDS", 0)
    assert read() == together
    for module in (code, section_batches):
        monkeypatch.setattr(module, "CHUNK", 3)
    assert read() == together
    monkeypatch.setattr(section_batches, "WORDS", 1 << 18)
    assert read() == together, "nor does a piece of them end what it cuts"
    assert len(together[2]) > 100
    assert together[1] > 10
