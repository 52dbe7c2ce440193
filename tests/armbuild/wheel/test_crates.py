import json
import os
import tracemalloc
import zlib

import pytest
from tests.armbuild.audit.conftest import RET, make_elf, make_wheel

from armbuild.errors import CheckFailed
from armbuild.wheel import crates

LOCK = """\
version = 4
[[package]]
name = "memchr"
version = "2.8.0"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "{digest}"
[[package]]
name = "unused"
version = "1.0.0"
"""
DIGEST = "ab" * 32


def read(folder, record):
    (folder / "crates").write_text(record)
    return crates.read(folder / "source", folder / "crates")


def test_what_was_compiled_is_listed_with_what_the_lock_file_says(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source/Cargo.lock").write_text(LOCK.format(digest=DIGEST))
    found = read(tmp_path, "host memchr 2.8.0\ntarget memchr 2.8.0\nhost unused 1.0.0\nbroken\n")
    assert [(crate.name, crate.version, crate.linked, crate.sha256) for crate in found] == [
        ("memchr", "2.8.0", True, DIGEST),
        ("unused", "1.0.0", False, ""),
    ]
    assert found[0].source.startswith("registry+")


def test_the_projects_own_lock_file_counts_before_a_vendored_crates(tmp_path):
    for folder, digest in (("source", DIGEST), ("source/vendor/memchr", "cd" * 32)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "Cargo.lock").write_text(LOCK.format(digest=digest))
    assert read(tmp_path, "target memchr 2.8.0\n")[0].sha256 == DIGEST


def test_lock_files_that_are_none_are_passed_over(tmp_path):
    (tmp_path / "source/a").mkdir(parents=True)
    (tmp_path / "source/Cargo.lock").write_text("[[package\n")
    (tmp_path / "source/a/Cargo.lock").symlink_to("/etc/passwd")
    (tmp_path / "source/b.lock").write_bytes(b"\xff")
    assert [crate.name for crate in read(tmp_path, "target x 1\n")] == ["x"]
    (tmp_path / "source/Cargo.lock").write_text('package = ["x"]\n')
    assert read(tmp_path, "target x 1\n")[0].source == ""


def test_what_an_older_build_compiled_is_not_listed(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source/Cargo.lock").write_text(LOCK.format(digest=DIGEST))
    assert [crate.version for crate in read(tmp_path, "target memchr 2.7.0\ntarget memchr 2.8.0\n")] == [
        "2.8.0"
    ]


def test_without_rust_there_are_no_crates(tmp_path):
    assert crates.read(tmp_path, tmp_path / "crates") == ()


def test_what_a_build_left_in_place_of_its_record_is_not_read(tmp_path):
    """Read outside of the sandbox, /dev/zero would fill the memory, and a name that is a list end it."""
    (tmp_path / "Cargo.lock").write_text('[[package]]\nname = ["a"]\nversion = "1"\n')
    record = tmp_path / "record"
    record.symlink_to("/dev/zero")
    assert crates.read(tmp_path, record) == ()
    record.unlink()
    record.touch()
    os.truncate(record, 1 << 34)
    assert crates.read(tmp_path, record) == ()


def wheel_with(folder, section):
    code = make_elf([("f", ".text", [RET])], constants=[(crates.SECTION, section)])
    return make_wheel(folder, {"demo/x.so": code, "demo/__init__.py": b""})


def test_what_cargo_auditable_wrote_into_the_machine_code_is_listed_too(tmp_path):
    """Catches crates of a build that nobody watched, as in a container, or of an older library."""
    packages = [
        {"name": "memchr", "version": "2.8.0", "source": "crates.io"},
        {"name": "cc", "version": "1.2.0", "source": "crates.io", "kind": "build"},
        {"name": "demo", "version": "0.1.0", "source": "local", "dependencies": [0], "root": True},
    ]
    wheel = wheel_with(tmp_path, zlib.compress(json.dumps({"packages": packages}).encode()))
    known = crates.Crate(name="memchr", version="2.8.0", linked=True, source="registry+x", sha256=DIGEST)
    found = crates.with_embedded([known], wheel)
    assert found[-1] == known, "it has its checksum"
    assert [(crate.name, crate.version, crate.linked, crate.source) for crate in found[:-1]] == [
        ("cc", "1.2.0", False, crates.REGISTRY),
        ("demo", "0.1.0", True, ""),
    ]


def test_what_is_no_machine_code_is_not_read_whole(tmp_path):
    """A wheel may have data that is larger than memory."""
    wheel = make_wheel(tmp_path, {"demo/data": bytes(8 << 20)})
    tracemalloc.start()
    try:
        assert crates.with_embedded([], wheel) == ()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "section",
    [
        b"x",
        zlib.compress(b"[]"),
        zlib.compress(b"{}")[:-1],
        zlib.compress(b" " * (crates.LARGEST + 1)),
        zlib.compress(b'{"packages": [1]}'),
    ],
    ids=["no zlib", "a list", "cut off", "too large", "a number"],
)
def test_a_list_of_crates_that_cannot_be_read_is_named(tmp_path, section):
    with pytest.raises(CheckFailed, match=r"demo/x\.so: the crates in its \.dep-v0 cannot be read"):
        crates.with_embedded([], wheel_with(tmp_path, section))
