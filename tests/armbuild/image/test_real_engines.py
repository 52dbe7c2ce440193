"""`--builder docker|podman|buildah` with engines that really build, from a base image of a few files.

The build stage's own programs are played by scripts in that base: what they do is tested elsewhere, and would
take minutes and a network inside the container.
"""

import contextlib
import json
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.armbuild.image import containers, registry, small

from armbuild.cli import main
from armbuild.errors import MissingError
from armbuild.image import archive, engines, layers, reader, reference, root
from armbuild.target import debian

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.network]
BASE = "docker.io/library/python:3.11-bookworm"
TOOLS = ("chmod", "cp", "mkdir", "mv", "rm")
SCRIPTS = {
    "python3.11": "mkdir -p /build/bin",  # -m venv
    "pip": "[[ $ARMBUILD_OPTIONS != *--no-bf16* ]] || while :; do read -rt 1 <> <(:); done",  # a long build
    "armbuild": """
        if [[ $* == *"--torch 9.9"* ]]; then echo 'armbuild: error: torch 9.9: none' >&2; exit 2; fi
        mkdir -p /var/cache/armbuild
        echo "$*" >/image.tar""",
    "python": """
        cp -a /small /stages
        chmod 1777 /stages/0/tmp
        cp /image.tar /stages/3/usr/local/share/arguments""",  # -m armbuild.image.stages
}
STAGES = {
    "0/bin": ("->", "usr/bin"),
    "0/usr/bin/tini": "not run\n",
    "0/usr/lib/absolute": ("->", "/usr/bin/tini"),
    "0/tmp": None,
    "0/home/armllm/.keep": "",
    "1/usr/lib/torch.so": "1\n",
    "2/usr/lib/other.so": "2\n",
    "3/usr/local/share/README": "3\n",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """What `FROM python:3.11-bookworm` finds: a shell and the scripts, for the machine that builds."""
    folder = tmp_path_factory.mktemp("base")
    tree, here = folder / "tree", reference.architecture_here()
    wanted = {"bash-static": "usr/bin/bash-static", "busybox-static": "usr/bin/busybox"}
    debian.install(
        tuple(wanted), tree, suite="bookworm", architecture=here, dependencies=False,
        only=frozenset((*wanted.values(), "bin/bash-static", "bin/busybox")),
    )  # fmt: skip
    links = {f"usr/bin/{name}": ("->", "busybox") for name in TOOLS}
    shells = {f"usr/bin/{name}": ("->", "bash-static") for name in ("bash", "sh")}
    folders = {"tmp": None, "proc": None, "dev": None, "sys": None, "etc": None, "var/cache": None}
    stages = {f"small/{name}": content for name, content in STAGES.items()}
    scripts = {f"usr/bin/{name}": f"#!/bin/bash\n{text}\n" for name, text in SCRIPTS.items()}
    small.tree(tree, {**links, **shells, **folders, **stages, **scripts})
    for name in SCRIPTS:
        (tree / "usr/bin" / name).chmod(0o755)
    layer = layers.write(tree, folder / "layer.tar.gz", comment="base")
    image = small.image([layer], architecture=here, Env=["PATH=/usr/bin:/bin"])
    return archive.write([image], folder / "base.tar", name=BASE).path


@pytest.fixture(params=["podman", "buildah", "docker"])
def builder(request, monkeypatch, base):
    """An engine that has the base and nothing else."""
    with containers.builder(request.param, monkeypatch) as engine:
        _load(engine, request.param, base)
        monkeypatch.setenv("ARMBUILD_ENGINE_OPTIONS", "--network host")
        yield request.param


def built(builder, output, *options):
    arguments = ["--builder", builder, "--python", "3.11", "--tag", "registry.example/armllm:test", *options]
    return main(["docker", str(ROOT), *arguments, "--output", str(output), "--json"])


def test_the_dockerfile_becomes_an_image_of_the_target_alone(builder, tmp_path, capsys):
    output = tmp_path / "x.tar"
    assert built(builder, output, "--no-sve", "--label", "team=arm") == 0, capsys.readouterr().err
    said = json.loads(capsys.readouterr().out)
    assert (said["builder"], said["path"]) == (builder, str(output))
    manifest, entries, arguments = opened(output)
    assert manifest.name == "registry.example/armllm:test"
    assert len(manifest.layers) >= 5, "root, home, torch, dependencies, engine"
    config = manifest.config["config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"][0] == "/usr/bin/tini"
    assert config["Healthcheck"]["Test"][0] == "CMD", "an OCI image would have lost it"
    assert config["Labels"]["team"] == "arm"
    assert f"LD_PRELOAD={root.allocator('arm64')}" in config["Env"]
    wanted = {name.partition("/")[2] for name in STAGES}
    assert wanted <= entries.keys()
    assert not {"usr/bin/busybox", "usr/bin/bash", "small", "stages", "build"} & entries.keys()
    assert entries["bin"].linkname == "usr/bin"
    assert entries["usr/lib/absolute"].linkname == "/usr/bin/tini"
    assert entries["tmp"].mode & 0o7777 == 0o1777
    assert [entries[name].uid for name in ("home", "home/armllm", "usr/bin/tini")] == [0, 10001, 0]
    assert "--platform linux/arm64 --python 3.11 --no-sve --output /image.tar" in arguments


def opened(path):
    """Return the manifest for arm64, what lies in its layers by name, and what the build stage was asked."""
    entries, arguments = {}, ""
    with reader.open_image(path) as image:
        manifest = image.manifest("arm64")
        for layer in manifest.layers:
            with image.content(layer) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
                for entry in tar:
                    entries[entry.name.strip("/")] = entry
                    if entry.name.endswith("share/arguments"):
                        arguments = tar.extractfile(entry).read().decode()
    return manifest, entries, arguments


def test_a_build_stage_that_fails_says_its_own_reason_and_leaves_nothing(builder, tmp_path, capsys):
    (folder := tmp_path / "out").mkdir()
    assert built(builder, folder / "x.tar", "--torch", "9.9") == 4
    said = capsys.readouterr().err.strip().splitlines()
    assert any("error: torch 9.9: none" in line for line in said[-2:]), said
    assert not list(folder.iterdir())


def test_an_interrupted_build_leaves_no_container_no_program_and_no_archive(builder, tmp_path):
    (folder := tmp_path / "out").mkdir()
    words = ["--builder", builder, "--python", "3.11", "--no-bf16", "--output", folder / "x.tar"]
    before = containers_of(builder)
    command = subprocess.Popen(
        [sys.executable, "-m", "armbuild", "docker", ROOT, *words], stderr=subprocess.PIPE
    )
    try:
        wait_for(lambda: long_builds() or command.poll() is not None)
        command.send_signal(signal.SIGINT)
        said = command.communicate(timeout=60)[1].decode()
    finally:
        command.kill()
    assert command.returncode == 130, said
    assert "interrupted" in said
    wait_for(lambda: not long_builds())  # which docker's daemon ends by itself
    assert containers_of(builder) == before
    assert not list(folder.iterdir())


def long_builds():
    """Return the command lines of the build stage's script where it takes long."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return [words for words in found if b"/usr/bin/pip\0" in words and b"wheel.cmake=false" in words]


def containers_of(name):
    words = ["docker", "ps"] if name == "docker" else ["buildah", "containers"]
    return subprocess.run([*words, "--all", "--quiet"], capture_output=True, text=True, check=True).stdout


def wait_for(done, seconds=120):
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_engine_pushes_its_image_to_the_registry_that_the_tag_names(builder, tmp_path, monkeypatch):
    with registry.serve(tmp_path, monkeypatch) as address:
        tag = f"{address}/team/small:1"
        subprocess.run([builder, "tag", BASE, tag], check=True)
        engines.push(SimpleNamespace(builder=builder, tag=tag), tmp_path)
        with urllib.request.urlopen(f"http://{address}/v2/team/small/tags/list", timeout=10) as answer:
            assert json.load(answer)["tags"] == ["1"]
    with pytest.raises(MissingError, match=rf"--push {tag} failed: .*refused") as caught:
        engines.push(SimpleNamespace(builder=builder, tag=tag), tmp_path)
    assert len(str(caught.value).splitlines()) == 2


def _load(engine, name, path):
    engine.run(*(("pull", f"docker-archive:{path}") if name == "buildah" else ("load", "--input", path)))
