"""containerd takes what we write: `ctr images import`, with a daemon of its own that ends with the test."""

import subprocess

import pytest
from tests.armbuild.image import containers, daemons, small

from armbuild.image import archive

SETTINGS = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{folder}/socket"
"""


@pytest.fixture
def containerd():
    """What asks the daemon: a function from words of `ctr` to what it says."""
    with containers.daemon_folder("containerd") as folder:
        (settings := folder / "config.toml").write_text(SETTINGS.format(folder=folder))

        def ask(*words):
            command = ["ctr", "--address", f"{folder}/socket", *map(str, words)]
            return subprocess.run(command, capture_output=True, text=True, check=False)

        command = ["containerd", "--config", settings]
        with daemons.running(command, folder / "log", lambda: ask("version").returncode == 0):
            yield ask


@pytest.mark.parametrize("architectures", [("arm64",), ("arm64", "amd64")])
def test_an_archive_is_imported_by_its_name_and_digest_and_unpacked(containerd, tmp_path, architectures):
    made = [small.layer(tmp_path, {"a": "1"}, name="1"), small.layer(tmp_path, {"b": "2"}, name="2")]
    images = [small.image(made, architecture=name) for name in architectures]
    name = "registry.example/small:1"
    written = archive.write(images, tmp_path / "image.tar", name=name)
    platform = ("--platform", "linux/arm64", "--snapshotter", "native")
    done = containerd("images", "import", *platform, written.path)
    assert done.returncode == 0, done.stderr
    listed = containerd("images", "list").stdout
    assert f"{name} " in listed
    assert written.digest in listed
    (tmp_path / "there").mkdir()
    mounted = containerd("images", "mount", *platform, name, tmp_path / "there")
    assert mounted.returncode == 0, mounted.stderr
    try:
        assert [(tmp_path / "there" / file).read_text() for file in ("a", "b")] == ["1", "2"]
    finally:
        containerd("images", "unmount", tmp_path / "there")
