"""Every flag that is printed is taken by the compiler it is for, for every target that has a name.

Needs Debian's gcc-aarch64-linux-gnu; clang is the one inside ziglang, driven by clang's own command line.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from armisa import Isa, compiler_flags, target_names

ZIG = [sys.executable, "-m", "ziglang"]
COMPILERS = {
    "gcc": ["aarch64-linux-gnu-gcc"],
    "clang": [*ZIG, "clang", "--target=aarch64-linux-gnu"],
    "zig": [*ZIG, "cc", "-target", "aarch64-linux-gnu.2.28"],
}


def compiles(command, source, number):
    command = [*command, "-Werror", "-c", "-o", str(source.with_suffix(f".{number}.o")), str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def spelled(compiler):
    """Return the different flags for this compiler, with those that CMake hands to it."""
    found = {}
    for name in target_names():
        isa = Isa.from_target(name)
        found.setdefault(compiler_flags(isa, compiler), name)
        if compiler != "zig":
            definitions = dict(word[2:].split("=", 1) for word in shlex.split(compiler_flags(isa, "cmake")))
            assert definitions["CMAKE_SYSTEM_PROCESSOR"] == "aarch64"
            assert definitions["CMAKE_C_FLAGS"] == definitions["CMAKE_CXX_FLAGS"]
            found.setdefault(definitions["CMAKE_C_FLAGS"], name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
def test_every_flag_is_accepted(compiler, tmp_path):
    source = tmp_path / "one.c"
    source.write_text("int one;\n")
    flags = spelled(compiler)
    assert len(flags) > 15
    with ThreadPoolExecutor(2) as pool:
        runs = pool.map(
            lambda item: compiles([*COMPILERS[compiler], *item[1].split()], source, item[0]), enumerate(flags)
        )
        refused = {
            name: run.stderr[:300]
            for (_, name), run in zip(flags.items(), runs, strict=True)
            if run.returncode
        }
    assert refused == {}


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(("target", "allowed"), [("neoverse-v1", True), ("neoverse-n1", False)])
def test_flags_allow_what_the_core_has_and_no_more(compiler, target, allowed, tmp_path):
    """Preprocessor macros (ACLE) say what a compiler may use."""
    source = tmp_path / "one.c"
    source.write_text("int one;\n")
    flags = compiler_flags(Isa.from_target(target), compiler).split()
    command = [*COMPILERS[compiler], *flags, "-E", "-dM", str(source)]
    macros = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "__ARM_FEATURE_DOTPROD 1" in macros
    for macro in ("SVE", "BF16_VECTOR_ARITHMETIC", "MATMUL_INT8"):
        assert (f"__ARM_FEATURE_{macro} 1" in macros) == allowed, macro
    assert "__ARM_FEATURE_SVE2 1" not in macros
