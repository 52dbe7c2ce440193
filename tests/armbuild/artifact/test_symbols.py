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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "library", "found"),
    [
        ('void far(); extern "C" void call() { far(); }', "libstdc++.so.6", True),
        ('extern "C" void far(); extern "C" void call() { far(); }', "libstdc++.so.6", False),
        ('void far(); extern "C" void call() { far(); }', "libc.so.6", False),
        ('void far() {} extern "C" void call() { far(); }', "libstdc++.so.6", False),
    ],
    ids=["C++", "a C library that is written in C++", "another C++ library", "own functions"],
)
def test_a_wheel_that_calls_a_cxx_library_of_debians_is_found(tmp_path, code, library, found):
    """zig's own C++ library has other strings: the wheel would fail at its first import."""
    compiler = ["aarch64-linux-gnu-g++", "-shared", "-fPIC", "-nostdlib", "-Wl,--no-as-needed"]

    def link(name, text, *more):
        (tmp_path / f"{name}.cpp").write_text(text)
        subprocess.run([*compiler, "-o", tmp_path / name, tmp_path / f"{name}.cpp", *more], check=True)
        return tmp_path / name

    runtime = link(library, "void other() {}", f"-Wl,-soname,{library}")
    own = link("libfar.so", 'void far() {} extern "C" void far_c() {}', "-Wl,-soname,libfar.so", runtime)
    path = wheels.write(tmp_path, files={"thing/x.so": link("x.so", code, own).read_bytes()})
    said = "thing/x.so calls C++ functions of libfar.so, which is linked with GNU's C++ library"
    assert symbols.of_gnu_cxx(path, [tmp_path]) == (said if found else "")
    assert symbols.of_gnu_cxx(path, []) == "", "what is not there is auditwheel's to refuse"
