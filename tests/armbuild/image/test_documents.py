"""What an image says of itself: documents that make sense, and that a runtime reads as we do."""

import hashlib
import io
import json
import tarfile

import pytest
from tests.armbuild.image import small

from armbuild.errors import CheckFailed
from armbuild.image import archive, documents, reader


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
    listed = json.loads((tmp_path / "layout/manifest.json").read_text())
    with reader.open_image(tmp_path / "layout") as opened:
        assert len(opened.manifests()) == 1
    for name, other in (("Config", "blobs/sha256/other"), ("Layers", listed[0]["Layers"][:1])):
        changed = [{**listed[0], name: other}]
        (tmp_path / "layout/manifest.json").write_text(json.dumps(changed))
        with (
            reader.open_image(tmp_path / "layout") as opened,
            pytest.raises(CheckFailed, match=r"names another image than index\.json"),
        ):
            opened.manifests()


@pytest.mark.parametrize(
    ("layers", "count"), [(1001, 1), (60_000, 90), (1, 101)], ids=["layers", "documents", "images"]
)
def test_more_than_any_image_has_is_refused(tmp_path, layers, count):
    small.layout(tmp_path, layers, count)
    with reader.open_image(tmp_path) as image, pytest.raises(CheckFailed, match="refused: "):
        image.manifests()


def test_no_image_hides_behind_manifests_that_nobody_reads(tmp_path):
    """A runtime takes the entry for its platform, wherever that stands in the index."""
    small.layout(tmp_path, 1)
    path = tmp_path / "index.json"
    (manifest,) = json.loads(path.read_text())["manifests"]
    nothing = b"{}"
    digest = hashlib.sha256(nothing).hexdigest()
    (tmp_path / "blobs/sha256" / digest).write_bytes(nothing)
    nothings = [{"digest": f"sha256:{digest}"}] * 100
    path.write_text(json.dumps({"manifests": [manifest, *nothings, manifest]}))
    with reader.open_image(tmp_path) as image, pytest.raises(CheckFailed, match="more than 100 manifests"):
        image.manifests()


def test_a_saved_archive_of_many_images_is_refused(tmp_path):
    (tmp_path / "config").write_text(json.dumps({"rootfs": {"diff_ids": []}}))
    (tmp_path / "manifest.json").write_text(json.dumps([{"Config": "config", "Layers": []}] * 101))
    path = tmp_path / "image.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(tmp_path / "config", "config")
        tar.add(tmp_path / "manifest.json", "manifest.json")
    with reader.open_image(path) as image, pytest.raises(CheckFailed, match="101 images, more than 100"):
        image.manifests()


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
        return json.loads((layout / documents.blob_name(digest)).read_text())

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
    "another kind": lambda _index, entry, _manifest: entry.update(mediaType=documents.INDEXES[1]),
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


def test_an_image_for_old_dockers_is_refused_beside_another(tmp_path):
    layout = rewritten(tmp_path, lambda *_: None)
    (layout / "repositories").write_text("{}")
    with reader.open_image(layout) as image, pytest.raises(CheckFailed, match="other images for old dockers"):
        image.manifests()
