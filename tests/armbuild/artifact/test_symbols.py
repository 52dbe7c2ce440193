"""What is read out of the code in a wheel."""

from pathlib import Path

from tests.armbuild import wheels

from armbuild.artifact import symbols
from armllm import _kernels


def test_the_libraries_of_all_objects_are_found_and_a_broken_one_stops_nothing(tmp_path):
    code = Path(_kernels.__file__).read_bytes()
    path = wheels.write(tmp_path, files={"thing.libs/libown-1.so.3": code, "thing/own.so": b"no code"})
    assert "libc.so.6" in symbols.libraries(path)
    assert symbols.libraries(wheels.write(tmp_path)) == frozenset()
