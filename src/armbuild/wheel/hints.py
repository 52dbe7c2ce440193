"""One line for what a cross build lacks: other languages, libraries, programs of the target."""

from __future__ import annotations

import functools
import re
import sys
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ON_ARM = "--lane native on an AArch64 machine"
FORTRAN_SENTENCE = (
    "needs Fortran, which zig lacks: `--toolchain gcc` with `apt-get install gfortran-aarch64-linux-gnu`"
)
OPENMP_SENTENCE = (
    "needs OpenMP, which zig lacks: `--with libomp-dev` brings LLVM's, and `--toolchain gcc` GNU's"
)
GNU_CXX = "GNU's C++ library"
GNU_CXX_SENTENCE = f"needs {GNU_CXX}, as Debian's libraries do, which zig lacks: `--toolchain gcc` brings it"
WITHOUT_OPENMP = re.compile(r"dependency OpenMP(?: for \w+)? found: NO|Could NOT find OpenMP", re.IGNORECASE)
WITHOUT_OPENMP_SENTENCE = (
    "was built without OpenMP, which zig lacks: `--toolchain gcc` or `--with libomp-dev` builds with it"
)
ON_THE_TARGET = f"--lane container can, or {ON_ARM}"
OUT_OF_REACH = (
    "the build downloads sources that are out of reach: --with {}, where the project takes an installed one"
)
FETCHED = re.compile(r"(?<![\w.+-])([\w.+-]+)-subbuild/|/fc-tmp/([\w.+-]+)/")
"""Where CMake's FetchContent downloads, which says what; the second since CMake 3.30 (policy CMP0168)."""
FETCHES = (
    "CMake fetches {0}, which is out of reach: --source {0}=DIR, and --env VARIABLE={{{0}}} where a variable "
    "of the project's says where it is"
)
LOADS = (
    "the build loads a library of the target into this machine's Python: say what it would ask, where the "
    f"project has variables for it (h5py: HDF5_VERSION, see docs/wheel.md), or {ON_THE_TARGET}"
)
BESIDES = (
    "the build asks a program where a library is: --with the library's Debian package, if that has the "
    f"program; else install it on this machine too (`apt-get install`), or {ON_THE_TARGET}"
)
BEYOND = (
    "the code has instructions that plain Armv8.0 lacks: --baseline cortex-a72 (CRC32), or the oldest core "
    "that the wheel is for"
)
CRATES = (
    "cargo cannot get the project's crates: `cargo vendor` in the unpacked sdist, where it can, with what it "
    "prints as .cargo/config.toml; then build that folder. Or name a mirror in cargo's settings"
)
NO_EMULATOR = re.compile(
    r"there is no QEMU here yet|Can not run test applications in this cross environment|exe_wrapper"
    r"|Testsuite summary for "
)
"""Messages of CMake, meson and Automake about what needs to run a program of the target."""
STUBS = re.compile(r"\bstubgen\.py\"|\bpybind11_stubgen\b")
"""Programs that import what was built."""
TOO_OLD = re.compile(
    r"Invalid version, need '|Found [\w.]+ but need: "
    r"|Could NOT find (?!Python)\w+: Found unsuitable version"
    r"|:\d+: error: .*\brequires [\w+-]+ v?\d[\d.]* or (?:later|newer|higher)"  # #error in C
    r"|(?:Error|Exception): .*\brequires (?!Python)[\w+-]+ >= ?\d"  # a setup.py that looks at versions
    r"|Minimum supported (?!Python)\w+ version is ",  # pyproj
    re.IGNORECASE,
)
"""What a build says of a library that is there, but not new enough."""
UNDECLARED = re.compile(
    r"error: (?:use of undeclared identifier|call to undeclared|no member named|unknown type name"
    r"|'\w+' undeclared)"
)
OLD = "the package of the oldest Debian release is too old: --with NAME/bookworm takes a newer one"
NONE_NEWER = (
    "the package of Debian bookworm is too old, and newer ones need a newer glibc: an older version of the "
    "project (`NAME<VERSION`), or --lane container with an image that has the library"
)
MAYBE_OLD = (
    "if this name is a library's, the package of the oldest Debian release is too old: --with NAME/bookworm "
    "takes a newer one"
)
KNOWN = (
    (
        (
            r"No CMAKE_Fortran_COMPILER|no-fortran-for-the-target|'fortran' compiler binary"
            r"|compiler\(s\): \[+'?gfortran|gfortran.*not f"
        ),
        FORTRAN_SENTENCE,
    ),
    (
        (
            r"omp\.h'? file not found|unable to find (?:\w+ )*library '(?:lib)?(?:g?omp)"
            r"|CMake Error.*Could NOT find OpenMP|ERROR: Dependency.*\bopenmp\b.*not found"
        ),
        OPENMP_SENTENCE,
    ),
    (
        # a type of LLVM's C++ library in a function that is not of that library itself
        rf"linked with {re.escape(GNU_CXX)}|undefined symbol: (?!(?:\w+ )*std::)[^\n]*std::__1::",
        GNU_CXX_SENTENCE,
    ),
    (
        STUBS.pattern,
        f"a generator of stubs imports the AArch64 extension here: --patch can drop it, {ON_THE_TARGET}",
    ),
    (
        NO_EMULATOR.pattern + r"|Exec format error|cannot execute binary file"
        r"|cannot run test program while cross compiling",  # Autoconf
        f"the build runs an AArch64 program by itself, not through CMake or meson: {ON_THE_TARGET}",
    ),
    (
        r"error: .*\.so[\w.]*: (?:cannot open shared object|wrong ELF class)|Unable to load dependency HDF5",
        LOADS,
    ),
    (
        r"\bswig: not found|command 'swig' failed: No such file|Could NOT find SWIG",
        "the build runs SWIG: --build-requires swig",
    ),
    (
        r"Unable to find libclang|couldn't find any valid shared libraries matching: \['libclang",
        "a crate runs bindgen, which loads libclang: --build-requires libclang",
    ),
    (TOO_OLD.pattern, OLD),
    (r"requires target feature '|instruction requires: \w", BEYOND),
    (
        (
            r"error: failed to get `[\w-]+` as a dependency of|no matching package named `[\w-]+` found"
            r"|failed to (?:get|download from|fetch) \S*crates\.io|unable to get packages from source"
        ),
        CRATES,
    ),
    (
        r"(?:library '|cannot find -l)quadmath\b",
        "the build links libquadmath, which GCC does not have for AArch64: --patch that drops it",
    ),
    (
        r"Each download failed!|Failed to (?:connect to|clone|download)|Could not resolve host",
        OUT_OF_REACH,
    ),
)
"""What a log says, and the sentence for it; the first that matches counts."""
HEADER = re.compile(
    r"fatal error: '?([\w./+-]+\.h(?:pp|xx|h)?|[\w./+-]+/[A-Z]\w*)'?(?: file not found|: No such file)"
)
"""Of C and C++; Eigen's names have no ending."""
PROGRAM = re.compile(
    r"\b([\w+-]+) executable not found|([\w+-]+[_-]config)['\"]?: (?:command )?not found"
    r"|No such file or directory: '([\w+-]+[_-]config)'"
)
MODULE = re.compile(r"ModuleNotFoundError: No module named '([^\W_]\w*)")
"""A name that begins with _ is, as a rule, of code that the project itself compiles."""
OLD_MODULES = {"distutils": "setuptools", "pkg_resources": "'setuptools<81'"}
"""Modules that have left Python and setuptools, and what has them."""
LIBRARY = re.compile(
    r"unable to find (?:dynamic system )?library '([\w+.-]+)'|cannot find -l([\w+.-]+)"
    r"|Could NOT find (?!Python)(\w+)|Dependency \"([\w+.-]+)\" not found|No package '([\w+.-]+)' found"
    r"|By not providing \"Find(\w+)\.cmake\" in CMAKE_MODULE_PATH"
    r"|Package ([\w+.-]+) was not found in the pkg-config search path"
    r"|[Pp]ackage '([\w+.-]+)(?: [<>=]+ ?[\w.]+)?'(?:, required by '[^']*',)? not found"
)


def absent(log: str) -> str:
    """Return what a build found to be missing on the target, with the option that brings it; else nothing."""
    if found := missing(log):
        what, package = found
        return f"{what}: --with {package or 'the Debian package that brings it'}"
    return ""


def explain(log: str, project: str = "", packages: Sequence[str] = ()) -> str:
    """Return what to do about a failed cross build, given what it said; empty when nothing is known.

    ``project`` is the name of what was built: a binding has its library's, often. ``packages`` are those of
    --with: only a library that they bring can be too old.
    """
    for pattern, sentence in KNOWN:
        if re.search(pattern, log, re.IGNORECASE):
            if sentence == OUT_OF_REACH and (fetched := FETCHED.search(log)):
                return FETCHES.format(fetched[1] or fetched[2])
            own = package(project) or package(re.sub(r"^(?:python-|py)", "", project.lower()))
            return sentence.format(own or "the library's Debian package") if "{}" in sentence else sentence
    if UNDECLARED.search(log) and packages and not any("/" in item for item in packages):
        return MAYBE_OLD
    if _lacks_a_header(log, packages):
        return OLD
    return absent(log) or (BESIDES if PROGRAM.search(log) else "")


def _lacks_a_header(log: str, packages: Sequence[str]) -> bool:
    """Return whether a library's folder of headers is there, by --with, without the one that is included."""
    found = HEADER.search(log)
    folder = found[1].partition("/")[0] + "/" if found else ""
    return _packages()["headers"].get(folder) in {item.partition("/")[0] for item in packages}


def not_required(cause: str, log: str, project: str) -> str:
    """Return the option for a module that is absent, as ``cause`` says; nothing for what the build makes."""
    module = MODULE.search(cause)
    if not module or module[1] == project.replace("-", "_") or STUBS.search(log):
        return ""
    wanted = OLD_MODULES.get(module[1], f"{module[1]}, or the package that has it")
    return f"the build imports {module[1]}, which the project does not require: --build-requires {wanted}"


def wants_gcc(cause: str, log: str) -> str:
    """Return what a build with zig failed for want of, such as "OpenMP", where GCC has it; else nothing."""
    sentence = explain(cause) or explain(log)
    wanted = {FORTRAN_SENTENCE: "Fortran", OPENMP_SENTENCE: "OpenMP", GNU_CXX_SENTENCE: GNU_CXX}
    return wanted.get(sentence, "")


def missing(log: str) -> tuple[str, str] | None:
    """Return what a build found to be missing on the target, and the Debian package, empty where unknown."""
    if found := HEADER.search(log):
        table, folder = _packages()["headers"], found[1].partition("/")[0]
        return f"the target has no {found[1]}", table.get(found[1]) or table.get(f"{folder}/", "")
    if found := LIBRARY.search(log):
        name = next(filter(None, found.groups()))
        return f"{name} is not among the target's libraries", package(name)
    if found := PROGRAM.search(log):
        name = next(filter(None, found.groups()))
        if brings := _packages()["programs"].get(name):
            return f"the build asks {name}, a program of the library", brings
    return None


def package(library: str) -> str:
    """Return the Debian package of a library, or nothing: ``usb-1.0`` and ``libusb-1.0`` are one."""
    table, name = _packages()["libraries"], library.lower()
    return table.get(name) or table.get(name.removeprefix("lib"), "")


@functools.cache
def _packages() -> dict[str, dict[str, str]]:
    text = files("armbuild").joinpath("data/debian_packages.toml").read_text(encoding="utf-8")
    table: dict[str, dict[str, str]] = tomllib.loads(text)
    return table
