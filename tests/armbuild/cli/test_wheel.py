import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.armbuild import wheels
from tests.armbuild.cli.calls import run
from tests.armbuild.image import small
from tests.armbuild.wheel.test_fetch import index, sdist, sha

from armbuild import cli
from armbuild.errors import MissingError
from armbuild.host import cache, pythons

ROOT = Path(__file__).parents[3]
PROJECTS = ROOT / "tests/armbuild/projects"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))


def test_a_name_that_is_no_folder_but_on_the_index_is_announced(capsys, tmp_path, monkeypatch):
    """A mistyped folder would else build the project of a stranger."""
    path = sdist(tmp_path)
    monkeypatch.setenv("UV_DEFAULT_INDEX", index(tmp_path, (path, sha(path))))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    says = "thing-name: no such folder or file here; the package index has thing_name-1.5.tar.gz\n"
    assert run(capsys, "wheel", "--plan", "thing-name")[2] == says
    assert run(capsys, "wheel", "--plan", "thing-name==1.5")[2] == ""
    assert run(capsys, "wheel", "--plan", "-q", "thing-name")[2] == ""


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["/nowhere"], 2, "/nowhere: no such folder"),
        (["--python", "3.7"], 2, "not a supported version"),
        (["--cpu", "pentium"], 2, "pentium"),
        (["--cpu", "neoverse-v2"], 2, "QEMU has no model"),
        (["--lane", "container", "--engine", "buildah"], 2, "--engine buildah: cibuildwheel drives docker"),
        (["--lane", "cross", "--image", "x"], 2, "--image is for the container lane"),
        (["--lane", "container", "--no-isolation"], 2, "build-frontend = { name"),
        (["--lane", "container", "--lock", "x"], 2, "--lock: the container lane installs"),
        (["--lane", "container", "--compile-cache", "ccache"], 2, "manylinux-image --with ccache"),
        (["--lane", "container", "--with", "zlib1g-dev"], 2, "armbuild manylinux-image --with zlib1g-dev"),
        (["--baseline", "z80"], 2, "z80"),
        (["-C", "WITH_TESTS"], 2, "--config-settings WITH_TESTS: expected KEY=VALUE"),
        (["--config-settings", "=x"], 2, "--config-settings =x: expected KEY=VALUE"),
        (["-C", "build-dir=/x"], 2, "build-dir=/x: armbuild chooses the folder"),
        (["--glibc", "2_28"], 2, "--glibc 2_28: not a version of glibc, such as 2.28"),
        (["--no-smoke", "--cpu", "max"], 2, "--no-smoke"),
        (["--frobnicate"], 2, "frobnicate"),
        (["--mirror", "ftp://archive.example/debian", "--plan"], 2, "--mirror ftp://"),
    ],
)
def test_a_wrong_option_is_one_line_and_builds_nothing(capsys, tmp_path, arguments, status, reason):
    folder = [] if arguments[0].startswith("/") else [ROOT]
    got, out, err = run(capsys, "wheel", *folder, *arguments, "--output", tmp_path / "dist")
    assert got == status
    assert reason in err
    assert len(err.strip().splitlines()) <= 2
    assert "Traceback" not in err
    assert out == ""
    assert not (tmp_path / "dist").exists()


def test_an_error_is_one_json_document_when_asked(capsys, tmp_path):
    status, out, _ = run(capsys, "wheel", tmp_path, "--json")
    assert json.loads(out)["status"] == status == 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "x"), "while writing a file: `armbuild cache`"),
        (OSError(errno.EDQUOT, "x", "/a/b"), "while writing /a/b: `armbuild cache`"),
        (OSError(errno.ENOSPC, "x", "/from", None, "/to"), "while writing /to: `armbuild cache`"),
    ],
)
def test_a_full_disk_is_something_missing_here_and_not_a_fault_of_the_project(error, said):
    message, status = cli.explain(error)
    assert status == 3
    assert message.startswith("no space left on the device")
    assert said in message


def test_a_full_disk_is_named_though_the_error_names_no_file(monkeypatch, tmp_path):
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 40)
    for folder in (tmp_path, Path("/tmp")):  # noqa: S108 - where no variable says otherwise
        full = usage._replace(free=4096)
        monkeypatch.setattr(shutil, "disk_usage", lambda asked: full if asked == folder else usage)  # noqa: B023
        monkeypatch.setenv("TMPDIR", str(folder) if folder == tmp_path else "")
        message, _ = cli.explain(OSError(errno.ENOSPC, "x"))
        assert f"while writing a file in {folder}: " in message


def test_the_plan_builds_nothing_and_prints_one_document(capsys, tmp_path):
    status, out, err = run(
        capsys, "wheel", ROOT, "--plan", "--json", "--output", tmp_path / "dist", "--lane", "cross"
    )
    assert status == 0
    assert err == ""
    assert json.loads(out)["lane"] == "cross"
    assert not (tmp_path / "dist").exists()
    assert not (tmp_path / "cache").exists()


def test_the_plan_is_readable(capsys):
    status, out, _ = run(capsys, "wheel", ROOT, "--plan", "--lane", "cross", "--baseline", "neoverse-v1")
    assert status == 0
    assert "zig cc for aarch64-linux-gnu.2.28" in out
    assert "neoverse.v1" in out


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "truncated or not a zip"), (b"PK\3\4 not a zip", "truncated or not a zip")]
)
def test_smoke_refuses_what_is_no_wheel_in_a_line(capsys, tmp_path, content, reason):
    path = tmp_path / "armllm-1.0-cp311-cp311-linux_aarch64.whl"
    path.write_bytes(content)
    status, _, err = run(capsys, "smoke", path)
    assert status == 2
    assert reason in err
    assert len(err.strip().splitlines()) == 1


def test_smoke_refuses_another_projects_wheel_and_unknown_cpus(capsys, tmp_path):
    status, _, err = run(capsys, "smoke", wheels.write(tmp_path))
    assert status == 2
    assert "only armllm has a smoke test" in err
    own = wheels.write(tmp_path, "armllm-1.0-cp311-cp311-linux_aarch64.whl")
    status, _, err = run(capsys, "smoke", own, "--cpu", "neoverse-v11")
    assert status == 2
    assert "neoverse-v1" in err


def test_an_image_has_its_own_sandbox(capsys, tmp_path):
    image = str(small.write(tmp_path, {"a": "1"}))
    for option in ("--engine=podman", "--unsafe-no-sandbox"):
        status, _, err = run(capsys, "smoke", image, "--sandbox", option)
        assert (status, "--sandbox and" in err) == (2, True)


# zig's C++ runtime, which is not ours to compare, need not be built again.
ZIG_CACHE = cache.root() / "zig"
FEWER_KERNELS = [f"--no-{name}" for name in ("dotprod", "fhm", "i8mm", "sve", "sve512")]


def command(*arguments, cache):
    return [sys.executable, "-m", "armbuild", *map(str, arguments)], {
        **os.environ,
        "ARMBUILD_CACHE_DIR": str(cache),
    }


@pytest.fixture
def broken(tmp_path):
    folder = tmp_path / "broken"
    (folder / "src").mkdir(parents=True)
    (folder / "setup.py").write_text(
        "from setuptools import Extension, setup\n"
        'setup(name="broken", version="1", ext_modules=[Extension("broken", ["src/broken.c"])])\n'
    )
    (folder / "pyproject.toml").write_text('[build-system]\nrequires = ["setuptools"]\n')
    (folder / "src/broken.c").write_text("#include <Python.h>\nint broken = oops;\n")
    return folder


@pytest.mark.slow
@pytest.mark.network
def test_a_compiler_error_is_shown_with_its_log_and_nothing_is_in_dist(capsys, tmp_path, broken):
    status, _, err = run(capsys, "wheel", broken, "--lane", "cross", "--output", tmp_path / "dist")
    assert status == 4
    assert "src/broken.c:2:14: error: use of undeclared identifier 'oops'" in err
    log = Path(err.rpartition("log: ")[2].strip())
    assert "oops" in log.read_text()
    assert not (tmp_path / "dist").exists()


@pytest.mark.slow
@pytest.mark.network
def test_two_builds_of_one_folder_at_once_and_one_interrupted_leave_whole_wheels(tmp_path):
    project, dist = PROJECTS / "setuptools", tmp_path / "dist"
    words, environment = command(
        "wheel", project, "--lane", "cross", "--output", dist, cache=tmp_path / "cache"
    )
    before = sorted(project.rglob("*"))
    both = [subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as third:
        time.sleep(1.0)
        third.terminate()
        # -SIGTERM: on a busy machine it may come before the program has begun
        assert third.wait() in (0, 130, -signal.SIGTERM)
    (built,) = dist.glob("*.whl")
    assert built.name.startswith("fixture_setuptools-0.4-")
    assert sorted(project.rglob("*")) == before
    assert not [path for path in (tmp_path / "cache/work").iterdir() if path.name.startswith("wheel")]


def copies(tmp_path, *projects):
    """The same files in two folders whose paths differ in length too."""
    for name in ("a", "another"):
        for project in projects:
            kept = [".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".nox"]
            shutil.copytree(project, tmp_path / name / project.name, ignore=shutil.ignore_patterns(*kept))
        yield tmp_path / name


@pytest.mark.slow
@pytest.mark.network
def test_two_cold_builds_in_two_folders_give_the_same_bytes(tmp_path):
    here = [version for version in pythons.SUPPORTED if can_find(version)]
    digests = {}
    ZIG_CACHE.mkdir(parents=True, exist_ok=True)
    for folder in list(copies(tmp_path, PROJECTS / "setuptools", ROOT)):
        (folder / "cache").mkdir()
        (folder / "cache/zig").symlink_to(ZIG_CACHE)
        for project in ("setuptools", ROOT.name):
            options = ["--lane=cross", "--no-smoke", f"--output={folder / 'dist'}", f"--python={here[-1]}"]
            fewer = FEWER_KERNELS if project == ROOT.name else []
            words, environment = command("wheel", folder / project, *options, *fewer, cache=folder / "cache")
            environment["SOURCE_DATE_EPOCH"] = "1700000000"
            subprocess.run(words, env=environment, check=True, capture_output=True)
        for built in (folder / "dist").glob("*.whl"):
            digests.setdefault(built.name, set()).add(hashlib.sha256(built.read_bytes()).hexdigest())
    assert len(digests) == 2
    assert {name: len(found) for name, found in digests.items()} == dict.fromkeys(digests, 1)


def can_find(version):
    try:
        return bool(pythons.find(version))
    except MissingError:
        return False
