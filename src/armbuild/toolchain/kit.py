"""The kit: one folder with compilers, the target's sysconfig, and files for CMake and meson."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from armbuild import arm64_headers, arm64_root, cache, process, qemu
from armbuild.errors import MissingError
from armbuild.toolchain import sysconfig_data, zig_driver

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from armbuild.pythons import HostPython

TRIPLET = "aarch64-linux-gnu"

TOOLCHAIN_FILE = """\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
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
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
set(CMAKE_CROSSCOMPILING_EMULATOR "{bin}/run-target")
set(PYBIND11_USE_CROSSCOMPILING ON CACHE BOOL "")
"""

PYTHON_HEADERS = """\
foreach(prefix Python Python3)
  set(${{prefix}}_INCLUDE_DIR "{include}" CACHE PATH "")
endforeach()
"""

CROSS_FILE = """\
[binaries]
c = '{bin}/cc'
cpp = '{bin}/c++'
ar = '{bin}/ar'
ranlib = '{bin}/ranlib'
strip = '{bin}/strip'
pkg-config = 'pkg-config'
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

RUN_TARGET = """\
#!/bin/sh
# Runs what configure checks have built: AArch64 programs under QEMU, the build's own tools as they are.
case "$(dd if="$1" bs=1 skip=18 count=2 2>/dev/null | od -An -tx1 | tr -d ' ')" in
b700)
  test -x {emulator} && exec {emulator} "$@"
  echo "the build runs an AArch64 program, and there is no QEMU here yet: $1" >&2
  exit 126 ;;
*) exec "$@" ;;
esac
"""


@dataclass(frozen=True, kw_only=True)
class Kit:
    """Where the pieces are."""

    folder: Path
    headers: tuple[Path, ...]
    """Folders with the target's Python.h, used where the host's Python brings none."""

    @property
    def bin(self) -> Path:
        """Return the folder with cc, c++, ar, ranlib, strip and run-target."""
        return self.folder / "bin"

    @property
    def cross_file(self) -> Path:
        """Return meson's cross file: meson insists on running programs when it is told how."""
        return self.folder / ("meson-run.ini" if emulator().exists() else "meson-cross.ini")

    def environment(self, *, meson: bool) -> dict[str, str]:
        """Return what the back end's hooks must see, and only they; meson takes the cross file instead."""
        common = {
            "_PYTHON_HOST_PLATFORM": "linux-aarch64",
            "_PYTHON_SYSCONFIGDATA_NAME": sysconfig_data.NAME,
            "PKG_CONFIG_LIBDIR": str(self.folder / "pkgconfig"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if meson:
            return common | {"PYTHONPATH": str(self.folder / "sysconfig")}
        tools = {name: str(self.bin / tool) for name, tool in TOOLS.items()}
        paths = os.pathsep.join((str(self.folder / "sysconfig"), str(self.folder / "site")))
        return (
            common
            | tools
            | {"PYTHONPATH": paths, "CMAKE_TOOLCHAIN_FILE": str(self.folder / "toolchain.cmake")}
        )


TOOLS = {"CC": "cc", "CXX": "c++", "AR": "ar", "RANLIB": "ranlib", "STRIP": "strip"}


def zig() -> Path:
    """Return the zig program of the ziglang package; raises MissingError when that is not installed."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise MissingError("ziglang, the cross compiler, is not installed: pip install 'armllm[build]'")
    return Path(spec.origin).with_name("zig")


def make(
    python: HostPython, *, glibc: str, flags: Sequence[str], prefix_map: Mapping[str, str], mirror: str | None
) -> Kit:
    """Write the kit for ``python``, or find it in the cache: equal settings give the same folder.

    ``flags`` are compiled into everything; ``prefix_map`` replaces folders in what the compiler writes down.
    """
    headers = () if python.include else arm64_headers.folders(python.version, mirror=mirror)
    compiler = zig()
    everywhere = [*flags, *(f"-ffile-prefix-map={old}={new}" for old, new in sorted(prefix_map.items()))]
    facts = {
        "zig": [str(compiler), version("ziglang")],
        "python": [str(python.executable), python.version, sys.executable],
        "glibc": glibc,
        "flags": everywhere,
        "headers": [str(folder) for folder in headers],
        "emulator": str(emulator()),
        "code": [hashlib.sha256(Path(module.__file__ or "").read_bytes()).hexdigest() for module in CODE],
    }

    def fill(folder: Path) -> None:
        final = cache.root() / "kits" / cache.digest(facts)
        answer = process.succeeds([python.executable, "-I", "-c", sysconfig_data.PROBE])
        if answer is None:
            raise MissingError(
                f"{python.executable} cannot tell its build variables (its _sysconfigdata module)"
            )
        _write_programs(folder / "bin", compiler, glibc=glibc, flags=everywhere, headers=headers)
        for name in ("pkgconfig", "root", "sysconfig", "site"):
            (folder / name).mkdir()
        values = sysconfig_data.target_values(json.loads(answer), final / "bin", headers[:1])
        (folder / "sysconfig" / f"{sysconfig_data.NAME}.py").write_text(sysconfig_data.render(values))
        (folder / "site/sitecustomize.py").write_text(SITECUSTOMIZE)
        text = TOOLCHAIN_FILE.format(bin=final / "bin", root=final / "root", triplet=TRIPLET)
        if headers:
            text += PYTHON_HEADERS.format(include=headers[0])
        (folder / "toolchain.cmake").write_text(text)
        wrapper = f"exe_wrapper = '{final / 'bin/run-target'}'"
        for name, line in (("meson-cross.ini", ""), ("meson-run.ini", wrapper)):
            text = CROSS_FILE.format(bin=final / "bin", pkgconfig=final / "pkgconfig", wrapper=line)
            (folder / name).write_text(text)

    _write_emulator()
    return Kit(folder=cache.fill(cache.root() / "kits" / cache.digest(facts), fill), headers=tuple(headers))


def emulator() -> Path:
    """Return the script that runs the target's programs; it is there once QEMU and an arm64 root are.

    It lies outside of the kits, so that QEMU's arrival leaves compiled code valid.
    """
    return cache.root() / "run-aarch64"


def _write_emulator() -> None:
    program, root = qemu.installed(("max",)), arm64_root.cached()
    if program and root:
        scratch = emulator().with_name(f".run-aarch64-{os.getpid()}")
        _program(scratch, f'#!/bin/sh\nexec {shlex.join([str(program), "-L", str(root)])} -cpu max "$@"\n')
        scratch.replace(emulator())
    else:
        emulator().unlink(missing_ok=True)


CODE = (sys.modules[__name__], sysconfig_data, zig_driver)


def _write_programs(
    folder: Path,
    compiler: Path,
    *,
    glibc: str,
    flags: Sequence[str],
    headers: Sequence[Path],
) -> None:
    folder.mkdir()
    driver = folder / "zig_driver.py"
    driver.write_bytes(Path(zig_driver.__file__).read_bytes())
    fixed = [*flags, *map(str, headers)]
    for name in ("cc", "c++", "ar", "ranlib", "objcopy"):
        words = [
            sys.executable,
            "-ISE",
            "DRIVER",
            str(compiler),
            name,
            f"{TRIPLET}.{glibc}",
            str(len(fixed)),
            *fixed,
        ]
        line = shlex.join(words).replace("DRIVER", '"$(dirname "$0")/zig_driver.py"')
        _program(folder / name, f'#!/bin/sh\nexec {line} "$@"\n')
    _program(folder / "strip", "#!/bin/sh\n# The linker has stripped already (-s).\nexit 0\n")
    _program(folder / "run-target", RUN_TARGET.format(emulator=shlex.quote(str(emulator()))))


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
