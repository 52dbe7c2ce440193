import re

import pytest
from tests.armbuild import wheels

from armbuild.artifact import wheelfile
from armbuild.errors import UsageError


def test_a_wheel_says_what_it_is(tmp_path):
    wheel = wheelfile.read(wheels.write(tmp_path, metadata="Requires-Dist: numpy>=1\n"))
    assert (wheel.name, wheel.version, wheel.python) == ("thing", "1.0", "3.11")
    assert wheel.requires == ("numpy>=1",)
    assert wheel.runs_on_aarch64
    assert not wheel.is_pure
    assert wheelfile.mismatches(wheel) == []


def test_a_label_in_the_version_and_capitals_in_the_name_are_no_renaming(tmp_path):
    path = wheels.write(tmp_path, "My_Thing-1.0+neoverse.v1-cp311-cp311-manylinux_2_17_aarch64.whl")
    assert wheelfile.read(path).version == "1.0+neoverse.v1"


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        (
            "thing-2.0-cp311-cp311-linux_aarch64.whl",
            {"inside": ("thing", "1.0")},
            "renamed: the file name says version 2.0, METADATA says 1.0",
        ),
        (
            "other-1.0-cp311-cp311-linux_aarch64.whl",
            {"inside": ("thing", "1.0")},
            "renamed: the file name says other, METADATA says thing",
        ),
        (
            "thing-1.0-cp312-cp312-linux_aarch64.whl",
            {"tags": ["cp311-cp311-linux_aarch64"]},
            r"renamed: .* are not those of WHEEL \(cp311-cp311-linux_aarch64\)",
        ),
        ("thing.whl", {"tags": ["x"], "inside": ("thing", "1.0")}, "not a wheel's file name"),
    ],
)
def test_a_renamed_wheel_is_refused_with_what_it_is(tmp_path, name, options, reason):
    path = wheels.write(tmp_path, **options)
    renamed = path.rename(tmp_path / name)
    with pytest.raises(UsageError, match=reason):
        wheelfile.read(renamed)


@pytest.mark.parametrize("keep", [0, 1, 10, 100, 200, -1])
def test_a_truncated_wheel_is_refused_in_a_line(tmp_path, keep):
    path = wheels.write(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError, match="truncated or not a zip") as caught:
        wheelfile.read(path)
    assert "\n" not in str(caught.value)


def test_a_flipped_bit_is_noticed(tmp_path):
    path = wheels.write(tmp_path, files={"thing/data": b"A" * 1000})
    content = bytearray(path.read_bytes())
    content[content.index(b"A" * 1000) + 500] ^= 1
    path.write_bytes(content)
    with pytest.raises(UsageError, match="thing/data does not match its checksum"):
        wheelfile.read(path)


def test_what_is_no_wheel_inside_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        wheelfile.read(tmp_path / "thing-1.0-py3-none-any.whl")
    path = wheels.write(tmp_path, files={"other-1.0.dist-info/METADATA": b""})
    with pytest.raises(UsageError, match=r"2 \.dist-info"):
        wheelfile.read(path)


@pytest.mark.parametrize(
    ("name", "files", "reason"),
    [
        (
            "thing-1.0-cp311-cp311-linux_aarch64.whl",
            {"thing/tool": wheels.elf("x86_64")},
            "thing/tool is x86_64",
        ),
        (
            "thing-1.0-cp311-cp311-linux_aarch64.whl",
            {"thing/lib.a": wheels.static_library(("ok.o", wheels.elf()), ("bad.o", wheels.elf("x86_64")))},
            r"thing/lib.a\(bad.o\) is x86_64",
        ),
        (
            "thing-1.0-cp311-cp311-linux_aarch64.whl",
            {"x": wheels.elf("arm", bits=32)},
            r"x is armv7l \(32-bit\)",
        ),
        (
            "thing-1.0-cp311-cp311-linux_aarch64.whl",
            {"x": wheels.elf(big=True)},
            r"x is aarch64 \(big-endian\)",
        ),
        (
            "thing-1.0-cp311-cp311-linux_aarch64.whl",
            {"thing/_b.cpython-311-x86_64-linux-gnu.so": wheels.elf()},
            "named for x86_64-linux-gnu",
        ),
        (
            "thing-1.0-cp311-cp311-linux_aarch64.whl",
            {"thing/_b.cpython-312-aarch64-linux-gnu.so": wheels.elf()},
            r"another Python than the wheel's 3\.11",
        ),
        ("thing-1.0-cp311-cp311-linux_x86_64.whl", {}, "its tag is linux_x86_64"),
        ("thing-1.0-py3-none-any.whl", {}, "its tag says that it runs everywhere"),
    ],
)
def test_a_wheel_that_contradicts_itself_is_caught(tmp_path, name, files, reason):
    found = wheelfile.mismatches(wheelfile.read(wheels.write(tmp_path, name, files)))
    assert len(found) == 1
    assert re.search(reason, found[0]), found


def test_abi3_and_unsuffixed_modules_are_fine(tmp_path):
    files = {
        "thing/_a.abi3.so": wheels.elf(),
        "thing/_b.so": wheels.elf(),
        "thing.libs/libz-1.so.1": wheels.elf(),
    }
    path = wheels.write(
        tmp_path, "thing-1.0-cp39-abi3-manylinux_2_17_aarch64.manylinux2014_aarch64.whl", files
    )
    wheel = wheelfile.read(path)
    assert [text for text in wheelfile.mismatches(wheel) if "_core" not in text] == []


def test_free_threaded_and_ordinary_extensions_are_kept_apart(tmp_path):
    tag, wrong = "cp314-cp314t-linux_aarch64", "cp314-cp314-linux_aarch64"
    members = {
        "thing/_core.cpython-311-aarch64-linux-gnu.so": None,
        "thing/_core.cpython-314t-aarch64-linux-gnu.so": wheels.elf(),
    }
    free = wheelfile.read(wheels.write(tmp_path, f"thing-1.0-{tag}.whl", members))
    assert free.python == "3.14t"
    assert wheelfile.mismatches(free) == []
    assert free.serves("3.14t")
    assert not free.serves("3.14")
    other = wheelfile.read(wheels.write(tmp_path, f"thing-1.0-{wrong}.whl", members))
    assert "named for another Python" in wheelfile.mismatches(other)[0]
    assert not other.serves("3.14t")
    stable = wheelfile.read(wheels.write(tmp_path, "thing-1.0-cp310-abi3-linux_aarch64.whl"))
    assert stable.serves("3.14")
    assert not stable.serves("3.14t")
    both = wheelfile.read(wheels.write(tmp_path, "thing-1.0-cp315-abi3.abi3t-linux_aarch64.whl"))
    only = wheelfile.read(wheels.write(tmp_path, "thing-1.0-cp315-abi3t-linux_aarch64.whl"))
    assert [both.serves(version) for version in ("3.14", "3.15", "3.15t", "3.16t")] == [
        False,
        True,
        True,
        True,
    ]
    assert [only.serves(version) for version in ("3.15", "3.14t", "3.15t")] == [False, False, True]
    assert (both.python, both.is_free_threaded, only.is_free_threaded) == (None, False, True)
    anywhere = wheelfile.read(wheels.write(tmp_path, "thing-1.0-py3-none-linux_aarch64.whl"))
    assert anywhere.serves("3.14t")


def test_a_pure_wheel_is_pure(tmp_path):
    core = {"thing/_core.cpython-311-aarch64-linux-gnu.so": None}
    wheel = wheelfile.read(wheels.write(tmp_path, "thing-1.0-py3-none-any.whl", core))
    assert wheel.is_pure
    assert wheel.python is None
    assert wheelfile.mismatches(wheel) == []


def test_the_least_of_a_wheels_tags_says_its_glibc():
    for tags, needed in (
        ("manylinux2014_aarch64.manylinux_2_17_aarch64", "2.17"),
        ("manylinux_2_34_aarch64.manylinux_2_5_aarch64", "2.5"),
        ("manylinux_2_34_aarch64", "2.34"),
        ("musllinux_1_2_aarch64", "None"),
        ("linux_aarch64", "None"),
    ):
        assert str(wheelfile.needed_glibc(f"thing-1-cp311-cp311-{tags}.whl")) == needed


@pytest.mark.parametrize(
    ("suffix", "tag", "wrong"),
    [
        ("cpython-311-aarch64-linux-musl", "cp311-cp311-musllinux_1_2_aarch64", False),
        ("cpython-311-aarch64-linux-musl", "cp311-cp311-linux_aarch64", False),
        ("cpython-311-aarch64-linux-musl", "cp311-cp311-manylinux_2_17_aarch64", True),
        ("cpython-311-aarch64-linux-gnu", "cp311-cp311-musllinux_1_2_aarch64", True),
        ("cpython-310-aarch64-linux-gnu", "cp310-cp310-musllinux_1_2_aarch64", False),
    ],
)
def test_a_suffix_for_the_other_c_library_is_never_imported(tmp_path, suffix, tag, wrong):
    files = {"thing/_core.cpython-311-aarch64-linux-gnu.so": None, f"thing/core.{suffix}.so": wheels.elf()}
    path = wheels.write(tmp_path, f"thing-1.0-{tag}.whl", files=files)
    found = wheelfile.mismatches(wheelfile.read(path))
    assert any("is named for" in line for line in found) == wrong


@pytest.mark.parametrize("head", [b"\x7fELF", b"\x7fELF\1", b"\x7fELF\2\1", wheels.elf()[:18]])
def test_an_elf_file_that_is_cut_in_its_head_is_of_no_machine(tmp_path, head):
    """It would catch an index that is out of range, in a wheel's member and in a static library's."""
    files = dict.fromkeys(["thing/_core.cpython-311-aarch64-linux-gnu.so"])
    files |= {"thing/core.so": head, "thing/x.a": wheels.static_library(("a.o", head))}
    path = wheels.write(tmp_path, "thing-1.0-cp311-cp311-linux_aarch64.whl", files)
    machines = dict(wheelfile.machine_code(path))
    assert machines.keys() == {"thing/core.so", "thing/x.a(a.o)"}
    assert all(machine.startswith("machine 0") for machine in machines.values())


def test_extension_modules_are_named_as_they_are_imported(tmp_path):
    names = (
        "a/_x.abi3.so",
        "a/_y.abi3t-aarch64-linux-gnu.so",
        "a/b/plain.so",
        "thing-1.0.data/platlib/top.cpython-311-aarch64-linux-gnu.so",
    )
    files = {name: wheels.elf() for name in (*names, "thing.libs/libz-1.so.1")}
    path = wheels.write(tmp_path, files=files)
    assert wheelfile.extension_modules(path) == ["a._x", "a._y", "a.b.plain", "thing._core", "top"]
