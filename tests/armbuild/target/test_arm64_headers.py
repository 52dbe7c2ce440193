"""Whose headers of Python are used, in which order, and what is said when there are none."""

from dataclasses import replace
from pathlib import Path

import pytest

from armbuild.errors import MissingError
from armbuild.host import containers, pythons
from armbuild.target import arm64_headers

ENGINE = """\
#!/bin/sh
case "$1" in
  images) printf 'localhost/other:1\\nquay.io/pypa/manylinux_2_28_{machine}:latest\\n' ;;
  create) case "$*" in *--pull=never*manylinux_2_28_aarch64:latest*) echo made ;; *) exit 1 ;; esac ;;
  cp) test "$2" = made:/opt/python/cp312-cp312/include/. &&
      mkdir "$3/python3.12" && : >"$3/python3.12/Python.h" ;;
  rm) : ;;
esac
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose Python 3.12 came without headers, and whose engine has one manylinux image."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))

    def make(image_for):
        (programs / "podman").write_text(ENGINE.format(machine=image_for))
        (programs / "podman").chmod(0o755)
        return replace(pythons.find(), version="3.12", include=None)

    monkeypatch.setattr(containers, "ENGINES", ("podman",))
    return make


def test_a_local_manylinux_image_serves_where_neither_the_interpreter_nor_debian_has_headers(machine):
    found = arm64_headers.find(machine("aarch64"))
    assert found.source == "quay.io/pypa/manylinux_2_28_aarch64:latest /opt/python/cp312-cp312/include"
    assert [folder.name for folder in found.folders] == ["python3.12"]
    assert arm64_headers.find(machine("aarch64")) == found, "the copy that is kept"


def test_a_version_whose_headers_are_nowhere_is_named_with_what_brings_them(machine):
    with pytest.raises(MissingError, match=r"no headers of Python 3\.12: .* `uv python install 3\.12`"):
        arm64_headers.find(machine("x86_64"))


def test_debians_package_comes_before_an_image(machine, monkeypatch):
    monkeypatch.setattr(arm64_headers, "folders", lambda _version, *, mirror: (Path("/debian"),))
    assert arm64_headers.find(machine("aarch64")).source == "Debian's arm64 libpython3.12-dev"


@pytest.mark.parametrize(
    ("place", "owner"),
    [
        ("/usr/include/python3.12", "this machine's Python"),
        ("/somewhere/.local/share/uv/python/cpython-3.12.1-linux/include/python3.12", "uv's Python"),
        ("/somewhere/.cache/armbuild/pythons/forky-3.14/usr/include/python3.14", "Debian's arm64 package"),
        ("/opt/python/cp312-cp312/include/python3.12", "the manylinux image's"),
    ],
)
def test_the_report_says_whose_headers_an_interpreter_brought(place, owner):
    python = replace(pythons.find(), include=Path(place))
    found = arm64_headers.find(python)
    assert (found.source, found.folders) == (f"{place} ({owner})", ())
