"""What cibuildwheel is told, checked with cibuildwheel's own reader of options."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cibuildwheel.frontend import parse_config_settings
from cibuildwheel.oci_container import OCIContainerEngineConfig
from tests.armbuild.plans import planned

from armbuild.errors import UsageError
from armbuild.wheel.lanes import cibuildwheel

PROJECT = Path(__file__).parents[2] / "projects/setuptools"


def computed(*, tool=None, folder=PROJECT, settings=(), flags=(), environ=None, **options):
    """What cibuildwheel is told: ``tool`` is its table, ``settings`` are the back end's."""
    plan = planned(PROJECT, lane="cross", compile_cache="none", output=Path("/tmp/out"))  # noqa: S108
    asked = replace(plan.settings, **{"engine": "podman", **options})
    project = replace(plan.project, tool={"cibuildwheel": tool or {}}, folder=folder)
    plan = replace(plan, project=project, settings=asked, config_settings=tuple(settings), flags=flags)
    return cibuildwheel.compute(plan, emulated=True, environ=environ or {})


def engine(made):
    return OCIContainerEngineConfig.from_config_string(made.variables["CIBW_CONTAINER_ENGINE"])


def test_settings_reach_the_back_end_through_cibuildwheel_whole():
    pairs = [("setup-args", "-Da=b c"), ("setup-args", "-Dd=e"), ("flag", "")]
    text = computed(settings=pairs, tool={"config-settings": "x=y"}).variables["CIBW_CONFIG_SETTINGS"]
    assert parse_config_settings(text) == {"setup-args": ["-Da=b c", "-Dd=e"], "flag": ""}
    assert "CIBW_CONFIG_SETTINGS" not in computed().variables


def test_arguments_with_spaces_reach_the_engine_whole(tmp_path):
    (git := tmp_path / "a folder/.git").mkdir(parents=True)
    made = computed(flags=("-mcpu=neoverse-v1", "-DA='b c'"), folder=git.parent)
    read = engine(made)
    assert read.create_args == made.arguments
    assert "--env=CFLAGS=-mcpu=neoverse-v1 -DA='b c'" in read.create_args
    assert f"--volume={git}:{git}:ro" in read.create_args


@pytest.mark.parametrize(
    "stated",
    [
        "podman; create_args: --network=host --shm-size 1g",
        {"name": "podman", "create-args": ["--network=host", "--shm-size", "1g"]},
    ],
)
def test_the_projects_own_engine_and_its_arguments_stay(stated):
    made = computed(engine=None, tool={"container-engine": stated})
    assert engine(made).name == "podman"
    assert engine(made).create_args[:3] == ("--network=host", "--shm-size", "1g")
    assert "container-engine" in made.overridden


def test_this_machines_files_are_not_in_the_container_unless_the_project_says_so():
    assert engine(computed()).disable_host_mount
    assert not engine(
        computed(tool={"container-engine": "podman; disable_host_mount: no"})
    ).disable_host_mount


def test_a_linux_table_wins_over_the_general_one_as_in_cibuildwheel():
    tool = {"manylinux-aarch64-image": "one", "linux": {"manylinux-aarch64-image": "two", "before-all": "x"}}
    made = computed(tool=tool)
    assert made.image == "two"
    assert "CIBW_MANYLINUX_AARCH64_IMAGE" not in made.variables  # overrides per identifier stay in charge
    assert made.unchanged == ("before-all", "manylinux-aarch64-image")


def test_what_the_plan_overrides_is_named():
    tool = {"build": "cp39-*", "skip": "cp310-*", "repair-wheel-command": "x", "manylinux-aarch64-image": "y"}
    made = computed(tool=tool, image="localhost/z", smoke=False)
    assert set(made.overridden) == {"build", "repair-wheel-command", "manylinux-aarch64-image"}
    assert made.unchanged == ("skip",)
    assert made.variables["CIBW_TEST_SKIP"] == "*"


def test_a_git_work_tree_brings_the_repository_that_it_belongs_to(tmp_path):
    run = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C"]
    subprocess.run(["git", "init", "-q", tmp_path / "one"], check=True)
    subprocess.run([*run, tmp_path / "one", "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    subprocess.run([*run, tmp_path / "one", "worktree", "add", "-q", tmp_path / "two"], check=True)
    assert (
        cibuildwheel.history(tmp_path / "two")
        == cibuildwheel.history(tmp_path / "one")
        == tmp_path / "one/.git"
    )
    assert cibuildwheel.history(tmp_path) is None


def test_passwords_in_index_addresses_are_passed_by_name_only():
    made = computed(environ={"PIP_INDEX_URL": "https://user:secret@index.example/simple"})
    assert "--env=PIP_INDEX_URL" in made.arguments
    assert "secret" not in str(made.as_dict(["3.13"]))


def test_certificates_are_mounted_where_they_are_files(tmp_path):
    (file := tmp_path / "ca.pem").touch()
    made = computed(environ={"PIP_CERT": str(file), "SSL_CERT_FILE": str(tmp_path / "none.pem")})
    assert "--env=PIP_CERT" in made.arguments
    assert f"--volume={file}:{file}:ro" in made.arguments
    assert "--env=SSL_CERT_FILE" not in made.arguments


def test_a_short_image_name_is_shown_in_full():
    assert computed().reference.startswith("quay.io/pypa/manylinux_2_28_aarch64@sha256:")
    assert "#" not in computed().reference


def test_docker_without_a_daemon_gives_way_to_podman(tmp_path, monkeypatch):
    for name in ("docker", "podman"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cibuildwheel, "DOCKER_SOCKET", tmp_path / "docker.sock")
    assert computed(engine=None).engine == "podman"
    assert computed(engine=None, environ={"DOCKER_HOST": "tcp://other"}).engine == "docker"
    (tmp_path / "docker.sock").touch()
    assert computed(engine=None).engine == "docker"


def test_an_unknown_engine_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean podman"):
        computed(engine="podmann")


@pytest.mark.parametrize(
    ("given", "where"),
    [
        (
            {"environ": {"ARMBUILD_ENGINE_OPTIONS": "--name='x"}},
            "ARMBUILD_ENGINE_OPTIONS: --name='x: No closing",
        ),
        (
            {"tool": {"container-engine": "podman; create_args: --name='x"}},
            "create_args: --name='x: No closing",
        ),
    ],
)
def test_arguments_for_the_engine_whose_quotes_do_not_close_are_refused_with_their_place(given, where):
    with pytest.raises(UsageError, match=where):
        computed(**given)


@pytest.mark.parametrize("version", ["3.11", "3.14"])
def test_cibuildwheel_selects_exactly_the_build_that_was_planned(tmp_path, version):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\nversion = "1"\n[tool.cibuildwheel]\nbuild = "cp310-*"\nskip = "cp312-*"\n'
    )
    environment = cibuildwheel.clean(
        {"PATH": "/usr/bin:/bin", "CIBW_BUILD_LINUX": "none", "CIBW_ARCHS": "x86_64"}
    )
    said = subprocess.run(
        [sys.executable, *cibuildwheel.COMMAND, "--print-build-identifiers"],
        cwd=tmp_path,
        env={**environment, **computed().environment(version)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert said.stdout.split() == [cibuildwheel.identifier(version)]
    assert cibuildwheel.identifier(version).startswith(
        cibuildwheel.python(version).executable.parts[3].split("-")[0]
    )
