"""A wheel for musl: cross-built, named as musl's systems read it, and imported by a Python made for musl."""

import shutil
import zipfile
from pathlib import Path

import pytest
from tests.armbuild.cross_builds import built, run

from armbuild.artifact import symbols

PROJECT = Path(__file__).parent / "projects/setuptools"
CORE = """\
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdio.h>
#include <sys/stat.h>
#ifdef __GLIBC__
#error "these are the headers of another C library"
#endif
static PyObject* answer(PyObject* self, PyObject* args) {
  char text[16];
  snprintf(text, sizeof text, "%d", ANSWER);
  return PyLong_FromString(text, NULL, 10);
}
"""
NEWER = 'int newer(void) { struct statx found; return statx(0, "/", 0, 0, &found); }\n'


def asked(tmp_path, core, python):
    """The arguments for a build of the fixture with this code."""
    folder = tmp_path / "project"
    shutil.copytree(PROJECT, folder)
    own = (folder / "src/core.c").read_text().partition("static PyMethodDef")
    (folder / "src/core.c").write_text("#define _GNU_SOURCE\n" + core + "".join(own[1:]))
    options = ["--platform=musllinux", f"--python={python}", "--cpu=neoverse-n1", "--no-require-proof"]
    command = "--command=python -c 'import fixture_setuptools._core as core; assert core.answer() == 42'"
    return folder, tmp_path, *options, command


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
def test_a_wheel_for_musl_runs_in_a_python_that_was_made_for_it(tmp_path):
    result = built(*asked(tmp_path, CORE, "3.13"))
    assert result["tag"] == "cp313-cp313-musllinux_1_2_aarch64"
    assert (result["verdict"], result["audit"]["ok"]) == ("proven", True)
    path = Path(result["path"])
    assert symbols.libraries(path) == {"libc.musl-aarch64.so.1"}
    with zipfile.ZipFile(path) as archive:
        assert [
            name for name in archive.namelist() if name.endswith("_core.cpython-313-aarch64-linux-musl.so")
        ]


@pytest.mark.slow
@pytest.mark.network
def test_what_only_a_newer_musl_has_fails_the_build_with_its_name(tmp_path):
    done = run(*asked(tmp_path, CORE + NEWER, "3.11"))
    assert done.returncode == 4, done.stderr
    assert "needs statx, which musl has from 1.2.5 on" in done.stderr
    assert not list(tmp_path.glob("*.whl"))


@pytest.mark.slow
@pytest.mark.network
def test_without_a_python_for_musl_the_wheel_is_audited_and_the_reason_said(tmp_path):
    result = built(*asked(tmp_path, CORE, "3.11"))
    assert result["tag"] == "cp311-cp311-musllinux_1_2_aarch64"
    assert result["verdict"] == "audited, not proven"
    assert "no Python 3.11 for musl on AArch64 to emulate, only 3.13" in result["not_proven_because"]
