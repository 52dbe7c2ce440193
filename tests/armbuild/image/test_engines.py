"""What an engine is asked to build; building for real takes a registry or a base image of one's own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from armbuild.cli import main
from armbuild.errors import MissingError
from armbuild.host import limits, process
from armbuild.image import contained, engines, reference
from armbuild.wheel.lanes import container

ROOT = Path(__file__).parents[3]


def a_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """An engine that notes what it is asked and saves an empty image."""
    log = tmp_path / "asked.jsonl"
    note = (
        f"python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' \"$@\" >> {log}\n"
        'for word in "$@"; do if [ "$last" = --output ]; then echo image > "$word"; fi; last=$word; done'
    )
    for name in ("podman", "docker"):
        a_program(tmp_path / "bin" / name, note)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return lambda: [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_an_engine_gets_all_that_the_dockerfile_asks_and_saves_in_one_rename(
    asked, engine, tmp_path, monkeypatch
):
    monkeypatch.setenv("ARMBUILD_ENGINE_OPTIONS", "--network host")
    options = ["--python", "3.11", "--no-bf16", "--no-sve", "--with-openvino", "--tag", "r.example/x:1"]
    output = tmp_path / "x.tar"
    status = main(["docker", str(ROOT), "--builder", engine, *options, "--output", str(output), "--json"])
    assert status == 0
    build, save = (words for words in asked() if words[0] in ("build", "save"))
    assert build[build.index("--platform") + 1] == "linux/arm64"
    assert ("--format" in build) == (engine == "podman"), "podman drops health checks from OCI images"
    assert build[build.index("--network") + 1] == "host"
    arguments = dict(
        build[index + 1].split("=", 1) for index, word in enumerate(build) if word == "--build-arg"
    )
    assert arguments["BUILDPLATFORM"] == f"linux/{reference.architecture_here()}"
    assert arguments["ARMBUILD_OPTIONS"] == "--no-sve --no-bf16 --with-openvino"
    assert arguments["BUILD_IMAGE"] == "docker.io/library/python:3.11-bookworm"
    labels = dict(build[index + 1].split("=", 1) for index, word in enumerate(build) if word == "--label")
    known = {name.rpartition(".")[2]: value for name, value in labels.items()}
    assert known.keys() >= {"title", "version", "revision", "created", "licenses"}
    assert known["title"] == "armllm"
    assert save[-1] == "r.example/x:1"
    assert output.read_text() == "image\n"
    declared = (ROOT / "docker/Dockerfile").read_text()
    assert all(f"ARG {name}" in declared for name in arguments.keys() - {"BUILDPLATFORM"})


@pytest.mark.parametrize(
    ("version", "buildx", "status"), [("20.10.24+dfsg1", 1, 0), ("26.1.5", 1, 3), ("26.1.5", 0, 0)]
)
def test_a_docker_without_buildkit_is_refused_with_the_package_that_brings_it(
    tmp_path, monkeypatch, version, buildx, status
):
    said = f"buildx) exit {buildx};; --version) echo 'Docker version {version}, build x';;"
    a_program(tmp_path / "bin/docker", f'case "$1" in {said} save) echo image > $3;; esac')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    output = tmp_path / "x.tar"
    done = subprocess.run(
        [sys.executable, "-m", "armbuild", "docker", ROOT, "--builder=docker", "--python=3.11", "-o", output],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert output.exists() == (status == 0)
    if status:
        (line,) = done.stderr.strip().splitlines()
        assert "apt-get install docker-buildx" in line


def stage(tmp_path, **changes):
    """Run the Dockerfile's build stage with programs that note how they are called."""
    log = tmp_path / "calls"
    for name in ("python3.11", "pip", "python", "armbuild", "mv", "rm"):
        a_program(tmp_path / "bin" / name, f'echo "{name} $* $CMAKE_BUILD_PARALLEL_LEVEL" >> {log}')
    script = (ROOT / "docker/build_stage.sh").read_text().replace("/build/bin", str(tmp_path / "bin"))
    environment = {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "PYTHON_VERSION": "3.11",
        "VLLM_CPU_ARM_BF16": "false",
        "max_jobs": "",
        "ARMBUILD_OPTIONS": "",
        "SOURCE_DATE_EPOCH": "",
        **changes,
    }
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    return done, log.read_text() if log.exists() else ""


@pytest.mark.parametrize(
    ("changes", "called"),
    [
        ({}, "--python 3.11 --output"),
        ({"VLLM_CPU_ARM_BF16": "True"}, "--python 3.11 --output"),
        (
            {"ARMBUILD_OPTIONS": "--baseline neoverse-v1 --no-sve"},
            "--python 3.11 --baseline neoverse-v1 --no-sve --",
        ),
        ({"max_jobs": "7", "TARGETARCH": "arm64"}, "/image.tar 7"),
    ],
)
def test_the_build_stage_passes_its_arguments_on(tmp_path, changes, called):
    done, calls = stage(tmp_path, **changes)
    assert done.returncode == 0, done.stderr
    assert called in calls
    assert "armbuild.image.stages /image.tar /stages" in calls


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"VLLM_CPU_ARM_BF16": "maybe"}, "VLLM_CPU_ARM_BF16 is true or false, not maybe"),
        ({"TARGETARCH": "amd64"}, "this image is for linux/arm64"),
    ],
)
def test_the_build_stage_refuses_before_it_builds(tmp_path, changes, reason):
    done, calls = stage(tmp_path, **changes)
    assert done.returncode == 2
    assert reason in done.stderr
    assert not calls


@pytest.mark.parametrize("builder", ["podman", "docker", "oci"])
def test_a_push_that_never_ends_is_ended_with_the_reason(tmp_path, monkeypatch, builder):
    a_program(tmp_path / "bin" / ("skopeo" if builder == "oci" else builder), "exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(limits, "LOOK_EVERY", 0.02)
    for name in ("IMAGE", "ENGINE"):
        monkeypatch.setattr(limits, name, limits.Limits(seconds=0.1))
    plan = SimpleNamespace(builder=builder, output=tmp_path / "x.tar", tag="r.example/x:1")
    with pytest.raises(MissingError, match=r"--push r\.example/x:1: ended, because it took more than 0 s"):
        engines.push(plan, tmp_path)


def test_an_engine_that_does_not_answer_is_not_waited_for(tmp_path, monkeypatch):
    a_program(tmp_path / "bin/podman", "exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(process, "QUESTION_SECONDS", 0.1)
    with pytest.raises(MissingError, match="podman is installed but does not answer"):
        contained.check("podman", emulated=False)
    assert container._ask(["podman", "info"]) == (1, "no answer in 0 s")
