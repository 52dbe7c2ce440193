# ruff: noqa: S311 - seeded, so that a failure comes back
"""Broken and hostile archives: always a report or a sentence, never a traceback, within bounded memory."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from tests.armbuild.audit.conftest import RET, broken

from armbuild.audit import audit_path, zipped
from armbuild.audit.text import describe
from armbuild.errors import UsageError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

NAME = "demo-1.0-cp311-cp311-manylinux_2_28_aarch64.whl"


def test_not_a_zip_and_truncated(tmp_path, wheel, elf):
    path = tmp_path / NAME
    path.write_bytes(b"this is not a zip")
    broken(path, "not a readable zip archive")
    path.write_bytes(b"")
    broken(path, "not a readable zip archive")
    whole = wheel({"demo/x.so": elf()}).read_bytes()
    for length in (10, len(whole) // 3, len(whole) - 30):
        path.write_bytes(whole[:length])
        broken(path, "truncated")


def test_corrupted_content_is_found(wheel, elf):
    path = wheel({"demo/data": bytes(range(256)) * 40, "demo/x.so": elf()})
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF
    path.write_bytes(content)
    report = audit_path(path)
    assert not report.ok


def test_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / NAME
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("demo/zeros", "w", force_zip64=True) as file,
    ):
        for _ in range(400):
            file.write(bytes(1 << 20))
    broken(path, "zip bomb")


def test_a_wheel_of_too_many_files_is_refused(tmp_path, monkeypatch):
    """Each takes 70 us, empty or not: 200,000 of them would take 13 s."""
    monkeypatch.setattr(zipped, "MAX_MEMBERS", 5)
    path = tmp_path / NAME
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(6):
            archive.writestr(f"{number}", b"")
    broken(path, "it has more than 5 files, folders and headers")


@pytest.mark.parametrize(
    "name",
    [
        "../evil.py", "/etc/passwd", "demo/../../evil", "demo\\..\\evil", "c:evil",
        "./demo/a.py", "demo//a.py", "demo/./a.py", "demo/\x1b[2J.py", "demo/a\n.py", "demo/\u202eyp.a",
    ],
)  # fmt: skip
def test_names_that_lead_out_are_refused(wheel, name):
    broken(wheel({name: b"x"}), "leads out of the folder")


def test_a_name_that_some_readers_cut_at_a_zero_is_refused(wheel):
    path = wheel({"demo/a.py_.txt": b"x"})
    path.write_bytes(path.read_bytes().replace(b"demo/a.py_.txt", b"demo/a.py\0.txt"))
    broken(path, "leads out of the folder")


def test_symbolic_links_and_doubles_are_found(tmp_path):
    path = tmp_path / NAME
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("demo/link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("demo/a", "1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("demo/a", "2")
    report = audit_path(path)
    assert any("symbolic link" in error for error in report.errors)
    assert any("more than once" in error for error in report.errors)


def test_mutated_wheels_never_raise(wheel, elf):
    random.seed(8)
    path = wheel({"demo/x.cpython-311-aarch64-linux-gnu.so": elf()})
    whole = path.read_bytes()
    for _ in range(200):
        content = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            content[random.randrange(len(content))] = random.randrange(256)
        path.write_bytes(content)
        json.dumps(audit_path(path).as_dict())


def test_folders_and_lone_files(tmp_path, elf):
    folder = tmp_path / "folder"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "a.so").write_bytes(elf([("f", ".text", [0x4E829420, RET])]))
    (folder / "note.txt").write_text("no ELF")
    report = audit_path(folder, floor="neoverse-n1")
    assert report.ok
    assert [item.name for item in report.files] == ["lib/a.so"]
    assert not audit_path(folder, floor="cortex-a72").ok
    assert audit_path(folder / "lib" / "a.so", floor="neoverse-n1").ok
    with pytest.raises(UsageError, match="not a wheel"):
        audit_path(folder / "note.txt")


def oci(path, layers, *, index=None, compress=gzip.compress):
    """Write an OCI archive whose layers are {name: content} in order; None hides a file."""
    blobs, digests, contents = {}, [], []

    def blob(data):
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}"}

    for layer in layers:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, content in layer.items():
                folder, _, base = name.rpartition("/")
                entry = tarfile.TarInfo(name if content is not None else f"{folder}/.wh.{base}")
                entry.size = len(content or b"")
                tar.addfile(entry, io.BytesIO(content or b""))
        contents.append(f"sha256:{hashlib.sha256(buffer.getvalue()).hexdigest()}")
        digests.append(blob(compress(buffer.getvalue())))
    config = {"architecture": "arm64", "rootfs": {"type": "layers", "diff_ids": contents}}
    manifest = blob(json.dumps({"config": blob(json.dumps(config).encode()), "layers": digests}).encode())
    blobs["index.json"] = index or json.dumps({"manifests": [manifest]}).encode()
    with tarfile.open(path, "w") as tar:
        for name, content in blobs.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def test_oci_archives_are_looked_into_layer_by_layer(tmp_path, elf):
    guilty, innocent = elf([("f", ".text", [0x4E829420, RET])]), elf()
    path = tmp_path / "image.tar"
    oci(path, [{"usr/lib/a.so": guilty, "usr/lib/b.so": innocent}])
    assert not audit_path(path, floor="armv8-a").ok
    oci(path, [{"usr/lib/a.so": guilty, "usr/lib/b.so": innocent}, {"usr/lib/a.so": None}])
    report = audit_path(path, floor="armv8-a")
    assert report.ok
    assert [item.name for item in report.files] == ["usr/lib/b.so"]
    oci(path, [{"usr/lib/a.so": guilty}, {"usr/lib/a.so": innocent}])
    assert audit_path(path, floor="armv8-a").ok


def test_a_saved_image_is_looked_into_and_its_equal_layers_are_links(tmp_path, elf):
    """As `docker save` and `podman save` write it."""
    layer = io.BytesIO()
    content = elf([("f", ".text", [0x4E829420, RET])])
    with tarfile.open(fileobj=layer, mode="w") as tar:
        entry = tarfile.TarInfo("usr/lib/a.so")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    diff = f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"
    config = json.dumps({"architecture": "arm64", "rootfs": {"diff_ids": [diff, diff]}}).encode()
    manifest = json.dumps([{"Config": "c.json", "Layers": ["1/layer.tar", "2/layer.tar"]}]).encode()
    documents = {"1/layer.tar": layer.getvalue(), "c.json": config, "manifest.json": manifest}
    path = tmp_path / "image.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in documents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo("2/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../1/layer.tar"
        tar.addfile(link)
    report = audit_path(path, floor="armv8-a")
    assert not report.ok
    assert [item.name for item in report.files] == ["usr/lib/a.so"]
    path.write_bytes(path.read_bytes().replace(content, content[:-1] + b"?"))
    assert any("was tampered with" in error for error in audit_path(path).errors), "diff ids are all it has"


@pytest.mark.parametrize(
    "index", [b"{}", b"[]", b"nonsense", b'{"manifests": [{"digest": "sha256:0"}]}', b'{"manifests": []}']
)
def test_broken_oci_archives_are_reported(tmp_path, index):
    path = tmp_path / "image.tar"
    oci(path, [{}], index=index)
    report = audit_path(path)
    assert not report.ok


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress, bytes], ids=["gzip", "zstd", "none"])
def test_layers_may_be_compressed_in_each_way(tmp_path, elf, compress):
    path = tmp_path / "image.tar"
    oci(path, [{"usr/a.so": elf([("f", ".text", [0x4E829420, RET])])}], compress=compress)
    report = audit_path(path, floor="armv8-a")
    assert [item.file for item in report.offences] == ["usr/a.so"]


def test_whiteouts_hide_what_lies_below_them_and_nothing_else(tmp_path, elf):
    path = tmp_path / "image.tar"
    below = {name: elf() for name in ("a/b/x.so", "a/y.so", "ab/z.so", "c/w.so")}
    oci(path, [below, {"a": None, "ab/new.so": elf()}])
    assert [item.name for item in audit_path(path).files] == ["ab/new.so", "ab/z.so", "c/w.so"]
    oci(path, [below, {"a/.wh..wh..opq": b"", "a/own.so": elf()}])
    assert [item.name for item in audit_path(path).files] == ["a/own.so", "ab/z.so", "c/w.so"]
    oci(path, [below, {"a": b"a file in the folder's place"}])
    assert [item.name for item in audit_path(path).files] == ["ab/z.so", "c/w.so"]


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress], ids=["gzip", "zstd"])
def test_layers_that_unpack_to_far_more_than_they_hold_are_refused(tmp_path, compress):
    path = tmp_path / "image.tar"
    oci(path, [{"zeros": bytes(300 << 20)}], compress=compress)
    broken(path, "look like a bomb")


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress], ids=["gzip", "zstd"])
def test_damaged_layers_are_reported(tmp_path, elf, compress):
    path = tmp_path / "image.tar"
    oci(path, [{"usr/a.so": elf()}], compress=lambda data: compress(data)[:60])
    broken(path, "OCI")
    whole = compress(bytes(range(256)) * 8)
    oci(path, [{"usr/a.so": elf()}], compress=lambda data: compress(data)[:40] + whole)
    assert not audit_path(path).ok


def test_a_whiteout_for_every_file_does_not_take_for_ever(tmp_path):
    """Whiteouts times files would be 25 million comparisons."""
    path = tmp_path / "image.tar"
    names = [f"usr/{number}" for number in range(5_000)]
    oci(path, [dict.fromkeys(names, b""), dict.fromkeys(names)])
    report = audit_path(path)
    assert report.files == ()
    assert report.parts == {}


def test_a_folder_is_walked_however_deep_it_is(tmp_path, elf, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(1200):
        os.mkdir("d")  # noqa: PTH102 - of 1200 folders in one another
        os.chdir("d")
    Path("x.so").write_bytes(elf())
    os.mkfifo("pipe")
    Path("loop").symlink_to("..")
    try:
        assert [item.name for item in audit_path(tmp_path).files] == ["d/" * 1200 + "x.so"]
    finally:
        subprocess.run(["rm", "-r", tmp_path / "d"], check=True)  # which pytest cannot


def test_folder_without_elf_files_is_said_to_be_one(tmp_path):
    (tmp_path / "note.txt").write_text("no ELF")
    report = audit_path(tmp_path)
    assert report.ok
    assert report.warnings == ("no ELF file in it",)


def test_nothing_in_the_input_can_break_a_line_or_a_terminal(wheel, elf, tmp_path):
    evil = "x\x1b[2J\n\u2028\u202e\u2066y"
    path = wheel({f"demo/{evil}.so": elf([(evil, ".text", [0x4E829420, RET])], stack_flags=7)})
    report = audit_path(path, floor="armv8-a")
    lines = list(describe(report))
    assert any("x [2J y" in line for line in lines)
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("member", "content", "word"),
    [
        ("RECORD", b"\n" * (40 << 20), "RECORD is not readable"),
        ("RECORD", b"," * (40 << 20), "RECORD is not readable"),
        ("METADATA", b"Name: demo\nVersion: " + b"1" * 5000, "says version 1.0, METADATA says 1111"),
        ("METADATA", b"Name: " + b"-_." * (1 << 20), "says demo, METADATA says -_."),
    ],
    ids=["rows", "columns", "digits", "name"],
)
def test_texts_of_a_wheel_cost_little(wheel, elf, member, content, word):
    path = wheel({"demo/x.so": elf()})
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, old in members.items():
            archive.writestr(name, content if name.endswith(member) else old)
    start = time.process_time()
    broken(path, word)
    assert time.process_time() - start < 5
    assert all(len(error) < 3000 for error in audit_path(path).errors)
