import errno
import hashlib
import io
import json
import multiprocessing
import os
import signal
import tarfile
import tempfile
from pathlib import Path

import pytest
from tests.armbuild.image import small

from armbuild import verify
from armbuild.artifact import limits
from armbuild.errors import CheckFailed, UsageError
from armbuild.image import archive, reader, unpack


def test_an_archive_is_an_oci_layout_and_what_docker_load_reads(tmp_path):
    path = small.write(tmp_path, {"a": "1"}, {"b": "2"}, User="1:1")
    with tarfile.open(path) as tar:
        documents = {
            name: json.load(tar.extractfile(name)) for name in ("oci-layout", "index.json", "manifest.json")
        }
        names = set(tar.getnames())
    (entry,) = documents["index.json"]["manifests"]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "localhost/small:1"
    (saved,) = documents["manifest.json"]
    assert saved["RepoTags"] == ["localhost/small:1"]
    assert {saved["Config"], *saved["Layers"]} <= names
    assert documents["oci-layout"] == {"imageLayoutVersion": "1.0.0"}


def test_equal_images_are_equal_files(tmp_path):
    one = small.write(tmp_path / "1", {"a": "1"})
    two = small.write(tmp_path / "2", {"a": "1"})
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes() != small.write(tmp_path / "3", {"a": "2"}).read_bytes()


@pytest.fixture(params=["O_TMPFILE", "hidden name"])
def folder(request, monkeypatch):
    """An output folder on a file system that has files without names, and on one that has not."""
    if request.param == "hidden name":
        opened = os.open

        def without(path, flags, mode=0o777, **options):
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "Operation not supported")
            return opened(path, flags, mode, **options)

        monkeypatch.setattr(archive.os, "open", without)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def test_an_archive_replaces_what_was_there_and_has_the_users_mode(tmp_path, folder):
    (folder / "image.tar").write_text("old")
    made = [small.layer(tmp_path, {"a": "1"}, name="layer0")]
    mask = os.umask(0o027)
    try:
        archive.write([small.image(made)], folder / "image.tar", name="localhost/small:1")
    finally:
        os.umask(mask)
    assert (folder / "image.tar").read_bytes() == small.write(tmp_path / "2", {"a": "1"}).read_bytes()
    assert (folder / "image.tar").stat().st_mode & 0o777 == 0o640
    assert [path.name for path in folder.iterdir()] == ["image.tar"]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, folder, monkeypatch):
    made = small.layer(tmp_path, {"a": "1"})

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archive.os, "fsync", fail)
    with pytest.raises(OSError, match=r"/x\.tar"):
        archive.write([small.image([made])], folder / "x.tar", name="localhost/x:1")
    assert not list(folder.iterdir())


@pytest.mark.parametrize("folder", ["O_TMPFILE"], indirect=True)
def test_a_write_that_is_killed_leaves_nothing_behind(tmp_path, folder, monkeypatch):
    made = small.layer(tmp_path, {"a": "1"})
    monkeypatch.setattr(archive.os, "fsync", lambda _file: os.kill(os.getpid(), signal.SIGKILL))
    writer = multiprocessing.get_context("fork").Process(
        target=archive.write,
        args=([small.image([made])], folder / "x.tar"),
        kwargs={"name": "localhost/x:1"},
    )
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    assert not list(folder.iterdir())


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
    with reader.open_image(written.path) as image, image.open(reader.blob_name(written.digest)) as index:
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


@pytest.mark.parametrize(
    "index", [b"{}", b"[]", b"no", b'{"manifests": [{}]}', b'{"manifests": [{"digest": "sha256:../../x"}]}']
)
def test_documents_that_make_no_sense_are_a_verdict_not_a_traceback(tmp_path, index):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        entry = tarfile.TarInfo("index.json")
        entry.size = len(index)
        tar.addfile(entry, io.BytesIO(index))
    with reader.open_image(tmp_path / "x.tar") as image, pytest.raises(CheckFailed):
        image.manifest("arm64")


def test_a_changed_configuration_is_noticed(tmp_path):
    path = small.write(tmp_path, {"a": "1"}, User="10001:10001")
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"User":"10001:10001"', b'"User":"00000:10001"'))
    with reader.open_image(path) as image, pytest.raises(CheckFailed, match="does not match its digest"):
        image.manifest("arm64")


@pytest.mark.parametrize("settings", [[1], {"Labels": [1]}, {"Labels": {"a": 5}}, {"Labels": {"a": ["x"]}}])
def test_a_configuration_that_makes_no_sense_is_a_verdict_not_a_traceback(tmp_path, settings):
    image = small.image([small.layer(tmp_path, {"a": "1"})])
    image.config["config"] = settings
    archive.write([image], tmp_path / "image.tar", name="localhost/small:1")
    with (
        reader.open_image(tmp_path / "image.tar") as opened,
        pytest.raises(CheckFailed, match="its documents make no sense"),
    ):
        opened.manifests()


@pytest.mark.parametrize("text", ["\ud800", "a\0b"])
@pytest.mark.parametrize("place", ["Env", "Entrypoint", "Cmd", "User", "Labels", "name of a label", "Test"])
def test_a_text_that_no_program_can_be_given_is_refused(tmp_path, monkeypatch, place, text):
    dump = json.dumps  # the archive's own would write no lone surrogate
    monkeypatch.setattr(archive.json, "dumps", lambda value, **_: dump(value))
    settings = {
        "User": text,
        "Labels": {"a": text},
        "name of a label": {text: "a"},
        "Test": {"Test": ["CMD", text]},
    }
    name = {"name of a label": "Labels", "Test": "Healthcheck"}.get(place, place)
    image = small.image([small.layer(tmp_path, {"a": "1"})], **{name: settings.get(place, [text])})
    archive.write([image], tmp_path / "image.tar", name="localhost/small:1")
    with (
        reader.open_image(tmp_path / "image.tar") as opened,
        pytest.raises(CheckFailed, match="no text that a program can be given"),
    ):
        opened.manifests()


@pytest.mark.parametrize("settings", [None, {}, {"Labels": None}])
def test_a_configuration_may_say_nothing(tmp_path, settings):
    image = small.image([small.layer(tmp_path, {"a": "1"})])
    image.config["config"] = settings
    archive.write([image], tmp_path / "image.tar", name="localhost/small:1")
    with reader.open_image(tmp_path / "image.tar") as opened:
        assert opened.manifest("arm64").config["config"] == {"Labels": {}}


def test_docker_is_not_given_another_image_than_the_rest(tmp_path):
    """docker load goes by manifest.json, which no digest covers; podman and skopeo by index.json."""
    with tarfile.open(small.write(tmp_path, {"a": "1"}, {"b": "2"})) as tar:
        tar.extractall(tmp_path / "layout", filter="data")
    documents = json.loads((tmp_path / "layout/manifest.json").read_text())
    with reader.open_image(tmp_path / "layout") as opened:
        assert len(opened.manifests()) == 1
    for name, other in (("Config", "blobs/sha256/other"), ("Layers", documents[0]["Layers"][:1])):
        changed = [{**documents[0], name: other}]
        (tmp_path / "layout/manifest.json").write_text(json.dumps(changed))
        with (
            reader.open_image(tmp_path / "layout") as opened,
            pytest.raises(CheckFailed, match=r"names another image than index\.json"),
        ):
            opened.manifests()


def layout(folder, layers, count=1):
    """A layout of ``count`` images of ``layers`` equal layers each."""
    (blobs := folder / "blobs/sha256").mkdir(parents=True)

    def blob(document):
        content = json.dumps(document).encode()
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}"}

    layer = f"sha256:{'1' * 64}"
    config = blob({"architecture": "arm64", "rootfs": {"diff_ids": [layer] * layers}})
    manifest = blob({"config": config, "layers": [{"digest": layer}] * layers})
    (folder / "index.json").write_text(json.dumps({"manifests": [manifest] * count}))
    return blobs / ("1" * 64)


@pytest.mark.parametrize(
    ("layers", "count"), [(1001, 1), (60_000, 90), (1, 101)], ids=["layers", "documents", "images"]
)
def test_more_than_any_image_has_is_refused(tmp_path, layers, count):
    layout(tmp_path, layers, count)
    with reader.open_image(tmp_path) as image, pytest.raises(CheckFailed, match="refused: "):
        image.manifests()


def test_no_image_hides_behind_manifests_that_nobody_reads(tmp_path):
    """A runtime takes the entry for its platform, wherever that stands in the index."""
    layout(tmp_path, 1)
    path = tmp_path / "index.json"
    (manifest,) = json.loads(path.read_text())["manifests"]
    nothing = b"{}"
    digest = hashlib.sha256(nothing).hexdigest()
    (tmp_path / "blobs/sha256" / digest).write_bytes(nothing)
    nothings = [{"digest": f"sha256:{digest}"}] * 100
    path.write_text(json.dumps({"manifests": [manifest, *nothings, manifest]}))
    with reader.open_image(tmp_path) as image, pytest.raises(CheckFailed, match="more than 100 manifests"):
        image.manifests()


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


def test_a_saved_archive_of_many_images_is_refused(tmp_path):
    (tmp_path / "config").write_text(json.dumps({"rootfs": {"diff_ids": []}}))
    (tmp_path / "manifest.json").write_text(json.dumps([{"Config": "config", "Layers": []}] * 101))
    path = tmp_path / "image.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(tmp_path / "config", "config")
        tar.add(tmp_path / "manifest.json", "manifest.json")
    with reader.open_image(path) as image, pytest.raises(CheckFailed, match="101 images, more than 100"):
        image.manifests()


@pytest.mark.parametrize("kind", ["pipe", "device", "outside"])
def test_a_layout_in_a_folder_has_files_alone(tmp_path, kind):
    """A pipe would never answer, a device never end, and a link would read what is not the image's."""
    place = layout(tmp_path / "layout", 1)
    (tmp_path / "outside").write_text("of the machine")
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero" if kind == "device" else "../../../outside")
    with reader.open_image(tmp_path / "layout") as image:
        (manifest,) = image.manifests()
        with pytest.raises(CheckFailed, match="is missing"):
            image.verify(manifest.layers[0])


@pytest.mark.parametrize(
    ("where", "value"),
    [("diff_ids", [{}]), ("architecture", []), ("RepoTags", [{}]), ("Layers", [["a"]])],
)
def test_a_saved_image_whose_documents_have_no_texts_is_refused(tmp_path, where, value):
    """A set of its layers, a column of its name: each took such a value for a text."""
    config = {"architecture": "arm64", "rootfs": {"diff_ids": ["sha256:" + "0" * 64]}}
    listed = {"Config": "config", "RepoTags": ["a:1"], "Layers": ["a"]}
    for document in (config, config["rootfs"], listed):
        document.update({where: value} if where in document else {})
    (tmp_path / "config").write_text(json.dumps(config))
    (tmp_path / "manifest.json").write_text(json.dumps([listed]))
    with tarfile.open(tmp_path / "image.tar", "w") as tar:
        for name in ("config", "manifest.json"):
            tar.add(tmp_path / name, name)
    with reader.open_image(tmp_path / "image.tar") as image, pytest.raises(CheckFailed, match="no text"):
        image.manifests()


def rewritten(tmp_path, change, *, config=None):
    """Return a layout whose index names a manifest (and its configuration) as ``change`` makes it."""
    layout = tmp_path / "layout"
    with tarfile.open(small.write(tmp_path, {"a": "1"}, User="1:1")) as tar:
        tar.extractall(layout, filter="data")
    (layout / "manifest.json").unlink()
    index = json.loads((layout / "index.json").read_text())

    def store(document):
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        digest = hashlib.sha256(content).hexdigest()
        (layout / "blobs/sha256" / digest).write_bytes(content)
        return f"sha256:{digest}"

    def load(digest):
        return json.loads((layout / reader.blob_name(digest)).read_text())

    entry = index["manifests"][0]
    manifest = load(entry["digest"])
    if config:
        manifest["config"]["digest"] = store(config(load(manifest["config"]["digest"])))
    made = change(index, entry, manifest)
    entry["digest"] = store(manifest if made is None else made)
    (layout / "index.json").write_text(json.dumps(index))
    return layout


def twice(name):
    """Return a change that has a name of the manifest twice; runtimes read the last one, or merge both."""
    return lambda _index, _entry, manifest: (
        json.dumps(manifest)[:-1] + f', "{name}": {json.dumps(manifest[name])}}}'
    ).encode()


CHANGES = {
    "an index and an image": lambda _index, _entry, manifest: manifest.update(manifests=[]),
    "another kind": lambda _index, entry, _manifest: entry.update(mediaType=reader.INDEXES[1]),
    "layers twice": twice("layers"),
    "layers twice, in capitals": lambda _index, _entry, manifest: manifest.update(Layers=[]),
    "another letter": lambda _index, _entry, manifest: manifest.update({"layer\u017f": []}),
    "a digest in capitals": lambda _index, _entry, manifest: manifest["layers"][0].update(Digest="x"),
    "manifests in capitals": lambda index, _entry, _manifest: index.update(Manifests=[]),
    "another architecture": lambda _index, entry, _manifest: entry.update(platform={"architecture": "amd64"}),
    "the first format": lambda _index, _entry, manifest: manifest.update(fsLayers=[]),
}
CONFIGS = {
    "an attestation of a platform": lambda config: config | {"architecture": "unknown"},
    "a user in capitals": lambda config: config | {"config": config["config"] | {"USER": "0:0"}},
    "a root in capitals": lambda config: {"Rootfs": config.pop("rootfs"), **config},
    "contents in capitals": lambda config: config | {"rootfs": config["rootfs"] | {"Diff_IDs": []}},
}


@pytest.mark.parametrize("what", [*CHANGES, *CONFIGS])
def test_an_image_that_runtimes_would_read_differently_is_refused(tmp_path, what):
    """Go takes names in any letters, and of two the last: docker would run what the audit never saw."""
    change = CHANGES.get(what, lambda _index, entry, _m: entry.update(platform={"architecture": "arm64"}))
    layout = rewritten(tmp_path, change, config=CONFIGS.get(what))
    with reader.open_image(layout) as image, pytest.raises(CheckFailed, match="make no sense"):
        image.manifests()


def test_what_a_runtime_reads_as_we_do_is_read(tmp_path):
    layout = rewritten(
        tmp_path,
        lambda _index, entry, _manifest: entry.update(platform={"architecture": "arm64", "os": "linux"}),
        config=lambda config: (
            config | {"config": {"Labels": {"Architecture": "x", "user": "y", "User": "z"}}}
        ),
    )
    with reader.open_image(layout) as image:
        assert len(image.manifests()) == 1


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


def test_an_image_for_old_dockers_is_refused_beside_another(tmp_path):
    layout = rewritten(tmp_path, lambda *_: None)
    (layout / "repositories").write_text("{}")
    with reader.open_image(layout) as image, pytest.raises(CheckFailed, match="other images for old dockers"):
        image.manifests()
