"""Commands as a whole that are killed (SIGKILL): the next one ends as if nothing had been."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from tests.armbuild import wheels
from tests.armbuild.audit.conftest import build_info, make_elf
from tests.armbuild.cli import pure_project
from tests.armbuild.image import small

from armbuild.image import plan, root

pytestmark = pytest.mark.slow
MOMENTS = 5
TAG = "cp311-cp311-manylinux_2_28_aarch64"
BASE = {
    "bin": ("->", "usr/bin"),
    "lib": ("->", "usr/lib"),
    "usr/bin/python3.11": wheels.elf(),
    "usr/bin/tini": "",
    "usr/lib/python3.11/asyncio/__init__.py": "",
    "usr/lib/python3/dist-packages/README": "",
    "etc/os-release": "ID=debian\nVERSION_CODENAME=bookworm\n",
    "usr/lib/aarch64-linux-gnu/libc.so.6": "GNU C Library (GNU libc) stable release version 2.36.\n",
    "usr/lib/aarch64-linux-gnu/libstdc++.so.6": "",
    root.allocator("arm64").lstrip("/"): "",
}
"""An image that lacks nothing, so that no Debian archive is asked."""
NEEDS = "Requires-Dist: torch==2.10.0\nRequires-Dist: numpy\n"


def a_wheel_of(folder):
    """A project without build requirements."""
    pure_project.write(folder / "project")
    return SimpleNamespace(
        arguments=["wheel", folder / "project", "--lane=cross", "--output", folder / "output"],
        file=pure_project.WHEEL,
        made="builds",
    )


def an_image_of(folder):
    """An engine and a torch of a few files, on a base of a few files: no index is asked."""
    (folder / "index").mkdir(parents=True)
    for name, version in (("torch", "2.10.0"), ("numpy", "2.0.0")):
        files = {f"{name}/__init__.py": b"", f"{name}/data": name.encode() * (1 << 20)}
        wheels.write(folder / "index", f"{name}-{version}-{TAG}.whl", files)
    own = {
        plan.ENTRY_POINT: b"",
        "armllm/__init__.py": b"",
        "armllm/build_info.json": build_info(version="0.1.0", targets=[]),
        "armllm/_core.cpython-311-aarch64-linux-gnu.so": make_elf(),
        "thing/_core.cpython-311-aarch64-linux-gnu.so": None,
    }
    wheel = wheels.write(folder, f"armllm-0.1.0-{TAG}.whl", own, metadata=NEEDS)
    base = small.write(folder / "base", BASE, Env=["PATH=/usr/bin:/bin"])
    return SimpleNamespace(
        arguments=[
            "docker", "--wheel", wheel, "--base", base, "--torch-index", folder / "index",
            "--no-require-proof", "--output", folder / "output/x.tar",
        ],
        file="x.tar",
        made="layers",
    )  # fmt: skip


@pytest.mark.parametrize("work", [a_wheel_of, an_image_of])
def test_the_command_after_a_killed_one_makes_the_same_bytes(tmp_path, work):
    """Whatever the moment is, a file of the output is whole; nothing that was half done is used."""
    work = work(tmp_path)
    cache, output = tmp_path / "cache", tmp_path / "output"
    environment = os.environ | {
        "ARMBUILD_CACHE_DIR": str(cache), "SOURCE_DATE_EPOCH": "1700000000", "UV_NO_INDEX": "1", "CI": "",
    }  # fmt: skip
    command = [sys.executable, "-m", "armbuild", "-q", *map(str, work.arguments)]
    options = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}

    def digest():
        return hashlib.sha256((output / work.file).read_bytes()).hexdigest()

    def run():
        done = subprocess.run(command, **options, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return digest()

    start = time.monotonic()
    whole = run()
    seconds = time.monotonic() - start
    killed = 0
    for moment in range(1, MOMENTS + 1):
        shutil.rmtree(output)
        shutil.rmtree(cache / work.made)  # so that all is made again
        with subprocess.Popen(command, **options) as child:
            try:
                child.wait(seconds * moment / (MOMENTS + 1))
            except subprocess.TimeoutExpired:
                child.kill()
        killed += child.returncode == -signal.SIGKILL
        assert not (output / work.file).exists() or digest() == whole
        assert run() == whole, f"killed at {moment} of {MOMENTS + 1}"
        assert (output / f"{work.file}.provenance.json").is_file()
    assert killed, "it would test nothing"
