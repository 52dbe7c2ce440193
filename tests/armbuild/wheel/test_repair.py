import base64
import csv
import hashlib
import os
import time
import zipfile

import pytest
from tests.armbuild import wheels

from armbuild.artifact import wheelfile
from armbuild.errors import CheckFailed
from armbuild.wheel import repair


def check_record(path):
    """RECORD names every file once, with its true digest and size."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        record = next(name for name in names if name.endswith(".dist-info/RECORD"))
        rows = list(csv.reader(archive.read(record).decode().splitlines()))
        assert sorted(row[0] for row in rows) == sorted(names)
        assert len(names) == len(set(names))
        for name, digest, size in rows:
            if name == record:
                assert (digest, size) == ("", "")
            else:
                content = archive.read(name)
                expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                assert (digest, size) == (f"sha256={expected}", str(len(content)))


def test_a_repacked_wheel_depends_on_nothing_but_its_content(tmp_path):
    out = [tmp_path / "a", tmp_path / "b"]
    for folder in out:
        folder.mkdir()
    first = wheels.write(tmp_path, files={"thing/b.py": b"b", "thing/a.py": b"a"})
    one = repair.repack(first, out[0], label=None, epoch=1_700_000_000).read_bytes()
    time.sleep(2.1)  # zip files count in two seconds
    mask = os.umask(0o077)
    try:
        second = wheels.write(tmp_path, files={"thing/a.py": b"a", "thing/b.py": b"b"})
        two = repair.repack(second, out[1], label=None, epoch=1_700_000_000).read_bytes()
    finally:
        os.umask(mask)
    assert one == two


def test_dates_before_zip_began_are_its_beginning(tmp_path):
    (tmp_path / "out").mkdir()
    path = repair.repack(wheels.write(tmp_path), tmp_path / "out", label=None, epoch=0)
    with zipfile.ZipFile(path) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_record_is_complete_and_last_with_metadata_at_the_end(tmp_path):
    (tmp_path / "out").mkdir()
    path = repair.repack(wheels.write(tmp_path), tmp_path / "out", label=None, epoch=0)
    check_record(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist()[-1].endswith("RECORD")
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    assert modes["thing/_core.cpython-311-aarch64-linux-gnu.so"] == 0o100755
    assert modes["thing-1.0.dist-info/METADATA"] == 0o100644


@pytest.mark.parametrize(
    ("version", "labeled"), [("1.0", "1.0+neoverse.v1"), ("1.0+cpu", "1.0+cpu.neoverse.v1")]
)
def test_a_raised_baseline_shows_in_every_place_that_states_the_version(tmp_path, version, labeled):
    (tmp_path / "out").mkdir()
    name = f"thing-{version}-cp311-cp311-manylinux_2_17_aarch64.whl"
    data = {f"thing-{version}.data/scripts/run": b"#!python\n", "thing/version.txt": b"Version: 9\n"}
    path = repair.repack(wheels.write(tmp_path, name, data), tmp_path / "out", label="neoverse.v1", epoch=0)
    assert path.name == f"thing-{labeled}-cp311-cp311-manylinux_2_17_aarch64.whl"
    assert wheelfile.read(path).version == labeled
    check_record(path)
    with zipfile.ZipFile(path) as archive:
        assert f"thing-{labeled}.data/scripts/run" in archive.namelist()
        assert archive.read("thing/version.txt") == b"Version: 9\n"
        assert f"Version: {labeled}\n".encode() in archive.read(f"thing-{labeled}.dist-info/METADATA")


def test_a_wheel_that_needs_a_newer_glibc_than_asked_is_refused_with_both(tmp_path):
    new = tmp_path / "thing-1-cp311-cp311-manylinux_2_34_aarch64.whl"
    old = tmp_path / "thing-1-cp311-cp311-manylinux2014_aarch64.manylinux_2_17_aarch64.whl"
    with pytest.raises(CheckFailed, match=r"needs glibc 2\.34, --glibc allows 2\.28") as said:
        repair.check_glibc(new, "2.28")
    assert said.value.status == 1
    for wheel, newest in (
        (new, None),
        (new, "2.34"),
        (old, "2.17"),
        (tmp_path / "x-1-py3-none-any.whl", "2.17"),
    ):
        repair.check_glibc(wheel, newest)


def test_a_back_ends_own_bill_of_materials_names_no_folder_of_this_machine(tmp_path):
    bill = (
        b'{"bom-ref": "path+file:///home/x/.cache/builds/thing-1/source#thing", "of": "/home/x/.cache/zig"}'
    )
    path = wheels.write(tmp_path, files={"thing-1.0.dist-info/sboms/thing.cyclonedx.json": bill})
    folders = {"/home/x/.cache": "/cache", "/home/x/.cache/builds/thing-1": "/build"}
    assert repair._without_folders(path, folders) == {
        "sboms/thing.cyclonedx.json": b'{"bom-ref": "path+file:///build/source#thing", "of": "/cache/zig"}'
    }
