"""auditwheel's findings, and that a file which keeps it busy for ever is a finding too."""

import struct
import subprocess
import sys

import pytest
from elftools.elf.elffile import ELFFile
from tests.armbuild import wheels

from armbuild.audit import policy

NAME = "thing-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.fixture(scope="module")
def shared_object(tmp_path_factory):
    folder = tmp_path_factory.mktemp("object")
    (folder / "x.c").write_text('#include <stdio.h>\nint f(void) { return puts("x"); }\n')
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "x.so", folder / "x.c"], check=True)
    return (folder / "x.so").read_bytes()


def found(folder, content):
    path = wheels.write(
        folder, NAME, {"thing/_core.cpython-311-aarch64-linux-gnu.so": None, "thing/x.so": content}
    )
    return policy.check_policy(path, frozenset({"manylinux_2_28_x86_64"}), "x86_64")


def test_versions_and_libraries_are_those_of_the_files(tmp_path, shared_object):
    verdict, errors, _ = found(tmp_path, shared_object)
    assert verdict is not None
    assert verdict.name.startswith("manylinux_2_")
    assert "GLIBC_2.2.5" in verdict.versions["libc.so.6"]
    assert errors == []


def test_the_audit_works_below_limits_that_it_cannot_raise(tmp_path, monkeypatch, shared_object):
    """As on a cluster's login node: Python refuses to set a limit above the one that cannot be raised."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nulimit -t {policy.SECONDS - 1}\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    verdict, errors, _ = found(tmp_path, shared_object)
    assert verdict is not None
    assert errors == []


def test_a_version_table_without_end_is_a_finding(tmp_path, monkeypatch, shared_object):
    """Its entries say that the next is the same; sh_info says that there are 2^32 of them."""
    (tmp_path / "x.so").write_bytes(shared_object)
    with (tmp_path / "x.so").open("rb") as file:
        elf = ELFFile(file)
        number = next(at for at, part in enumerate(elf.iter_sections()) if part.name == ".gnu.version_r")
        header = elf["e_shoff"] + number * elf["e_shentsize"]
    content = bytearray(shared_object)
    content[header + 44 : header + 48] = struct.pack("<I", 0xFFFFFFFF)  # sh_info
    monkeypatch.setattr(policy, "SECONDS", 1)
    verdict, errors, _ = found(tmp_path, bytes(content))
    assert verdict is None
    assert errors == ["auditwheel can't analyze it: it used up its time or memory, or crashed"]
