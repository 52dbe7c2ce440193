"""The build image for the container lane: its plan; lanes/test_container.py builds in a real one."""

import pytest

from armbuild.errors import MissingError, UsageError
from armbuild.image import manylinux
from armbuild.wheel.lanes import cibuildwheel


def test_its_name_says_what_its_wheels_can_be():
    image = manylinux.plan()
    assert image.tag == "localhost/manylinux_2_31_aarch64:latest"
    assert image.output.name == "manylinux_2_31_aarch64.tar"
    assert manylinux.plan(suite="trixie").policy == "manylinux_2_41_aarch64"


def test_interpreters_lie_where_cibuildwheel_looks_for_them():
    folders = manylinux.plan().as_dict()["pythons"]
    assert set(folders) == {"3.11", "3.13", "3.14"}
    for version, folder in folders.items():
        assert str(cibuildwheel.python(version).executable) == f"{folder}/bin/python"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"suite": "bookwrom"}, "did you mean bookworm"),
        ({"python_versions": ["3.12"]}, "3.12: Debian has AArch64's 3.11, 3.13, 3.14"),
        ({"packages": ["zlib1g-dev,Zlib"]}, "--with Zlib: not a Debian package's name"),
        ({"tag": "UPPER"}, "--tag UPPER: not an image's name"),
    ],
)
def test_a_wrong_choice_is_refused_before_anything_is_downloaded(given, reason):
    with pytest.raises(UsageError, match=reason):
        manylinux.plan(**given)


def test_an_engine_that_is_not_installed_is_named_before_the_image_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match="--load podman: it is not installed"):
        manylinux.check_engine("podman")
    with pytest.raises(UsageError, match="--load buildah: there are docker and podman"):
        manylinux.check_engine("buildah")


def test_an_interpreter_finds_libraries_of_the_project_before_the_systems():
    # ld.so takes --library-path instead of LD_LIBRARY_PATH, not beside it
    assert "${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" in manylinux.START.format(
        folder="/opt", triplet="aarch64-linux-gnu", version="3.13"
    )


def test_ccache_stands_before_every_name_that_builds_call_the_compilers_by(tmp_path):
    for name in ("usr/bin", "usr/local/bin"):
        (tmp_path / name).mkdir(parents=True)
    manylinux._link_ccache(tmp_path)
    assert not list((tmp_path / "usr/local/bin").iterdir())
    (tmp_path / "usr/bin/ccache").touch()
    manylinux._link_ccache(tmp_path)
    links = {path.name for path in (tmp_path / "usr/local/bin").iterdir()}
    assert {"cc", "c++", "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++"} <= links, (
        "the last two are Python's"
    )
