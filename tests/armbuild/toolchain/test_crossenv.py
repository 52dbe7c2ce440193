"""What the cross environment's files make of a build tool's own settings."""

import os
import subprocess
import sys
import sysconfig

import pytest

from armbuild.toolchain import compilers, crossenv, target_answers
from armbuild.toolchain.sysroot import Sysroot
from armbuild.wheel import hints


def test_the_targets_headers_win_over_those_that_a_back_end_presets(tmp_path):
    """Debian's Python without its -dev package names a folder that is not there."""
    (tmp_path / "toolchain.cmake").write_text(
        crossenv.PYTHON_SETTINGS.format(include=tmp_path / "target", suffix=".so")
    )
    (tmp_path / "preset.cmake").write_text(
        "".join(
            f'set({name}_INCLUDE_DIR "/no/such/folder" CACHE PATH "" FORCE)\n'
            for name in ("PYTHON", "Python", "Python3")
        )
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.26)\nproject(x NONE)\n"
        'message("${PYTHON_INCLUDE_DIR} ${Python_INCLUDE_DIR} ${Python3_INCLUDE_DIR}")\n'
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "cmake", "-G", "Ninja", "-C", tmp_path / "preset.cmake",
            f"-DCMAKE_TOOLCHAIN_FILE={tmp_path / 'toolchain.cmake'}",
            "-S", tmp_path, "-B", tmp_path / "build",
        ],
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    assert " ".join([str(tmp_path / "target")] * 3) in done.stderr


def test_cmake_finds_python_by_its_interpreter_alone(tmp_path):
    """When it cross-compiles, FindPython does not ask the interpreter where its headers are."""
    include = sysconfig.get_path("include")
    (tmp_path / "toolchain.cmake").write_text(
        "set(CMAKE_SYSTEM_NAME Linux)\nset(CMAKE_SYSTEM_PROCESSOR aarch64)\n"
        + crossenv.PYTHON_SETTINGS.format(include=include, suffix=".so")
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.26)\nproject(x NONE)\n"
        "find_package(Python REQUIRED COMPONENTS Interpreter Development.Module Development.SABIModule)\n"
        'message("crossing: ${CMAKE_CROSSCOMPILING}, headers: ${Python_INCLUDE_DIRS}")\n'
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "cmake", "-G", "Ninja",
            f"-DCMAKE_TOOLCHAIN_FILE={tmp_path / 'toolchain.cmake'}", f"-DPython_EXECUTABLE={sys.executable}",
            "-S", tmp_path, "-B", tmp_path / "build",
        ],
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    assert f"crossing: TRUE, headers: {include}" in done.stderr


def test_a_project_with_pybind11s_sources_inside_knows_how_modules_are_called(tmp_path):
    """pybind11 3.0 guesses it in its own folder's scope; without it the module's name has no end."""
    (tmp_path / "toolchain.cmake").write_text(
        "set(CMAKE_SYSTEM_NAME Linux)\nset(CMAKE_SYSTEM_PROCESSOR aarch64)\n"
        + crossenv.PYTHON_SETTINGS.format(include="/target", suffix=".cpython-311-aarch64-linux-gnu.so")
    )
    (tmp_path / "pybind11").mkdir()
    (tmp_path / "pybind11/CMakeLists.txt").write_text(
        "if(CMAKE_CROSSCOMPILING AND PYBIND11_USE_CROSSCOMPILING)\n"
        "  if(NOT DEFINED PYTHON_IS_DEBUG\n"
        "     OR NOT DEFINED PYTHON_MODULE_EXTENSION\n"
        "     OR NOT DEFINED PYTHON_MODULE_DEBUG_POSTFIX)\n"
        "    set(PYTHON_MODULE_EXTENSION guessed)\n"
        "  endif()\n"
        'endif()\nmessage("inside: _core${PYTHON_MODULE_EXTENSION}")\n'
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.26)\nproject(x NONE)\nadd_subdirectory(pybind11)\n"
        'message("outside: _core${PYTHON_MODULE_EXTENSION}")\n'
    )
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={tmp_path / 'toolchain.cmake'}"
    done = subprocess.run(
        [sys.executable, "-m", "cmake", "-G", "Ninja", toolchain, "-S", tmp_path, "-B", tmp_path / "build"],
        capture_output=True,
        text=True,
        check=True,
    )
    module = "_core.cpython-311-aarch64-linux-gnu.so"
    assert done.stderr.splitlines() == [f"inside: {module}", f"outside: {module}"]


def test_cmake_knows_this_machine_though_uname_answers_for_the_target(tmp_path):
    """Else a project would take its tools of the build, such as protoc, for AArch64."""
    places = dict.fromkeys(("bin", "root", "triplet"), tmp_path)
    (tmp_path / "toolchain.cmake").write_text(
        crossenv.TOOLCHAIN_FILE.format(**places, sources="", machine="of-this-machine")
    )
    compilers.program(tmp_path / "uname", "#!/bin/sh\necho aarch64\n")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.26)\nproject(x NONE)\n"
        'message("${CMAKE_HOST_SYSTEM_PROCESSOR} for ${CMAKE_SYSTEM_PROCESSOR}")\n'
    )
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={tmp_path / 'toolchain.cmake'}"
    done = subprocess.run(
        [sys.executable, "-m", "cmake", "-G", "Ninja", toolchain, "-S", tmp_path, "-B", tmp_path / "build"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "of-this-machine for aarch64" in done.stderr


def test_this_machines_fortran_is_not_taken_for_the_targets(tmp_path):
    (tmp_path / "toolchain.cmake").write_text(crossenv.NO_FORTRAN)
    (tmp_path / "gfortran").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "gfortran").chmod(0o755)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.26)\nproject(x LANGUAGES Fortran)\n"
    )
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={tmp_path / 'toolchain.cmake'}"
    done = subprocess.run(
        [sys.executable, "-m", "cmake", "-G", "Ninja", toolchain, "-S", tmp_path, "-B", tmp_path / "build"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FC": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "needs Fortran" in hints.explain(done.stderr)


def test_an_autoconf_script_gets_the_target_but_keeps_what_its_caller_names(tmp_path):
    """Autoconf's scripts set these three from --host, then read CONFIG_SITE, then use them."""
    (tmp_path / "config.site").write_text(crossenv.CONFIG_SITE.format(triplet="aarch64-linux-gnu"))

    def configured(**given):
        names = "host_alias host cross_compiling"
        values = {"cross_compiling": "no", **given}
        lines = [f"{name}={values.get(name, '')}" for name in names.split()]
        lines += [f'. "{tmp_path}/config.site"', f"echo {' '.join('$' + name for name in names.split())}"]
        return subprocess.check_output(["sh", "-euc", "\n".join(lines)], text=True).split()

    assert configured() == ["aarch64-linux-gnu", "aarch64-linux-gnu", "yes"]
    other = {"host_alias": "aarch64-linux-musl", "host": "aarch64-linux-musl", "cross_compiling": "maybe"}
    assert configured(**other) == ["aarch64-linux-musl", "aarch64-linux-musl", "yes"]


def test_a_setup_py_that_calls_meson_gets_the_cross_file(tmp_path):
    """meson takes CC and the machine of its own Python for this machine's, and fails to run what it built."""
    names = ("answers", "cross", "run", "emulator", "sysconfig")
    places = {name: tmp_path / f"the {name}" for name in names}
    quoted = {name: f"'{place}'" for name, place in places.items()}
    places["answers"].mkdir()
    search = target_answers.search_behind(places["answers"], "meson")
    text = crossenv.MESON.format(**quoted, search=search, tools="CC CXX")
    compilers.program(places["answers"] / "meson", text)
    (tmp_path / "bin").mkdir()
    path = f"{places['answers']}:{tmp_path / 'nowhere'}:{tmp_path / 'bin'}:/usr/bin:/bin:{places['answers']}"

    def called(*arguments):
        return subprocess.run(
            ["meson", *arguments],
            env={"PATH": path, "CC": "cc", "PYTHONPATH": "site"},
            capture_output=True,
            text=True,
            check=False,
        )

    assert called("setup", "b").stderr == "meson: not found\n"
    compilers.program(tmp_path / "bin/meson", '#!/bin/sh\necho "$PYTHONPATH, CC=${CC:-}, $*"\n')
    told = f"{places['sysconfig']}, CC=, setup --cross-file={{}} b -Dx=a b\n"
    assert called("setup", "b", "-Dx=a b").stdout == told.format(places["cross"])
    compilers.program(places["emulator"], "")
    assert called("setup", "b", "-Dx=a b").stdout == told.format(places["run"])
    for own in (("setup", "b", "--cross-file=x.ini"), ("compile", "-C", "b")):
        assert called(*own).stdout == f"site, CC=cc, {' '.join(own)}\n"


def test_make_check_starts_its_programs_on_the_target(tmp_path):
    """As Automake writes it: LOG_COMPILER is the caller's, where the project itself names none."""
    environment = crossenv.CrossEnvironment(
        folder=tmp_path, tools=tmp_path, triplet="", headers=(), headers_source="", sysroot=None
    )
    environment.bin.mkdir()
    compilers.program(environment.bin / "run-target", '#!/bin/sh\necho "on the target: $*"\n')
    (tmp_path / "Makefile").write_text(
        "LOG_COMPILE = $(LOG_COMPILER) $(AM_LOG_FLAGS) $(LOG_FLAGS)\ncheck:\n\t@$(LOG_COMPILE) ./thing\n"
    )
    variables = {**os.environ, **environment.environment(meson=False), "PATH": os.environ["PATH"]}
    done = subprocess.check_output(["make", "check"], cwd=tmp_path, env=variables, text=True)
    assert done == "on the target: ./thing\n"


@pytest.mark.parametrize("complete", [True, False])
def test_a_program_runs_with_the_libraries_that_it_was_linked_with(tmp_path, monkeypatch, complete):
    """The emulator's own root lacks some, such as Fortran's; a sysroot without a loader runs nothing."""
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    system = Sysroot(folder=tmp_path / "my root", suite="bullseye")
    (system.folder / "lib").mkdir(parents=True)
    if complete:
        (system.folder / crossenv.LOADER).touch()
    (built := tmp_path / "built").write_bytes(b"\x7fELF".ljust(18, b"\0") + b"\xb7\0")
    compilers.program(tmp_path / "run-target", crossenv.run_target(system))
    done = subprocess.run([tmp_path / "run-target", built], capture_output=True, text=True, check=False)
    assert (done.returncode, "there is no QEMU here yet" in done.stderr) == (126, True)
    compilers.program(crossenv.emulator(), '#!/bin/sh\nprintf "%s\\n" "$@"\n')
    done = subprocess.run([tmp_path / "run-target", built], capture_output=True, text=True, check=False)
    own = ["-L", str(system.folder)] if complete else []
    assert done.stdout.splitlines() == [*own, str(built)]
