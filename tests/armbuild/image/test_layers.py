import gzip
import hashlib
import os
import random
import tarfile

import pytest
from tests.armbuild.image import small

from armbuild.image import layers


def test_the_same_files_give_the_same_bytes_wherever_and_whenever_they_were_made(tmp_path):
    files = {"usr/bin/tool": "x" * 1000, "etc/conf": "a=1\n", "lib": ("->", "usr/lib"), "empty": None}
    first = small.layer(tmp_path / "one", files)
    other = dict(reversed(files.items()))
    (tmp_path / "two").mkdir()
    content = small.tree(tmp_path / "two/other.tree", other)
    for path in content.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (1, 1))
    second = layers.write(content, tmp_path / "two/x", comment="")
    assert first.blob.read_bytes() == second.blob.read_bytes()
    assert first.digest == second.digest


def test_the_digests_are_those_of_the_file_and_of_the_tar_inside(tmp_path):
    made = small.layer(tmp_path, {"a": "b"})
    blob = made.blob.read_bytes()
    assert made.digest == f"sha256:{hashlib.sha256(blob).hexdigest()}"
    assert made.diff_id == f"sha256:{hashlib.sha256(gzip.decompress(blob)).hexdigest()}"
    assert made.size == len(blob)
    assert made.unpacked == len(gzip.decompress(blob))


@pytest.mark.parametrize("size", [0, 1, layers.CHUNK - 1, layers.CHUNK, 2 * layers.CHUNK + 12345])
def test_blocks_compressed_side_by_side_are_one_gzip_member(tmp_path, size, monkeypatch):
    words = [b"lorem ", b"ipsum ", b"dolor ", b"%d " % size]
    chosen = random.Random(size)  # noqa: S311 - text, not secrets
    content = b"".join(chosen.choices(words, k=size // 6 + 1))[:size]
    one = small.layer(tmp_path / "one", {"file": content})
    with gzip.open(one.blob) as stream, tarfile.open(fileobj=stream) as tar:
        assert tar.extractfile("file").read() == content
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3, 4})
    assert small.layer(tmp_path / "five", {"file": content}).digest == one.digest, "threads must not show"


def test_owners_times_and_modes_of_this_machine_stay_outside(tmp_path):
    content = small.tree(tmp_path / "tree", {"home/me/x": "", "bin/run": "", "tmp": None})
    (content / "bin/run").chmod(0o4777)
    (content / "home/me/x").chmod(0o600)
    (content / "tmp").chmod(0o1777)
    made = layers.write(content, tmp_path / "blob", comment="", owners={"home/me": 10001})
    with tarfile.open(made.blob) as tar:
        entries = {entry.name: entry for entry in tar}
    assert {name: entry.mode for name, entry in entries.items()} == {
        "bin": 0o755, "bin/run": 0o755, "home": 0o755, "home/me": 0o755, "home/me/x": 0o644, "tmp": 0o1777,
    }  # fmt: skip
    assert {entry.uid for entry in entries.values()} == {0, 10001}
    assert entries["home/me"].gid == 10001
    assert {entry.mtime for entry in entries.values()} == {layers.TIME}
    assert not any(entry.uname or entry.gname for entry in entries.values())


def test_a_model_is_not_compressed(tmp_path):
    made = small.layer(tmp_path, {"models/m/model.safetensors": "w" * 5000}, compress=False)
    assert made.media_type == layers.PLAIN
    assert made.digest == made.diff_id
    with tarfile.open(made.blob, "r:") as tar:
        assert tar.extractfile("models/m/model.safetensors").read() == b"w" * 5000
