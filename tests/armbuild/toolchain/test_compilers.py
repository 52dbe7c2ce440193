import os
import subprocess
import sys
from pathlib import Path

import pytest

from armbuild.errors import MissingError
from armbuild.host import failure
from armbuild.toolchain import compilers, zig_driver
from armbuild.toolchain.sysroot import TRIPLET, Sysroot
from armbuild.toolchain.sysroot import make as make_sysroot

ROOT = Path(__file__).parents[3]


@pytest.fixture
def sysroot(tmp_path):
    folder = tmp_path / "sysroot"
    (folder / "usr/include/c++/10").mkdir(parents=True)
    (folder / f"usr/lib/{TRIPLET}").mkdir(parents=True)
    return Sysroot(folder=folder, suite="bullseye")


@pytest.fixture
def echo(tmp_path, monkeypatch):
    """Programs called like the cross compilers that say what they were called with."""
    folder = tmp_path / "path"
    folder.mkdir()
    names = ["gcc", "g++", "gfortran", "ar", "ranlib", "objcopy"]
    for name in [*(f"{TRIPLET}-{name}" for name in names), "clang", "clang++"]:
        (folder / name).write_text('#!/bin/sh\nprintf "%s\\n" "$0" "[$CPLUS_INCLUDE_PATH]" "$@"\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def call(name, sysroot, tmp_path, tool, *arguments):
    folder = tmp_path / f"bin-{name}"
    if not folder.exists():
        folder.mkdir()
        inputs = compilers.TargetInputs(flags=("-mcpu=x",), headers=(tmp_path / "py",), sysroot=sysroot)
        compilers.find(name, target="aarch64-linux-gnu.2.28").write(folder, inputs)
    done = subprocess.run([folder / tool, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_a_compiler_sees_the_sysroot_and_strips_only_what_it_links(echo, sysroot, tmp_path, name):
    linked = call(name, sysroot, tmp_path, "c++", "-shared", "two words.o")
    compiled = call(name, sysroot, tmp_path, "cc", "-c", "a.c")
    assert "-Wl,-s" in linked
    assert "two words.o" in linked
    assert "-Wl,-s" not in compiled
    assert "-mcpu=x" in compiled
    assert compiled[compiled.index(str(tmp_path / "py")) - 1] == "-idirafter"
    assert any(str(sysroot.folder) in line for line in compiled)


def test_gcc_searches_nothing_of_its_own_and_the_old_libstdcxx(echo, sysroot, tmp_path):
    said = call("gcc", sysroot, tmp_path, "c++", "-c", "a.cpp")
    assert {"-nostdinc", "-nostdinc++"} <= set(said)
    assert said[1].startswith(f"[{sysroot.folder}/usr/include/c++/10:")


def test_fortran_gets_no_option_that_it_warns_of(echo, sysroot, tmp_path):
    said = call("gcc", sysroot, tmp_path, "fortran", "-c", "a.f90")
    assert "-nostdinc" in said
    assert "-nostdinc++" not in said


@pytest.mark.slow
@pytest.mark.network
def test_fortran_is_linked_with_the_old_debians_runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    compiler = compilers.find("gcc", target="aarch64-linux-gnu.2.28")
    inputs = compilers.TargetInputs(
        flags=(), headers=(), sysroot=make_sysroot((), compiler=True, mirror=None)
    )
    compiler.write(tmp_path, inputs)
    (tmp_path / "a.f90").write_text("program hello\n  print *, 'hello'\nend program\n")
    command = [tmp_path / "fortran", "-o", "a.out", "a.f90"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    needed = subprocess.check_output(["readelf", "-dW", tmp_path / "a.out"], text=True)
    assert "libgfortran.so.5" in needed


def test_zig_knows_where_the_targets_openmp_is(sysroot, tmp_path):
    inputs = compilers.TargetInputs(flags=(), headers=(), sysroot=sysroot)
    zig = compilers.find("zig", target="aarch64-linux-gnu.2.28")
    zig.write(tmp_path, inputs)
    header = tmp_path / zig_driver.OPENMP_HEADER
    assert not header.exists()
    sysroot.openmp.touch()
    zig.write(tmp_path, inputs)
    assert f'#pragma comment(lib, "{sysroot.openmp}")' in header.read_text()


@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_the_build_machines_own_folders_are_passed_over(echo, sysroot, tmp_path, name):
    said = call(
        name,
        sysroot,
        tmp_path,
        "cc",
        "-I/usr/include",
        "-L/usr/lib/x86_64-linux-gnu",
        "-I/usr/include/python3",
    )
    assert "-I/usr/include" not in said
    assert "-L/usr/lib/x86_64-linux-gnu" not in said
    assert "-I/usr/include/python3" in said


@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_a_librarys_folder_that_a_program_of_the_build_machine_named_is_the_sysroots(
    echo, sysroot, tmp_path, name
):
    root = sysroot.folder
    (root / "usr/include/postgresql/15").mkdir(parents=True)
    (root / f"usr/lib/{TRIPLET}/hdf5/serial").mkdir(parents=True)
    said = call(
        name,
        sysroot,
        tmp_path,
        "cc",
        "-I/usr/include/postgresql/15",
        "-L/usr/lib/x86_64-linux-gnu/hdf5/serial",
        "-I/usr/include/two words",
        "a.o",
    )
    start = said.index(f"-I{root}/usr/include/postgresql/15")
    assert said[start + 1 : start + 3] == [
        f"-L{root}/usr/lib/{TRIPLET}/hdf5/serial",
        "-I/usr/include/two words",
    ]


@pytest.mark.parametrize("name", ["zig", "gcc", "clang"])
def test_a_compile_cache_is_asked_first_and_calls_the_compiler_itself(
    echo, sysroot, tmp_path, monkeypatch, name
):
    launcher = tmp_path / "launcher"
    launcher.write_text('#!/bin/sh\nprintf "%s\\n" "asked${ARMBUILD_LAUNCHER}" "$@"\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("ARMBUILD_LAUNCHER", str(launcher))
    said = call(name, sysroot, tmp_path, "cc", "-c", "two words.c")
    assert said == ["asked", str(tmp_path / f"bin-{name}/cc"), "-c", "two words.c"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("gcc", f"apt-get install g\\+\\+-{TRIPLET}"), ("clang", f"binutils-{TRIPLET}")],
)
def test_a_compiler_that_is_not_here_is_named_with_what_brings_it(monkeypatch, name, reason):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingError, match=reason):
        compilers.find(name, target="aarch64-linux-gnu.2.28")


@pytest.mark.parametrize(("name", "release"), [("GNU", "11.4.0"), ("Clang", "14.0.6")])
def test_a_compiler_that_is_too_old_for_the_kernels_is_named_with_its_version(name, release):
    said = subprocess.run(
        [
            sys.executable, "-m", "cmake", f"-DCMAKE_CXX_COMPILER_ID={name}",
            f"-DCMAKE_CXX_COMPILER_VERSION={release}", "-DCMAKE_CXX_COMPILER=/opt/bin/c++", "-P",
            ROOT / "cmake/machine.cmake",
        ],
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert said.returncode != 0
    assert failure.first_error(said.stderr).endswith(
        f"armllm needs GCC 12, clang 15 or newer; /opt/bin/c++ is {name} {release}"
    )
