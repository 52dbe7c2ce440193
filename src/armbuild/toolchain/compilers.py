"""The cross compilers: zig, Debian's GCC, clang. Each writes the programs that a back end calls."""

from __future__ import annotations

import abc
import hashlib
import importlib.util
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from armbuild.errors import MissingError
from armbuild.host import cache, process
from armbuild.toolchain import zig_driver
from armbuild.toolchain.compile_cache import LAUNCHER
from armbuild.toolchain.sysroot import TRIPLET

if TYPE_CHECKING:
    from collections.abc import Mapping

    from armbuild.toolchain.sysroot import Sysroot

NAMES = ("zig", "gcc", "clang")


@dataclass(frozen=True, kw_only=True)
class TargetInputs:
    """What is compiled into everything, and where the target's files are."""

    flags: tuple[str, ...]
    headers: tuple[Path, ...]
    """Folders with the target's Python.h, searched last."""
    sysroot: Sysroot | None


class Compiler(Protocol):
    """What a cross compiler offers."""

    needs_sysroot: bool
    """Whether it has no C library."""

    @property
    def triplet(self) -> str:
        """Return what it compiles for, such as aarch64-linux-gnu."""

    @property
    def description(self) -> str:
        """Return its name and version, for reports."""

    @property
    def identity(self) -> list[str]:
        """Return what, when it changes, makes compiled code stale."""

    def write(self, folder: Path, inputs: TargetInputs) -> None:
        """Write cc, c++, ar, ranlib, objcopy, and fortran where there is one, into ``folder``."""


HOST_FOLDERS = """\
for word do
  shift
  case "$word" in
  -I/usr/include|-I/usr/local/include|-I/usr/include/x86_64-linux-gnu|-I/include) ;;
  -L/usr/lib|-L/usr/lib64|-L/usr/local/lib|-L/lib|-L/lib64) ;;
  -L/usr/lib/x86_64-linux-gnu|-L/lib/x86_64-linux-gnu) ;;
  -[IL]/usr/include/*|-[IL]/usr/lib/*)
    path=${word#-?}
    case "$path" in */x86_64-linux-gnu*)
      path="${path%%/x86_64-linux-gnu*}/aarch64-linux-gnu${path#*/x86_64-linux-gnu}" ;;
    esac
    test -d SYSROOT"$path" && word="${word%"${word#-?}"}"SYSROOT"$path"
    set -- "$@" "$word" ;;
  *) set -- "$@" "$word" ;;
  esac
done
"""
"""Shell text: the build machine's own folders, which some projects search by name, are passed over; one of a
library's own there, as pg_config and its like name it, becomes the sysroot's where that has it."""


LAUNCH = (
    f'test -z "${LAUNCHER}" || {{ launcher=${LAUNCHER}; unset {LAUNCHER}; exec "$launcher" "$0" "$@"; }}\n'
)
"""Shell text: a compile cache is asked first, and calls the same script again."""


def _launch(name: str, identity: object) -> str:
    """Return what the script of a compiler, not of another tool, begins with: caches read its text."""
    return f"# {cache.digest(identity)}\n{LAUNCH}" if name in ("cc", "c++") else ""


def find(name: str, *, target: str) -> Compiler:
    """Return the compiler ``name`` (NAMES); raises MissingError when it is not installed here.

    ``target`` is zig's: a triplet, with the version of glibc behind it where that is the C library.
    """
    if name == "zig":
        return Zig(program=zig(), target=target)
    if name == "gcc":
        return Gcc(programs=_gcc())
    return Clang(programs=_clang())


def gcc_for(what: str) -> bool:
    """Return whether Debian's cross GCC is here, with its Fortran where ``what`` is "Fortran"."""
    try:
        programs = _gcc()
    except MissingError:
        return False
    return what != "Fortran" or "fortran" in programs


def zig() -> Path:
    """Return the zig program of the ziglang package; raises MissingError when that is not installed."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise MissingError("ziglang, the cross compiler, is not installed: pip install 'armllm[build]'")
    return Path(spec.origin).with_name("zig")


def program(path: Path, text: str) -> None:
    """Write an executable script."""
    path.write_text(text)
    path.chmod(0o755)


@dataclass(frozen=True, kw_only=True)
class Zig:
    """``zig cc``: clang with every glibc's symbol lists, and musl; its C++ library is linked statically."""

    program: Path
    target: str
    needs_sysroot = False

    @property
    def triplet(self) -> str:
        return self.target.partition(".")[0]

    @property
    def description(self) -> str:
        return f"zig {version('ziglang')}"

    @property
    def identity(self) -> list[str]:
        driver = hashlib.sha256(Path(zig_driver.__file__).read_bytes()).hexdigest()
        return [str(self.program), version("ziglang"), sys.executable, driver, self.target]

    def write(self, folder: Path, inputs: TargetInputs) -> None:
        (folder / "zig_driver.py").write_bytes(Path(zig_driver.__file__).read_bytes())
        if inputs.sysroot and inputs.sysroot.openmp.exists():
            header = zig_driver.OPENMP.replace("LIBRARY", str(inputs.sysroot.openmp))
            (folder / zig_driver.OPENMP_HEADER).write_text(header)
        system = inputs.sysroot
        last = (*inputs.headers, *(system.includes if system else ()))
        fixed = [*inputs.flags, *(f"-L{path}" for path in (system.libraries if system else ()))]
        fixed += [str(path) for path in last]
        for name in ("cc", "c++", "ar", "ranlib", "objcopy"):
            arguments = [sys.executable, "-ISE", "DRIVER", self.program, name, self.target]
            arguments += [len(fixed), *fixed]
            line = shlex.join(map(str, arguments)).replace("DRIVER", '"$(dirname "$0")/zig_driver.py"')
            program(folder / name, f'#!/bin/sh\n{_launch(name, self.identity)}exec {line} "$@"\n')


@dataclass(frozen=True, kw_only=True)
class Gnu(abc.ABC):
    """A compiler with GCC's command line that links the target's shared libstdc++, out of a sysroot."""

    programs: Mapping[str, str]
    """What is called for cc, c++, ar, ranlib, objcopy and, where there is one, fortran."""
    needs_sysroot = True
    triplet = TRIPLET

    @property
    def description(self) -> str:
        return (process.succeeds([self.programs["c++"], "--version"]) or self.programs["c++"]).splitlines()[0]

    @property
    def identity(self) -> list[str]:
        return [self.description, *map(str, sorted(self.programs.items()))]

    @abc.abstractmethod
    def arguments(self, system: Sysroot) -> tuple[list[str], dict[str, str]]:
        """Return the options and the environment that every call gets."""

    def write(self, folder: Path, inputs: TargetInputs) -> None:
        if inputs.sysroot is None:
            raise MissingError(f"{self.programs['cc']} needs the target's C library (a Debian archive)")
        options, environment = self.arguments(inputs.sysroot)
        last = [part for path in inputs.headers for part in ("-idirafter", str(path))]
        settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        root = shlex.quote(str(inputs.sysroot.folder))
        for name, called in self.programs.items():
            arguments = (
                [called, *inputs.flags, *options, *last] if name in ("cc", "c++", "fortran") else [called]
            )
            prefix = settings if len(arguments) > 1 else ""
            if name == "fortran":  # which warns of it, and CMake's checks of options fail for a warning
                arguments = [word for word in arguments if word != "-nostdinc++"]
            strip = " -Wl,-s" if name in ("cc", "c++", "fortran") else ""
            program(
                folder / name,
                f"#!/bin/sh\n{_launch(name, self.identity)}"
                + (HOST_FOLDERS.replace("SYSROOT", root) if strip else "")
                # -s means nothing, and makes clang complain, where nothing is linked
                + ('case " $* " in *" -r "*|*" -c "*|*" -E "*|*" -S "*|*" --version "*) ;; ' if strip else "")
                + (f'*) set -- "$@"{strip} ;; esac\n' if strip else "")
                # nobody reads debug information that the linker strips
                + f'{prefix} exec {shlex.join(arguments)} "$@"{" -g0" if strip else ""}\n'.lstrip(),
            )


class Gcc(Gnu):
    """Debian's cross GCC. ``--sysroot`` would leave its own glibc first: nothing of its own is searched."""

    def arguments(self, system: Sysroot) -> tuple[list[str], dict[str, str]]:
        own = process.succeeds([self.programs["cc"], "-print-file-name=include"]) or ""
        plain = [own, *map(str, system.includes)]
        cxx = [*map(str, system.cxx_includes), *plain]
        crt = system.folder / "usr/lib" / TRIPLET
        options = ["-nostdinc", "-nostdinc++", f"-B{crt}", f"-Wl,-rpath-link,{crt}"]
        options += [f"-L{folder}" for folder in system.libraries]
        # languages differ in what they search, and only the environment tells them apart
        return options, {
            "C_INCLUDE_PATH": os.pathsep.join(plain),
            "CPLUS_INCLUDE_PATH": os.pathsep.join(cxx),
        }


class Clang(Gnu):
    """clang of the distribution, with the sysroot's libgcc and libstdc++ and GNU's linker."""

    def arguments(self, system: Sysroot) -> tuple[list[str], dict[str, str]]:
        root = system.folder
        options = [f"--target={TRIPLET}", f"--sysroot={root}", f"--gcc-toolchain={root / 'usr'}"]
        return [*options, "-Qunused-arguments", *(f"-L{folder}" for folder in system.libraries)], {}


def _gcc() -> dict[str, str]:
    found = {"cc": f"{TRIPLET}-gcc", "c++": f"{TRIPLET}-g++", **_binutils()}
    missing = next((name for name in found.values() if shutil.which(name) is None), None)
    if missing:
        raise MissingError(
            f"--toolchain gcc: {missing} is not installed: `apt-get install g++-{TRIPLET}` brings it"
        )
    if shutil.which(f"{TRIPLET}-gfortran"):
        found["fortran"] = f"{TRIPLET}-gfortran"
    return found


def _clang() -> dict[str, str]:
    names = ["clang", *(f"clang-{release}" for release in range(22, 14, -1))]
    found = next((name for name in names if shutil.which(name) and shutil.which(_cxx(name))), None)
    binutils = _binutils()
    if found is None or any(shutil.which(name) is None for name in binutils.values()):
        raise MissingError(
            "--toolchain clang: clang 15 or newer and GNU's linker are not both installed: "
            f"`apt-get install clang binutils-{TRIPLET}` brings them"
        )
    return {"cc": found, "c++": _cxx(found), **binutils}


def _cxx(clang: str) -> str:
    return clang.replace("clang", "clang++")


def _binutils() -> dict[str, str]:
    return {name: f"{TRIPLET}-{name}" for name in ("ar", "ranlib", "objcopy")}
