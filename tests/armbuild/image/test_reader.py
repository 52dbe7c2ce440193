import dataclasses
import io
import json
import os
import tarfile

import pytest
from tests.armbuild.image import small

from armbuild import verify
from armbuild.artifact import limits, pieces
from armbuild.errors import CheckFailed, UsageError
from armbuild.image import archive, reader, unpack
from armbuild.image.documents import blob_name, digest_of


def test_each_platform_of_an_index_is_found(tmp_path):
    images = [
        small.image(
            [small.layer(tmp_path / name, {"file": name})], architecture=name, annotations={"for": name}
        )
        for name in ("arm64", "amd64")
    ]
    written = archive.write(images, tmp_path / "both.tar", name="localhost/x:1")
    assert set(written.manifests) == {"arm64", "amd64"}
    for name in ("arm64", "amd64"):
        root = tmp_path / f"root-{name}"
        root.mkdir()
        with reader.open_image(written.path) as image:
            manifest = image.manifest(name)
            unpack.into_folder(image, manifest, root)
        assert manifest.digest == written.manifests[name]
        assert (root / "file").read_text() == name
    with reader.open_image(written.path) as image, image.open(blob_name(written.digest)) as index:
        assert json.load(index)["annotations"] == {"title": "small"}, "what all platforms say"


def test_the_wrong_architecture_is_named(tmp_path):
    path = small.write(tmp_path, {"a": "1"})
    with (
        reader.open_image(path) as image,
        pytest.raises(UsageError, match=r"holds linux/arm64, not linux/amd64"),
    ):
        image.manifest("amd64")


def test_a_layout_folder_and_a_saved_image_are_read_too(tmp_path):
    path = small.write(tmp_path, {"a": "1"})
    with tarfile.open(path) as tar:
        tar.extractall(tmp_path / "layout", filter="data")
    saved = tmp_path / "saved.tar"  # as `docker save` wrote before version 25: no index.json
    with tarfile.open(path) as tar, tarfile.open(saved, "w") as out:
        for member in tar:
            if member.name not in ("index.json", "oci-layout"):
                out.addfile(member, tar.extractfile(member) if member.isfile() else None)
    for number, place in enumerate((tmp_path / "layout", saved)):
        root = tmp_path / f"root{number}"
        root.mkdir()
        with reader.open_image(place) as image:
            unpack.into_folder(image, image.manifest("arm64"), root)
        assert (root / "a").read_text() == "1"


@pytest.mark.parametrize("name", ["nothing.tar", "empty.tar", "text.tar", "folder"])
def test_what_is_no_image_is_refused_in_a_line(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.tar").write_text("not a tar")
    with tarfile.open(tmp_path / "empty.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("hello"), io.BytesIO())
    with pytest.raises(UsageError, match=name) as caught, reader.open_image(tmp_path / name):
        pass
    assert "\n" not in str(caught.value)


def test_images_of_the_same_layers_cost_no_more_than_one_may(tmp_path, monkeypatch):
    """An archive of a few bytes would be unpacked once for each image that it names."""
    path = small.write(tmp_path, {"zeros": bytes(1 << 20)})
    with tarfile.open(path) as tar:
        tar.extractall(tmp_path / "layout", filter="data")
    index = tmp_path / "layout/index.json"
    document = json.loads(index.read_text())
    monkeypatch.setattr(limits, "_RATIO_MATTERS_ABOVE", 4 << 20)
    for count, refused in ((2, False), (10, True)):
        index.write_text(json.dumps({**document, "manifests": document["manifests"] * count}))
        checks = verify.check(tmp_path / "layout")
        assert any("like a bomb" in check.text for check in checks) is refused


@pytest.mark.parametrize("kind", ["pipe", "device", "outside"])
def test_a_layout_in_a_folder_has_files_alone(tmp_path, kind):
    """A pipe would never answer, a device never end, and a link would read what is not the image's."""
    place = small.layout(tmp_path / "layout", 1)
    (tmp_path / "outside").write_text("of the machine")
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero" if kind == "device" else "../../../outside")
    with reader.open_image(tmp_path / "layout") as image:
        (manifest,) = image.manifests()
        with pytest.raises(CheckFailed, match="is missing"):
            image.verify(manifest.layers[0])


@pytest.mark.parametrize("name", ["index.json", "./index.json", "/index.json", "a/../index.json"])
def test_two_files_with_one_name_are_refused(tmp_path, name):
    """Docker takes the last one, skopeo the first."""
    path = small.write(tmp_path, {"a": "1"})
    with tarfile.open(path, "a") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = 2
        tar.addfile(entry, io.BytesIO(b"{}"))
    with pytest.raises(CheckFailed, match=r"two files with the name 'index\.json'"):
        reader.open_image(path)


def test_an_archive_of_many_files_is_refused(tmp_path, monkeypatch):
    """Catches a tar of 200,000 empty files beside the layers, each of which is kept."""
    path = small.write(tmp_path, {"a": "1"})
    with tarfile.open(path) as tar:
        files = len(tar.getmembers())
    monkeypatch.setattr(reader, "_MAX_BLOBS", files)
    reader.open_image(path).__exit__()
    monkeypatch.setattr(reader, "_MAX_BLOBS", files - 1)
    with pytest.raises(CheckFailed, match=f"more than {files - 1} files"):
        reader.open_image(path)


def packed(path, *more):
    """Compress an archive, its files in another order and ``more`` empty space at the beginning."""
    with tarfile.open(path) as plain, tarfile.open(path.with_suffix(".tar.gz"), "w:gz") as tar:
        for number, size in enumerate(more):
            entry = tarfile.TarInfo(f"space{number}")
            entry.size = size
            tar.addfile(entry, io.BytesIO(bytes(size)))
        for member in reversed([item for item in plain if item.isfile()]):
            tar.addfile(member, plain.extractfile(member))
    return path.with_suffix(".tar.gz")


def test_a_compressed_archive_is_unpacked_once(tmp_path, monkeypatch):
    """Each file before the one that was read last would unpack the whole again."""
    path = packed(small.write(tmp_path, *({f"file{number}": "1"} for number in range(12))), 8 << 20)
    given = []
    readinto = pieces.Pieces.readinto
    monkeypatch.setattr(
        pieces.Pieces, "readinto", lambda self, buffer: given.append(size := readinto(self, buffer)) or size
    )
    (root := tmp_path / "root").mkdir()
    with reader.open_image(path) as image:
        unpack.into_folder(image, image.manifest("arm64"), root)
    assert len(list(root.iterdir())) == 12
    assert sum(given) < 9 << 20


@pytest.mark.parametrize("kind", ["bz2", "xz"])
def test_an_archive_in_another_compression_is_refused(tmp_path, kind):
    """It would be unpacked again for each file; neither docker nor skopeo writes one."""
    path = small.write(tmp_path, {"a": "1"})
    with tarfile.open(path.with_suffix(f".{kind}"), f"w:{kind}") as tar:
        tar.add(path, "index.json")
    with pytest.raises(UsageError, match="plain or compressed with gzip"):
        reader.open_image(path.with_suffix(f".{kind}"))


def test_a_small_archive_of_many_images_is_not_unpacked_for_each(tmp_path):
    layer = small.layer(tmp_path, {"a": "1"})
    images = [small.image([layer], Env=[f"A={number}"]) for number in range(60)]
    path = packed(archive.write(images, tmp_path / "many.tar", name="localhost/x:1").path, 64 << 20)
    with reader.open_image(path) as image, pytest.raises(CheckFailed, match="looks like a bomb"):
        image.budget(images=len(image.manifests()))


def test_what_unpacks_to_nothing_counts_too(tmp_path):
    """A header of gzip may be as long as it likes, and a layer be named 1000 times."""
    layer = small.layer(tmp_path, {"a": "1"})
    content = layer.blob.read_bytes()
    layer.blob.write_bytes(b"\x1f\x8b\x08\x08\0\0\0\0\0\xff" + b"n" * 100_000 + b"\0" + content[10:])
    digest = digest_of(io.BytesIO(layer.blob.read_bytes()))
    layer = dataclasses.replace(layer, digest=digest, size=layer.blob.stat().st_size)
    path = archive.write([small.image([layer])], tmp_path / "x.tar", name="localhost/x:1").path
    with reader.open_image(path) as image:
        (found,) = image.manifest("arm64").layers
        budget = image.budget()
        assert len(list(image.entries(found, budget))) == 1
        assert budget.total > 80_000
