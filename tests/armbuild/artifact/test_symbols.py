"""What is read out of the code in a wheel."""

import subprocess
from pathlib import Path

import pytest
from tests.armbuild import wheels

from armbuild.artifact import symbols
from armllm import _kernels


def test_the_libraries_of_all_objects_are_found_and_a_broken_one_stops_nothing(tmp_path):
    code = Path(_kernels.__file__).read_bytes()
    path = wheels.write(tmp_path, files={"thing.libs/libown-1.so.3": code, "thing/own.so": b"no code"})
    assert "libc.so.6" in symbols.libraries(path)
    assert symbols.libraries(wheels.write(tmp_path)) == frozenset()


@pytest.mark.slow
def test_a_function_that_the_interpreters_process_has_is_not_missing(tmp_path):
    """scipy starts threads without libpthread of its own: CPython brings that."""
    code = "void pthread_create(void); void PyErr_Clear(void); void nowhere(void); void call(int n)"
    calls = "{ n ? pthread_create() : PyErr_Clear(); nowhere(); }"
    (tmp_path / "x.c").write_text(code + calls)
    compiler = ["aarch64-linux-gnu-gcc", "-shared", "-fPIC", "-nostdlib"]
    subprocess.run([*compiler, "-o", tmp_path / "x.so", tmp_path / "x.c"], check=True)
    path = wheels.write(tmp_path, files={"thing/x.so": (tmp_path / "x.so").read_bytes()})
    assert symbols.unresolved(path) == ["thing/x.so needs the function nowhere, which nothing defines"]
