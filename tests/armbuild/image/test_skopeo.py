"""Other people's eyes: skopeo reads what we write, and carries it into a registry."""

import json
import subprocess
from types import SimpleNamespace

import pytest
from tests.armbuild.image import registry, small

from armbuild.errors import MissingError
from armbuild.image import archive, base, engines, reader

LABELS = {"armllm.kernels": "neon,sve", "org.opencontainers.image.version": "1"}


@pytest.fixture(autouse=True)
def skopeo(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # nobody's credentials


@pytest.fixture
def image(tmp_path):
    """An archive for two platforms: (path, what was written)."""
    made = [small.layer(tmp_path, {"a": "1"}, name="one"), small.layer(tmp_path, {"b": "2"}, name="two")]
    images = [small.image(made, architecture=name, Labels=LABELS) for name in ("arm64", "amd64")]
    written = archive.write(images, tmp_path / "image.tar", name="localhost/small:1")
    return written, [layer.digest for layer in made]


def inspect(name, *options, raw=False):
    command = ["skopeo", *options, "inspect", *(["--raw"] if raw else []), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("architecture", ["arm64", "amd64"])
def test_layers_and_labels_of_each_platform_are_read(image, architecture):
    written, layers = image
    said = inspect(f"oci-archive:{written.path}", "--override-arch", architecture)
    assert said["Architecture"] == architecture
    assert said["Labels"] == LABELS
    assert said["Layers"] == layers
    assert said["Digest"] == written.digest


def test_the_same_file_is_a_docker_archive(image):
    said = inspect(f"docker-archive:{image[0].path}")
    assert (said["Architecture"], said["Labels"]) == ("arm64", LABELS)


def test_a_push_brings_every_platform_into_the_registry_as_it_is_and_a_base_comes_back(tmp_path, monkeypatch):
    with registry.serve(tmp_path, monkeypatch) as address:
        tag = f"{address}/team/small:1"
        made = [small.layer(tmp_path, {"a": "1"}, name="1"), small.layer(tmp_path, {"b": "2"}, name="2")]
        images = [small.image(made, architecture=name, Labels=LABELS) for name in ("arm64", "amd64")]
        written = archive.write(images, tmp_path / "several.tar", name=tag)
        engines.push(SimpleNamespace(builder="oci", output=written.path, tag=tag), tmp_path)
        index = inspect(f"docker://{tag}", raw=True)
        assert {item["digest"] for item in index["manifests"]} == set(written.manifests.values())
        for name in ("arm64", "amd64"):
            said = inspect(f"docker://{tag}", "--override-arch", name)
            assert (said["Architecture"], said["Labels"]) == (name, LABELS)
            assert said["Digest"] == written.digest
            assert said["Layers"] == [layer.digest for layer in made]
        fetched = base.fetch(tag, "arm64", tmp_path, tmp_path / "log")
    with reader.open_image(fetched) as image:
        assert image.manifest("arm64").digest == written.manifests["arm64"]


def test_a_base_that_its_registry_has_not_is_an_error_of_two_lines(tmp_path, monkeypatch):
    with (
        registry.serve(tmp_path, monkeypatch) as address,
        pytest.raises(MissingError, match=r"(manifest|name) unknown") as caught,
    ):
        base.fetch(f"{address}/team/none:1", "arm64", tmp_path, tmp_path / "log")
    assert len(str(caught.value).splitlines()) == 2
    assert "a local archive or OCI layout needs no registry" in str(caught.value)
    assert 'msg="' not in str(caught.value), "the form of skopeo's logs"


def test_a_registry_that_does_not_answer_is_an_error_of_two_lines(tmp_path):
    tag = "127.0.0.1:9/team/small:1"
    made = [small.layer(tmp_path, {"c": ""})]
    images = [small.image(made, architecture=name) for name in ("arm64", "amd64")]
    written = archive.write(images, tmp_path / "x.tar", name=tag)
    with pytest.raises(MissingError, match=r"--push 127\.0\.0\.1:9/team/small:1 failed: .*refused") as caught:
        engines.push(SimpleNamespace(builder="oci", output=written.path, tag=tag), tmp_path)
    assert len(str(caught.value).splitlines()) == 2
