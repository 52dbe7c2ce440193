"""A base that others made: Debian's next release by mmdebstrap, as an OCI layout by umoci."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from armbuild.image import reader
from armbuild.target import debian

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.emulated]
# Kernels take most of the time of a build, and other tests build all of them.
FEWER_KERNELS = [f"--no-{target}" for target in ("bf16", "dotprod", "fhm", "i8mm", "sve", "sve512")]
VARIABLES = ("PATH=/usr/local/bin:/usr/bin:/bin", "OWN=stays")


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[0]}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def trixie(tmp_path_factory):
    """An OCI layout of Debian trixie for arm64 with its Python, 3.13, and without the engine's libraries."""
    folder = tmp_path_factory.mktemp("trixie")
    source = debian.archive()
    tree, layout = folder / "tree", folder / "layout"
    run(
        "mmdebstrap", "--mode=root" if not os.getuid() else "--mode=unshare", "--variant=extract",
        "--architectures=arm64", "--include=python3,base-files,ca-certificates,libc6,dpkg",
        *([f"--keyring={source.signed_by}"] if Path(source.signed_by).is_file() else []),
        "trixie", tree, source.uri,
    )  # fmt: skip
    run("umoci", "init", "--layout", layout)
    run("umoci", "new", "--image", f"{layout}:latest")
    run("umoci", "insert", "--rootless", "--image", f"{layout}:latest", tree, "/")
    variables = [f"--config.env={item}" for item in VARIABLES]
    run("umoci", "config", f"--image={layout}:latest", "--architecture=arm64", "--os=linux", *variables)
    return layout


def test_an_image_on_another_release_keeps_its_layers_and_serves(trixie, tmp_path):
    output = tmp_path / "armllm.tar"
    command = [sys.executable, "-m", "armbuild"]
    made = run(
        *command,
        "docker",
        ROOT,
        *FEWER_KERNELS,
        "--python=3.13",
        "--base",
        trixie,
        "--output",
        output,
        "--json",
    )
    labels = json.loads(made)["platforms"]["linux/arm64"]["labels"]
    with reader.open_image(trixie) as image:
        below = image.manifest("arm64")
    with reader.open_image(output) as image:
        manifest = image.manifest("arm64")
    assert [layer.digest for layer in manifest.layers][: len(below.layers)] == [
        layer.digest for layer in below.layers
    ]
    assert labels["org.opencontainers.image.base.digest"] == below.digest
    assert labels["armllm.kernels"] == "neon,scalar"
    assert "OWN=stays" in manifest.config["config"]["Env"]
    smoked = json.loads(run(*command, "smoke", output, "--cpu=neoverse-n1", "--json"))
    (result,) = smoked["results"]
    assert result["passed"], result
    assert any("user 10001:10001, root file system read-only, tcmalloc" in line for line in result["said"])
