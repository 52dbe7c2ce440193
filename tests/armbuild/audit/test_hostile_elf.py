# ruff: noqa: S311 - seeded, so that a failure comes back
"""Broken and hostile ELF files: a report or a sentence, never a traceback, within bounded time and memory."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
import time
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from tests.armbuild.audit.conftest import RET, broken

from armbuild.audit import audit_path, code, effort, functions, section_batches, startup
from armbuild.audit.elf import read_elf


def test_big_endian_and_32_bit_are_refused_by_name(wheel, elf):
    content = bytearray(elf())
    content[5] = 2
    broken(wheel({"demo/x.so": bytes(content)}), "demo/x.so")
    content[5], content[4] = 1, 1
    broken(wheel({"demo/x.so": bytes(content)}), "demo/x.so")


def test_mutated_elf_files_never_raise(elf, tmp_path):
    random.seed(7)
    whole = elf(
        [("f", ".text", [0x4E829420, RET] * 8), ("k", "armllm.neon", [RET])], mapping=[("$x", ".text", 0)]
    )
    path = tmp_path / "x.so"
    for _ in range(700):
        content = bytearray(whole)
        for _ in range(random.randint(1, 6)):
            place = random.randrange(len(content))
            if random.random() < 0.2:
                content = content[:place] or bytearray(b"\x7fELF")
                break
            content[place] = random.choice((0, 1, 0x7F, 0xFF, random.randrange(256)))
        content[:4] = b"\x7fELF"
        path.write_bytes(content)
        report = audit_path(path, floor="armv8-a")
        json.dumps(report.as_dict())
        assert all(len(error.splitlines()) == 1 for error in report.errors)


def test_sections_that_lie_in_one_another_are_refused(wheel, elf):
    content = bytearray(elf(constants=[(".init_array", bytes(4096)), *[(".init_array", b"")] * 8]))
    headers = struct.unpack_from("<Q", content, 40)[0]
    for number in range(3, 11):
        struct.pack_into("<QQ", content, headers + 64 * number + 24, 512, 4096)
    broken(wheel({"demo/x.so": bytes(content)}), "sections overlap")


def test_short_functions_that_call_each_other_count_as_work(wheel, elf, monkeypatch):
    """Each takes as long as many instructions: a file of 230 KiB has 20,000 of them."""
    call_next = 0x94000002  # BL two words on
    calls = [(f"f{number}", ".init", [call_next, RET]) for number in range(200)]
    content = elf([*calls, ("last", ".init", [RET])])
    monkeypatch.setitem(effort.LIMITS, "work", 1000)
    broken(wheel({"demo/x.so": content}), "loading its ELF files runs more code than is followed")
    monkeypatch.setitem(effort.LIMITS, "work", 3000)
    assert audit_path(wheel({"demo/x.so": content})).ok


def test_many_broken_files_are_not_all_read(wheel, elf):
    content = elf()[:-64]
    broken(wheel({f"demo/x{number}.so": content for number in range(22)}), "more than 20 broken ELF files")


BRANCH_AND_LEAVE = [
    word
    for number in range(0, 18000, 2)
    for word in (0x54000041, 0x14000000 | 18000 - number - 1)  # b.ne, over a b to the end
]


@pytest.mark.parametrize(
    ("words", "constants"),
    [
        (BRANCH_AND_LEAVE, ()),  # whose end each block reaches, from another depth
        ([0x94000000 | -n & 0x3FFFFFF for n in range(15000)], [(".plt", b"")] * 8000),  # calls of itself
        (  # all of which use jemalloc's sentence, by adr
            [
                0x10000000 | (distance & 3) << 29 | (distance >> 2 & 0x7FFFF) << 5
                for distance in range(4 * 30000, 0, -4)
            ],
            [(".rodata", b"<jemalloc>: Unsupported system page size\0")],
        ),
    ],
    ids=["dominators", "plt", "jemalloc"],
)
def test_code_that_is_made_to_be_slow_is_read_in_time(elf, tmp_path, words, constants):
    (tmp_path / "x.so").write_bytes(elf([("f", ".init", [*words, RET])], constants=constants))
    begin = time.process_time()
    assert audit_path(tmp_path / "x.so").files
    assert time.process_time() - begin < 4


def test_names_that_do_not_end_are_cut():
    offsets = np.zeros(1, np.int64)
    found = functions.Functions(
        start=offsets.view(np.uint64), size=offsets.view(np.uint64), name=offsets, strings=b"a" * (20 << 20)
    )
    begin = time.process_time()
    assert {len(found.label(0)) for _ in range(2000)} == {1000}
    assert time.process_time() - begin < 2


def test_sections_whose_names_are_one_long_text_are_refused(wheel, elf):
    content = elf(constants=[("a" * (1 << 17), b"")])
    broken(wheel({"demo/x.so": content}), "the name of section 2 does not end")


def test_many_modules_in_one_file_are_found_at_once():
    names = b"\0PyInit_" * 20_000 + b"\0"
    entries = np.zeros(20_000, [("name", "<u4"), ("section", "<u4"), ("value", "<u8")])
    entries["name"], entries["section"], entries["value"] = 1, 1, range(20_000)
    begin = time.process_time()
    assert len(startup._modules(SimpleNamespace(names=names, entries=entries))) == 20_000
    assert time.process_time() - begin < 0.5


LDR_LITERAL, LSE, UNDEFINED = 0x9C000020, 0xC8A07C00, 0x00000001


@pytest.mark.parametrize("word", [0, UNDEFINED, LDR_LITERAL, LSE])
def test_a_large_section_takes_the_memory_of_a_piece(elf, tmp_path, monkeypatch, word):
    """As a whole, each of its words takes up to 200 bytes."""
    for module in (code, section_batches):
        monkeypatch.setattr(module, "CHUNK", 1 << 11)
    path = tmp_path / "x.so"
    path.write_bytes(elf([("f", ".text", [word] * (1 << 17) + [LSE, RET])]))
    read = read_elf(path)
    code.scan(path, read)
    tracemalloc.start()
    code.scan(path, read)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


@pytest.fixture(scope="module")
def real_elf(tmp_path_factory):
    """A shared object with symbols, relocations, a PLT, unwind tables and a constructor."""
    folder = tmp_path_factory.mktemp("real")
    source, library = folder / "x.c", folder / "x.so"
    source.write_text(
        "extern int outside(int); static int (*table[])(int) = {outside, outside};\n"
        "int exported(int n) { return n > 1 ? table[n & 1](n) + exported(n - 1) : outside(n); }\n"
        "__attribute__((constructor)) static void start(void) { exported(2); }\n"
        "void *PyInit_x(void) { return exported(1) ? (void *)table : 0; }\n"
        'void fast(void) { __asm__ volatile(".inst 0x4e829420"); }\n'
    )
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu.2.28", "-shared", "-O1"]
    subprocess.run([*command, "-fPIC", "-Wl,-z,undefs", "-o", str(library), str(source)], check=True)
    return library.read_bytes()


def mutated(rng, content):
    """Return ``content`` with some bytes of its headers and tables changed, or cut."""
    content = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        match rng.randrange(6):
            case 0:
                place = rng.randrange(64)
                content[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 1:  # program and section headers
                table = rng.choice((64, int.from_bytes(content[40:48], "little")))
                place = min(table + rng.randrange(900), len(content) - 8)
                content[place : place + 8] = rng.choice(
                    (0, 1, 2**31, 2**63, 2**64 - 1, len(content))
                ).to_bytes(8, "little")
            case 2:
                content = content[: rng.randrange(64, len(content))]
            case 3:
                place = rng.randrange(len(content))
                content[place : place + 4] = rng.randbytes(4)
            case _:
                content[rng.randrange(len(content))] = rng.randrange(256)
        if len(content) < 72:
            break
    content[:4] = b"\x7fELF"
    return bytes(content)


@pytest.mark.slow
def test_thousands_of_mutations_of_a_real_file_end_in_a_report(real_elf, tmp_path):
    rng = random.Random(11)
    path = tmp_path / "x.so"
    broken_ones = 0
    for _ in range(2000):
        path.write_bytes(mutated(rng, real_elf))
        report = audit_path(path, floor="armv8-a")
        json.dumps(report.as_dict())
        assert all(len(error.splitlines()) == 1 for error in report.errors)
        broken_ones += any("broken ELF" in error or "truncated" in error for error in report.errors)
    assert 200 < broken_ones < 1900  # both kinds were met


@pytest.mark.slow
def test_thousands_of_mutations_of_a_real_wheel_end_in_a_report(real_elf, wheel):
    rng = random.Random(12)
    path = wheel({"demo/x.cpython-311-aarch64-linux-gnu.so": real_elf})
    whole = path.read_bytes()
    found = 0
    for _ in range(1000):
        content = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        if rng.random() < 0.1:
            content = content[: rng.randrange(len(content))]
        path.write_bytes(content)
        report = audit_path(path, floor="armv8-a")
        json.dumps(report.as_dict())
        assert all(len(error.splitlines()) == 1 for error in report.errors)
        found += not report.ok
    assert found > 900  # RECORD's hash alone finds a changed byte


@pytest.mark.parametrize("target", ["aarch64_be-linux-gnu", "arm-linux-gnueabihf", "powerpc64-linux-gnu"])
def test_real_code_for_other_machines_is_named(tmp_path, target):
    source, part = tmp_path / "x.c", tmp_path / "x.o"
    source.write_text("int one(void) { return 1; }\n")
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "clang",
        f"--target={target}",
        "-c",
        "-o",
        str(part),
        str(source),
    ]
    subprocess.run(command, check=True)
    broken(part, "only 64-bit little-endian")
