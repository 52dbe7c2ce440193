"""A project that needs OpenMP, built by zig with LLVM's library and run on a core."""

import zipfile

import pytest
from tests.armbuild.cross_builds import built

CODE = """
#include <Python.h>
#include <omp.h>

static PyObject *squares(PyObject *self, PyObject *args) {
  long n, threads, sum = 0, seen = 0;
  if (!PyArg_ParseTuple(args, "ll", &n, &threads)) return NULL;
  omp_set_num_threads((int)threads);
#pragma omp parallel
  {
#pragma omp atomic
    seen++;
#pragma omp for schedule(dynamic, 4) reduction(+ : sum)
    for (long i = 0; i < n; i++) sum += i * i;
  }
  return Py_BuildValue("ll", seen, sum);
}
static PyMethodDef methods[] = {{"squares", squares, METH_VARARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "looped", "", -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_looped(void) { return PyModule_Create(&module); }
"""
PROJECT = """
[build-system]
requires = ["{requires}"]
build-backend = "{backend}"
[project]
name = "looped"
version = "1"
"""
SETUP = """
from setuptools import Extension, setup

options = {"extra_compile_args": ["-fopenmp"], "extra_link_args": ["-fopenmp"], "libraries": ["gomp"]}
setup(ext_modules=[Extension("looped", ["looped.c"], **options)])
"""
CMAKE = """
cmake_minimum_required(VERSION 3.20)
project(looped LANGUAGES C)
find_package(Python REQUIRED COMPONENTS Development.Module)
find_package(OpenMP REQUIRED)
python_add_library(looped MODULE WITH_SOABI looped.c)
target_link_libraries(looped PRIVATE OpenMP::OpenMP_C)
install(TARGETS looped DESTINATION .)
"""
MESON = """
project('looped', 'c', version: '1')
py = import('python').find_installation()
py.extension_module('looped', 'looped.c', dependencies: [dependency('openmp')], install: true)
"""


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
@pytest.mark.parametrize(
    ("requires", "backend", "name", "text"),
    [
        ("setuptools", "setuptools.build_meta", "setup.py", SETUP),
        ("scikit-build-core", "scikit_build_core.build", "CMakeLists.txt", CMAKE),
        ("meson-python", "mesonpy", "meson.build", MESON),
    ],
)
def test_zig_builds_with_llvms_openmp_where_a_package_brings_it(tmp_path, requires, backend, name, text):
    project = tmp_path / "project"
    project.mkdir()
    (project / "looped.c").write_text(CODE)
    (project / "pyproject.toml").write_text(PROJECT.format(requires=requires, backend=backend))
    (project / name).write_text(text)
    command = "--command=python -c 'import looped; print(looped.squares(1000, 3))'"
    result = built(project, tmp_path, "--with=libomp-dev", "--cpu=neoverse-n1", command)
    assert result["smoke"]["results"][0]["said"] == "(3, 332833500)"
    assert result["compiler"].startswith("zig"), "GCC did not take over"
    with zipfile.ZipFile(result["path"]) as archive:
        assert [name for name in archive.namelist() if "libomp" in name], "auditwheel bundles it"
