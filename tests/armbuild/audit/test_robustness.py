# ruff: noqa: S311 - seeded, so that a failure comes back
"""Broken and hostile input: always a report or a sentence, never a traceback, within bounded memory."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import tarfile
import zipfile

import pytest

from armbuild.audit import audit
from armbuild.errors import UsageError

NAME = "demo-1.0-cp311-cp311-manylinux_2_28_aarch64.whl"
RET = 0xD65F03C0


def broken(path, word):
    report = audit(path)
    assert not report.ok
    assert any(word in error for error in report.errors), report.errors
    assert all(len(error.splitlines()) == 1 for error in report.errors)
    json.dumps(report.as_dict())


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
    report = audit(path)
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


@pytest.mark.parametrize("name", ["../evil.py", "/etc/passwd", "demo/../../evil", "demo\\..\\evil", "c:evil"])
def test_names_that_lead_out_are_refused(wheel, name):
    broken(wheel({name: b"x"}), "leads out of the folder")


def test_symbolic_links_and_doubles_are_found(tmp_path):
    path = tmp_path / NAME
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("demo/link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("demo/a", "1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("demo/a", "2")
    report = audit(path)
    assert any("symbolic link" in error for error in report.errors)
    assert any("more than once" in error for error in report.errors)


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
        report = audit(path, floor="armv8-a")
        json.dumps(report.as_dict())
        assert all(len(error.splitlines()) == 1 for error in report.errors)


def test_mutated_wheels_never_raise(wheel, elf):
    random.seed(8)
    path = wheel({"demo/x.cpython-311-aarch64-linux-gnu.so": elf()})
    whole = path.read_bytes()
    for _ in range(200):
        content = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            content[random.randrange(len(content))] = random.randrange(256)
        path.write_bytes(content)
        json.dumps(audit(path).as_dict())


def test_folders_and_lone_files(tmp_path, elf):
    folder = tmp_path / "folder"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "a.so").write_bytes(elf([("f", ".text", [0x4E829420, RET])]))
    (folder / "note.txt").write_text("no ELF")
    report = audit(folder, floor="neoverse-n1")
    assert report.ok
    assert [item.name for item in report.files] == ["lib/a.so"]
    assert not audit(folder, floor="cortex-a72").ok
    assert audit(folder / "lib" / "a.so", floor="neoverse-n1").ok
    with pytest.raises(UsageError, match="not a wheel"):
        audit(folder / "note.txt")


def oci(path, layers, *, index=None):
    """Write an OCI archive whose layers are {name: content} in order; None hides a file."""
    blobs = {}
    digests = []
    for layer in layers:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, content in layer.items():
                folder, _, base = name.rpartition("/")
                entry = tarfile.TarInfo(name if content is not None else f"{folder}/.wh.{base}")
                entry.size = len(content or b"")
                tar.addfile(entry, io.BytesIO(content or b""))
        data = gzip.compress(buffer.getvalue())
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        digests.append({"digest": f"sha256:{digest}"})
    manifest = json.dumps({"layers": digests}).encode()
    digest = hashlib.sha256(manifest).hexdigest()
    blobs[f"blobs/sha256/{digest}"] = manifest
    blobs["index.json"] = index or json.dumps({"manifests": [{"digest": f"sha256:{digest}"}]}).encode()
    with tarfile.open(path, "w") as tar:
        for name, content in blobs.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def test_oci_archives_are_looked_into_layer_by_layer(tmp_path, elf):
    guilty, innocent = elf([("f", ".text", [0x4E829420, RET])]), elf()
    path = tmp_path / "image.tar"
    oci(path, [{"usr/lib/a.so": guilty, "usr/lib/b.so": innocent}])
    assert not audit(path, floor="armv8-a").ok
    oci(path, [{"usr/lib/a.so": guilty, "usr/lib/b.so": innocent}, {"usr/lib/a.so": None}])
    report = audit(path, floor="armv8-a")
    assert report.ok
    assert [item.name for item in report.files] == ["usr/lib/b.so"]
    oci(path, [{"usr/lib/a.so": guilty}, {"usr/lib/a.so": innocent}])
    assert audit(path, floor="armv8-a").ok


@pytest.mark.parametrize(
    "index", [b"{}", b"[]", b"nonsense", b'{"manifests": [{"digest": "sha256:0"}]}', b'{"manifests": []}']
)
def test_broken_oci_archives_are_reported(tmp_path, index):
    path = tmp_path / "image.tar"
    oci(path, [{}], index=index)
    report = audit(path)
    assert not report.ok
