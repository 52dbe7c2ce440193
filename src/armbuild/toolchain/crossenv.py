"""The cross environment: one folder with compilers, the target's sysconfig, and files for CMake and meson."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from armbuild.errors import MissingError
from armbuild.host import cache, process
from armbuild.target import arm64_headers, arm64_root, qemu
from armbuild.toolchain import compilers, sysconfig_data, sysroot, target_answers
from armbuild.toolchain.compilers import TargetInputs, program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from armbuild.host.pythons import HostPython
    from armbuild.toolchain.compilers import Compiler
    from armbuild.toolchain.sysroot import Sysroot

TARGET_SITE = "ARMBUILD_TARGET_SITE"
"""The variable that names a folder of AArch64 Python packages in which CMake searches too."""
TOOLCHAIN_FILE = """\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_HOST_SYSTEM_PROCESSOR {machine})  # `uname` answers for the target
set(CMAKE_C_COMPILER "{bin}/cc")
set(CMAKE_CXX_COMPILER "{bin}/c++")
set(CMAKE_ASM_COMPILER "{bin}/cc")
set(CMAKE_AR "{bin}/ar" CACHE FILEPATH "")
set(CMAKE_RANLIB "{bin}/ranlib" CACHE FILEPATH "")
foreach(language C CXX)
  set(CMAKE_${{language}}_COMPILER_AR "{bin}/ar" CACHE FILEPATH "")
  set(CMAKE_${{language}}_COMPILER_RANLIB "{bin}/ranlib" CACHE FILEPATH "")
endforeach()
set(CMAKE_LIBRARY_ARCHITECTURE {triplet})
set(CMAKE_FIND_ROOT_PATH "{root}")
if(DEFINED ENV{{ARMBUILD_TARGET_SITE}})
  list(APPEND CMAKE_FIND_ROOT_PATH "$ENV{{ARMBUILD_TARGET_SITE}}")
endif()
# below a root folder CMake finds torch's own file first
if(DEFINED ENV{{Torch_DIR}})
  set(Torch_DIR "$ENV{{Torch_DIR}}" CACHE PATH "" FORCE)
endif()
# what the project itself has, or makes, is for the target
list(APPEND CMAKE_FIND_ROOT_PATH "${{CMAKE_SOURCE_DIR}}" "${{CMAKE_BINARY_DIR}}")
{sources}set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
set(CMAKE_CROSSCOMPILING_EMULATOR "{bin}/run-target")
"""

SOURCES_VARIABLE = "ARMBUILD_SOURCES"
"""The variable with ``FETCHCONTENT_SOURCE_DIR_NAME=FOLDER`` for each source, with semicolons between."""
SOURCES = """\
set(armbuild_sources "$ENV{ARMBUILD_SOURCES}")
foreach(pair IN LISTS armbuild_sources)
  string(REGEX MATCH "^([^=]+)=(.*)$" pair "${pair}")
  set("${CMAKE_MATCH_1}" "${CMAKE_MATCH_2}" CACHE PATH "" FORCE)
  list(APPEND CMAKE_FIND_ROOT_PATH "${CMAKE_MATCH_2}")
endforeach()
"""
"""The variables are no variables of the environment for CMake: a toolchain file makes them known."""

# Else CMake would take this machine's gfortran, whose objects are of this machine.
NO_FORTRAN = 'set(CMAKE_Fortran_COMPILER_INIT "no-fortran-for-the-target")\n'
# CMake's FindPython asks no interpreter for them when it cross-compiles. By force: scikit-build-core's
# initial cache names the folder that the build machine's Python would use. pybind11 asks for the rest; what
# it guesses instead is unknown outside of the folder that has its sources.
PYTHON_SETTINGS = """\
foreach(name PYTHON Python Python3)
  set(${{name}}_INCLUDE_DIR "{include}" CACHE PATH "" FORCE)
endforeach()
set(PYBIND11_USE_CROSSCOMPILING ON CACHE BOOL "")
set(PYTHON_MODULE_EXTENSION "{suffix}")
set(PYTHON_MODULE_DEBUG_POSTFIX "")
set(PYTHON_IS_DEBUG OFF)
"""

CROSS_FILE = """\
[binaries]
c = '{bin}/cc'
cpp = '{bin}/c++'
ar = '{bin}/ar'
ranlib = '{bin}/ranlib'
strip = '{bin}/strip'
pkg-config = 'pkg-config'
numpy-config = 'numpy-config'
{wrapper}

[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'

[properties]
needs_exe_wrapper = true
longdouble_format = 'IEEE_QUAD_LE'
pkg_config_libdir = '{pkgconfig}'
"""

SITECUSTOMIZE = """\
\"\"\"Answer as the target would: build back ends ask the interpreter which machine they build for.\"\"\"
import os
import platform

_uname = os.uname_result((*os.uname()[:4], "aarch64"))
os.uname = lambda: _uname
platform.machine = lambda: "aarch64"
"""

CONFIG_SITE = """\
# For Autoconf's scripts, which take this machine for the target: "Site Defaults" in Autoconf's manual.
test -n "$host_alias" || {{ host_alias={triplet} host={triplet}; }}
cross_compiling=yes
"""

MESON = """\
#!/bin/sh
# A setup.py that calls meson does not know the target. meson-python names the cross file by itself.
{search}case " $* " in
*" --cross-file"*) ;;
" setup "*)
  shift
  file={cross}
  test -x {emulator} && file={run}
  set -- setup --cross-file="$file" "$@"
  unset {tools}
  export PYTHONPATH={sysconfig} ;;
esac
exec "$found" "$@"
"""
LOADER = "lib/ld-linux-aarch64.so.1"
RUN_TARGET = """\
#!/bin/sh
# Runs what configure checks have built: AArch64 programs under QEMU, the build's own tools as they are.
case "$(dd if="$1" bs=1 skip=18 count=2 2>/dev/null | od -An -tx1 | tr -d ' ')" in
b700)
  test -x {emulator} && exec {emulator} {root}"$@"
  echo "the build runs an AArch64 program, and there is no QEMU here yet: $1" >&2
  exit 126 ;;
*) exec "$@" ;;
esac
"""


@dataclass(frozen=True, kw_only=True)
class CrossEnvironment:
    """Where the pieces are."""

    folder: Path
    tools: Path
    """The compilers, in a folder that all Pythons share: what knows nothing of Python is compiled once."""
    triplet: str
    """What is compiled for."""
    headers: tuple[Path, ...]
    """Folders with the target's Python.h, used where the host's Python brings none."""
    headers_source: str
    """Whose headers of Python are used, for the report."""
    sysroot: Sysroot | None
    """Debian arm64 packages, where the project or the compiler needs some."""

    @property
    def bin(self) -> Path:
        """Return the folder with cc, c++, ar, ranlib, strip and run-target."""
        return self.tools / "bin"

    @property
    def cross_file(self) -> Path:
        """Return meson's cross file: meson insists on running programs when it is told how."""
        return self.folder / CROSS_FILES[emulator().exists()]

    def environment(self, *, meson: bool) -> dict[str, str]:
        """Return what the back end's hooks must see, and only they; meson takes the cross file instead."""
        common = {
            "_PYTHON_HOST_PLATFORM": "linux-aarch64",
            "_PYTHON_SYSCONFIGDATA_NAME": sysconfig_data.name(self.triplet),
            "PKG_CONFIG_LIBDIR": str(self.folder / "pkgconfig"),
            "CONFIG_SITE": str(self.folder / "config.site"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": str(self.folder / "answers"),
        }
        if self.sysroot:
            common |= {
                "PKG_CONFIG_LIBDIR": os.pathsep.join(map(str, self.sysroot.pkg_config)),
                "PKG_CONFIG_SYSROOT_DIR": str(self.sysroot.folder),
            }
        if meson:
            return common | {"PYTHONPATH": str(self.folder / "sysconfig")}
        places = {name: self.bin / tool for name, tool in TOOLS.items()}
        tools = {name: str(place) if place.exists() else "" for name, place in places.items()}
        tools["LOG_COMPILER"] = str(self.bin / "run-target")  # of Automake's `make check`
        paths = os.pathsep.join((str(self.folder / "sysconfig"), str(self.folder / "site")))
        return (
            common
            | tools
            | {"PYTHONPATH": paths, "CMAKE_TOOLCHAIN_FILE": str(self.folder / "toolchain.cmake")}
        )


CROSS_FILES = ("meson-cross.ini", "meson-run.ini")
"""Without and with the program that runs what was built."""
TOOLS = {"CC": "cc", "CXX": "c++", "AR": "ar", "RANLIB": "ranlib", "STRIP": "strip", "FC": "fortran"}


def make(
    python: HostPython,
    compiler: Compiler,
    *,
    flags: Sequence[str],
    prefix_map: Mapping[str, str],
    packages: tuple[str, ...] = (),
    baseline: str | None = None,
    mirror: str | None,
) -> CrossEnvironment:
    """Write the environment for ``python``, or find it in the cache: equal settings give the same folder.

    ``flags`` are compiled into everything; ``prefix_map`` replaces folders in what the compiler writes down;
    ``packages`` are Debian arm64 packages whose headers and libraries the project may use;
    ``baseline`` is the core that /proc/cpuinfo describes to the build.
    """
    found = arm64_headers.find(python, mirror=mirror)
    headers = found.folders
    system = None
    if packages or compiler.needs_sysroot:
        system = sysroot.make(packages, compiler=compiler.needs_sysroot, mirror=mirror)
    everywhere = [*flags, *(f"-ffile-prefix-map={old}={new}" for old, new in sorted(prefix_map.items()))]
    tools = _tools(compiler, TargetInputs(flags=tuple(everywhere), headers=headers, sysroot=system))
    facts = {
        "tools": str(tools),
        "python": [str(python.executable), python.version],
        "cpus": [baseline, os.cpu_count()],
        "code": [hashlib.sha256(Path(module.__file__ or "").read_bytes()).hexdigest() for module in CODE],
    }
    place = cache.root() / "crossenvs" / cache.digest(facts)

    def fill(folder: Path) -> None:
        answer = process.succeeds([python.executable, "-I", "-c", sysconfig_data.PROBE])
        if answer is None:
            raise MissingError(
                f"{python.executable} cannot tell its build variables (its _sysconfigdata module)"
            )
        for part in ("pkgconfig", "root", "sysconfig", "site"):
            (folder / part).mkdir()
        values = sysconfig_data.target_values(
            json.loads(answer), tools / "bin", headers[:1], triplet=compiler.triplet
        )
        name = f"{sysconfig_data.name(compiler.triplet)}.py"
        (folder / "sysconfig" / name).write_text(sysconfig_data.render(values))
        opening = target_answers.write(folder, place, baseline, system, tools / "bin/run-target")
        (folder / "site/sitecustomize.py").write_text(SITECUSTOMIZE + opening)
        include, suffix = headers[0] if headers else python.include, values["EXT_SUFFIX"]
        _write_settings(folder, environment, PYTHON_SETTINGS.format(include=include, suffix=suffix))

    environment = CrossEnvironment(
        folder=place,
        tools=tools,
        triplet=compiler.triplet,
        headers=headers,
        headers_source=found.source,
        sysroot=system,
    )
    _write_emulator(mirror)
    cache.fill(place, fill)
    return environment


def run_target(system: Sysroot | None) -> str:
    """Return the script that runs what was built, with the libraries that it was linked with."""
    complete = system is not None and (system.folder / LOADER).exists()
    root = f"-L {shlex.quote(str(system.folder))} " if system and complete else ""
    return RUN_TARGET.format(emulator=shlex.quote(str(emulator())), root=root)


def _tools(compiler: Compiler, inputs: TargetInputs) -> Path:
    script = run_target(inputs.sysroot)
    facts = {
        "compiler": compiler.identity,
        "flags": inputs.flags,
        "headers": [str(folder) for folder in inputs.headers],
        "sysroot": str(inputs.sysroot.folder) if inputs.sysroot else "",
        "run-target": script,
        "code": hashlib.sha256(Path(compilers.__file__).read_bytes()).hexdigest(),
    }

    def fill(folder: Path) -> None:
        (folder / "bin").mkdir()
        compiler.write(folder / "bin", inputs)
        program(folder / "bin/strip", "#!/bin/sh\n# The linker has stripped already (-s).\nexit 0\n")
        program(folder / "bin/run-target", script)

    return cache.fill(cache.root() / "tools" / cache.digest(facts), fill)


def _write_settings(folder: Path, environment: CrossEnvironment, for_python: str) -> None:
    """Write CMake's toolchain file, meson and its cross files into ``folder``, the environment's to be.

    ``for_python`` is what the toolchain file says about Python.
    """
    place, system = environment.folder, environment.sysroot
    fortran = (environment.bin / "fortran").exists()
    root = system.folder if system else place / "root"
    text = TOOLCHAIN_FILE.format(
        bin=environment.bin,
        root=root,
        triplet=environment.triplet,
        sources=SOURCES,
        machine=platform.machine(),
    )
    if fortran:
        text += f'set(CMAKE_Fortran_COMPILER "{environment.bin / "fortran"}")\n'
    else:
        text += NO_FORTRAN
    text += for_python
    (folder / "toolchain.cmake").write_text(text)
    (folder / "config.site").write_text(CONFIG_SITE.format(triplet=environment.triplet))
    pkg_config = os.pathsep.join(map(str, system.pkg_config)) if system else str(place / "pkgconfig")
    wrapper = f"exe_wrapper = '{environment.bin / 'run-target'}'"
    for name, line in zip(CROSS_FILES, ("", wrapper), strict=True):
        more = f"fortran = '{environment.bin / 'fortran'}'\n{line}" if fortran else line
        text = CROSS_FILE.format(bin=environment.bin, pkgconfig=pkg_config, wrapper=more)
        text += f"sys_root = '{system.folder}'\n" if system else ""
        (folder / name).write_text(text)
    _write_meson(folder, place)


def _write_meson(folder: Path, place: Path) -> None:
    """Write the program meson into ``folder``, which moves to ``place``."""
    names = {"cross": CROSS_FILES[0], "run": CROSS_FILES[1], "sysconfig": "sysconfig"}
    paths = {key: place / name for key, name in names.items()} | {"emulator": emulator()}
    quoted = {key: shlex.quote(str(path)) for key, path in paths.items()}
    search = target_answers.search_behind(place / "answers", "meson")
    program(folder / "answers/meson", MESON.format(**quoted, search=search, tools=" ".join(TOOLS)))


def emulator() -> Path:
    """Return the script that runs the target's programs; it is there once QEMU and an arm64 root are.

    It lies outside of them, so that QEMU's arrival leaves compiled code valid.
    """
    return cache.root() / "run-aarch64"


def _write_emulator(mirror: str | None) -> None:
    qemu_program, root = qemu.installed(("max",), mirror=mirror), arm64_root.cached(mirror)
    if qemu_program and root:
        scratch = emulator().with_name(f".run-aarch64-{os.getpid()}")
        program(
            scratch, f'#!/bin/sh\nexec {shlex.join([str(qemu_program), "-L", str(root)])} -cpu max "$@"\n'
        )
        scratch.replace(emulator())
    else:
        emulator().unlink(missing_ok=True)


CODE = (sys.modules[__name__], sysconfig_data, compilers, target_answers)
